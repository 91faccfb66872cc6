#include "kvpush/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace kvpush {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(Registry, RendersACounterWithItsHelpAndType) {
  Registry registry;

  registry.counter("kvpush_writes_total", "Batches posted.").add(3);

  EXPECT_EQ(registry.render(),
            "# HELP kvpush_writes_total Batches posted.\n"
            "# TYPE kvpush_writes_total counter\n"
            "kvpush_writes_total 3\n");
}

TEST(Registry, RendersTheSeriesOfOneNameUnderOneHeading) {
  Registry registry;

  registry.counter("kvpush_ended_total", "Ended.", {{"role", "producer"}, {"error", "timeout"}}).add();
  registry.gauge("kvpush_live", "Live.").set(-2);
  registry.counter("kvpush_ended_total", "Ended.", {{"role", "consumer"}, {"error", "timeout"}}).add(2);

  EXPECT_EQ(registry.render(),
            "# HELP kvpush_ended_total Ended.\n"
            "# TYPE kvpush_ended_total counter\n"
            "kvpush_ended_total{role=\"producer\",error=\"timeout\"} 1\n"
            "kvpush_ended_total{role=\"consumer\",error=\"timeout\"} 2\n"
            "# HELP kvpush_live Live.\n"
            "# TYPE kvpush_live gauge\n"
            "kvpush_live -2\n");
}

TEST(Registry, GivesTheSameMetricForTheSameNameAndLabels) {
  Registry registry;
  Counter& first = registry.counter("kvpush_a_total", "A.", {{"peer", "p"}});

  for (int i = 0; i < 100; ++i) registry.counter("kvpush_a_total", "A.", {{"peer", std::to_string(i)}});

  EXPECT_EQ(&registry.counter("kvpush_a_total", "A.", {{"peer", "p"}}), &first);
}

TEST(Registry, EscapesWhatTheFormatAsksFor) {
  Registry registry;

  registry.counter("kvpush_a_total", "One \"quoted\" \\ and\na line.", {{"peer", "a\\b\"c\nd"}});

  EXPECT_THAT(registry.render(), HasSubstr("# HELP kvpush_a_total One \"quoted\" \\\\ and\\na line.\n"));
  EXPECT_THAT(registry.render(), HasSubstr("kvpush_a_total{peer=\"a\\\\b\\\"c\\nd\"} 0\n"));
}

TEST(Registry, RendersAHistogramInCumulatedBuckets) {
  Registry registry;
  const double bounds[] = {0.001, 0.25, 10};
  Histogram& histogram = registry.histogram("kvpush_seconds", "Times.", bounds, {{"role", "consumer"}});

  histogram.observe(0.0);
  histogram.observe(milliseconds(1));  // a bound belongs to its bucket
  histogram.observe(milliseconds(250));
  histogram.observe(100.0);

  EXPECT_EQ(registry.render(),
            "# HELP kvpush_seconds Times.\n"
            "# TYPE kvpush_seconds histogram\n"
            "kvpush_seconds_bucket{role=\"consumer\",le=\"0.001\"} 2\n"
            "kvpush_seconds_bucket{role=\"consumer\",le=\"0.25\"} 3\n"
            "kvpush_seconds_bucket{role=\"consumer\",le=\"10\"} 3\n"
            "kvpush_seconds_bucket{role=\"consumer\",le=\"+Inf\"} 4\n"
            "kvpush_seconds_sum{role=\"consumer\"} 100.251\n"
            "kvpush_seconds_count{role=\"consumer\"} 4\n");
}

TEST(Registry, LosesNothingThatSeveralThreadsCount) {
  Registry registry;
  Counter& counter = registry.counter("kvpush_a_total", "A.");
  Gauge& gauge = registry.gauge("kvpush_b", "B.");
  Histogram& histogram = registry.histogram("kvpush_c_seconds", "C.", kSecondsBuckets);

  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 1000; ++n) {
          counter.add();
          gauge.add(n % 2 == 0 ? 2 : -1);
          histogram.observe(1.0);
        }
      });
    }
    EXPECT_THAT(registry.render(), HasSubstr("kvpush_a_total "));
  }

  EXPECT_EQ(counter.value(), 4000u);
  EXPECT_EQ(gauge.value(), 2000);
  EXPECT_EQ(histogram.sum(), 4000.0);
  EXPECT_THAT(registry.render(), HasSubstr("kvpush_c_seconds_count 4000\n"));
}

using RegistryDeathTest = testing::Test;

TEST(RegistryDeathTest, RefusesANameThatIsNotOurs) {
  Registry registry;

  EXPECT_DEATH(registry.counter("writes_total", "A."), "a metric is named kvpush_");
  EXPECT_DEATH(registry.gauge("kvpush_a-b", "A."), "a metric is named kvpush_");
  EXPECT_DEATH(registry.counter("kvpush_writes", "A."), "ends in _total");
}

TEST(RegistryDeathTest, RefusesTwoTypesForOneName) {
  Registry registry;
  registry.counter("kvpush_a_total", "A.");

  EXPECT_DEATH(registry.gauge("kvpush_a_total", "A."), "one type");
}

TEST(RegistryDeathTest, RefusesMoreSeriesThanItsBound) {
  Registry registry;
  for (std::size_t i = 0; i < 10; ++i) registry.counter("kvpush_a_total", "A.", {{"peer", std::to_string(i)}});

  EXPECT_DEATH(
      {
        for (std::size_t i = 0; i < kSeriesMax; ++i) {
          registry.gauge("kvpush_b_" + std::to_string(i % 91), "B.", {{"peer", std::to_string(i)}});
        }
      },
      "closed sets");
}

}  // namespace
}  // namespace kvpush
