// Counters, gauges and histograms, and their text for Prometheus (exposition format 0.0.4). Written here because
// Debian ships prometheus-cpp only as a shared object, which must not be dragged into the process of an engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvpush/base/instant.h"

namespace kvpush {

// A number of things that happened since the start.
//
// Job: counts.
// Owner: Registry.
// Thread: any (synchronised by an atomic).
class Counter {
 public:
  void add(std::uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

// How much there is of something now.
//
// Job: holds a level that goes up and down.
// Owner: Registry.
// Thread: any (synchronised by an atomic).
class Gauge {
 public:
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(std::int64_t difference) { value_.fetch_add(difference, std::memory_order_relaxed); }
  std::int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_ = 0;
};

// From the time of one write (tens of microseconds) to a limit that ends a request (a minute).
inline constexpr double kSecondsBuckets[] = {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                             0.1,     0.25,   0.5,     1,      2.5,   5,      10,    30,   60};
// From one block of a small model (16 KiB) to a long prompt of a large one (16 GiB), in steps of four.
inline constexpr double kBytesBuckets[] = {1 << 14, 1 << 16, 1 << 18, 1 << 20,      1 << 22,      1 << 24,
                                           1 << 26, 1 << 28, 1 << 30, 4294967296.0, 17179869184.0};

// How often values fell into each of a few fixed ranges, and their sum.
//
// Job: counts observations for each upper bound, and above the last.
// Owner: Registry.
// Thread: any (synchronised by atomics). A reader may see an observation in its bucket before it is in the sum.
class Histogram {
 public:
  // The bounds grow strictly.
  explicit Histogram(std::span<const double> upper_bounds);

  // Falls into the first bucket whose bound is not below it.
  void observe(double value);
  void observe(Duration duration) { observe(std::chrono::duration<double>(duration).count()); }

  std::span<const double> upper_bounds() const { return upper_bounds_; }
  // Observations in the bucket alone, not in those below it; the bucket after the last bound has the rest.
  std::uint64_t bucket(std::size_t index) const { return counts_[index].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> upper_bounds_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;  // one more than bounds
  std::atomic<double> sum_ = 0;
};

// Names and values in the order in which they are printed. Values come from closed sets (a role, an error name, a
// configured peer), never from requests: each combination is a series that stays.
using Labels = std::vector<std::pair<std::string, std::string>>;

// Reason for the bound: some tens of metrics times the error codes or the peers of one engine.
inline constexpr std::size_t kSeriesMax = 8192;

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// The metrics of one process or rank by name.
//
// Job: makes metrics, gives them out by reference, renders them.
// Not here: serving them.
// Owner: whoever serves them; outlives all users of its references.
// Thread: one thread makes metrics and renders; what was made is bumped and read by any thread.
// Invariant: one type and one help text for each name. Breaking it, a name that is not `kvpush_[a-z0-9_]+`, a counter
//            without `_total`, or more than kSeriesMax series are bugs and end the process.
class Registry {
 public:
  Registry() = default;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // The same name and labels give the same metric again. References stay valid for the life of the registry.
  Counter& counter(std::string_view name, std::string_view help, const Labels& labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  // Every series of a name has the bounds of the first.
  Histogram& histogram(std::string_view name, std::string_view help, std::span<const double> upper_bounds,
                       const Labels& labels = {});

  // Everything as text: families in order of making, series within them too.
  std::string render() const;

 private:
  enum class Type : std::uint8_t { kCounter, kGauge, kHistogram };
  using Metric = std::variant<std::unique_ptr<Counter>, std::unique_ptr<Gauge>, std::unique_ptr<Histogram>>;
  struct Series {
    std::string labels;  // as printed, without braces
    Metric metric;
  };
  struct Family {
    std::string name;
    std::string help;
    Type type;
    std::vector<Series> series;
  };

  static std::string_view type_name(Type type);
  static void render_series(std::string& out, const Family& family, const Series& series);
  // An empty pointer in it when the series is new.
  Metric& find_or_add(std::string_view name, std::string_view help, Type type, const Labels& labels, Metric empty);

  std::deque<Family> families_;
  std::size_t series_count_ = 0;
};

}  // namespace kvpush
