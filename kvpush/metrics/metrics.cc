#include "kvpush/metrics/metrics.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "kvpush/base/check.h"

namespace kvpush {
namespace {

bool is_name(std::string_view text) {
  const auto is_rest = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && !(text[0] >= '0' && text[0] <= '9') && std::ranges::all_of(text, is_rest);
}

// Backslash and newline always, the quotation mark in label values only: as the text format says.
void append_escaped(std::string& out, std::string_view text, bool quoted) {
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\') {
      out += "\\\\";
    } else if (c == '"' && quoted) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

std::string labels_text(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    KVPUSH_CHECK(is_name(name) && name != "le", "a label has a name of its own, in snake_case");
    if (!text.empty()) text += ',';
    text += name + "=\"";
    append_escaped(text, value, true);
    text += '"';
  }
  return text;
}

template <class Number>
std::string number_text(Number value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return {buffer, end};
}

void append_sample(std::string& out, std::string_view name, std::string_view suffix, std::string_view labels,
                   std::string_view value) {
  out.append(name).append(suffix);
  if (!labels.empty()) out.append("{").append(labels).append("}");
  out.append(" ").append(value).append("\n");
}

}  // namespace

Histogram::Histogram(std::span<const double> upper_bounds)
    : upper_bounds_(upper_bounds.begin(), upper_bounds.end()),
      counts_(std::make_unique<std::atomic<std::uint64_t>[]>(upper_bounds.size() + 1)) {
  KVPUSH_CHECK(std::ranges::adjacent_find(upper_bounds_, std::greater_equal{}) == upper_bounds_.end(),
               "the bounds of a histogram grow");
}

void Histogram::observe(double value) {
  const auto bucket = std::ranges::lower_bound(upper_bounds_, value) - upper_bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Counter& Registry::counter(std::string_view name, std::string_view help, const Labels& labels) {
  KVPUSH_CHECK(name.ends_with("_total"), "the name of a counter ends in _total");
  auto& made = std::get<0>(find_or_add(name, help, Type::kCounter, labels, std::unique_ptr<Counter>{}));
  if (!made) made = std::make_unique<Counter>();
  return *made;
}

Gauge& Registry::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  auto& made = std::get<1>(find_or_add(name, help, Type::kGauge, labels, std::unique_ptr<Gauge>{}));
  if (!made) made = std::make_unique<Gauge>();
  return *made;
}

Histogram& Registry::histogram(std::string_view name, std::string_view help, std::span<const double> upper_bounds,
                               const Labels& labels) {
  auto& made = std::get<2>(find_or_add(name, help, Type::kHistogram, labels, std::unique_ptr<Histogram>{}));
  if (!made) made = std::make_unique<Histogram>(upper_bounds);
  return *made;
}

std::string Registry::render() const {
  std::string out;
  for (const Family& family : families_) {
    out.append("# HELP ").append(family.name).append(" ");
    append_escaped(out, family.help, false);
    out.append("\n# TYPE ").append(family.name).append(" ").append(type_name(family.type)).append("\n");
    for (const Series& series : family.series) render_series(out, family, series);
  }
  return out;
}

std::string_view Registry::type_name(Type type) {
  switch (type) {
    case Type::kCounter: return "counter";
    case Type::kGauge: return "gauge";
    case Type::kHistogram: return "histogram";
  }
  return "untyped";
}

void Registry::render_series(std::string& out, const Family& family, const Series& series) {
  if (family.type == Type::kCounter) {
    append_sample(out, family.name, "", series.labels, number_text(std::get<0>(series.metric)->value()));
    return;
  }
  if (family.type == Type::kGauge) {
    append_sample(out, family.name, "", series.labels, number_text(std::get<1>(series.metric)->value()));
    return;
  }
  const Histogram& histogram = *std::get<2>(series.metric);
  const std::string before = series.labels.empty() ? "" : series.labels + ",";
  const std::size_t bounds = histogram.upper_bounds().size();
  std::uint64_t count = 0;
  for (std::size_t i = 0; i <= bounds; ++i) {
    count += histogram.bucket(i);
    const std::string bound = i < bounds ? number_text(histogram.upper_bounds()[i]) : "+Inf";
    append_sample(out, family.name, "_bucket", std::string(before).append("le=\"").append(bound).append("\""),
                  number_text(count));
  }
  append_sample(out, family.name, "_sum", series.labels, number_text(histogram.sum()));
  // The sum of the buckets just printed, so that a scrape between two observations is consistent.
  append_sample(out, family.name, "_count", series.labels, number_text(count));
}

Registry::Metric& Registry::find_or_add(std::string_view name, std::string_view help, Type type, const Labels& labels,
                                        Metric empty) {
  KVPUSH_CHECK(is_name(name) && name.starts_with("kvpush_"), "a metric is named kvpush_ and snake_case");
  auto family = std::ranges::find(families_, name, &Family::name);
  if (family == families_.end()) {
    families_.push_back({std::string(name), std::string(help), type, {}});
    family = std::prev(families_.end());
  }
  KVPUSH_CHECK(family->type == type && family->help == help, "a metric has one type and one help text");
  std::string text = labels_text(labels);
  const auto series = std::ranges::find(family->series, text, &Series::labels);
  if (series != family->series.end()) return series->metric;
  KVPUSH_CHECK(++series_count_ <= kSeriesMax, "label values come from closed sets");
  family->series.push_back({std::move(text), std::move(empty)});
  return family->series.back().metric;
}

}  // namespace kvpush
