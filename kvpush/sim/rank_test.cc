#include "kvpush/sim/rank.h"

#include <chrono>

#include <gtest/gtest.h>

namespace kvpush::sim {
namespace {

using namespace std::chrono_literals;

TEST(Clock, RunsAtItsOwnSpeedFromItsOwnBeginning) {
  const Clock fast(1h, 100);
  EXPECT_EQ(fast.at(Instant{}), Instant{1h});
  EXPECT_EQ(fast.at(Instant{10s}), Instant{1h + 10s + 1ms});
  EXPECT_EQ(Clock(0s, -100).at(Instant{10s}), Instant{10s - 1ms});
}

TEST(Clock, SaysWhenItWillSaySomething) {
  for (const std::int64_t drift : {-200, 0, 200}) {
    const Clock clock(3s, drift);
    for (const Instant now : {Instant{1s}, Instant{1s + 1ns}, Instant{300s}, Instant{24h + 999ms}}) {
      const Instant when = clock.when(clock.at(now));
      EXPECT_GE(clock.at(when), clock.at(now));
      EXPECT_LT(when - now, 1us);
    }
  }
}

}  // namespace
}  // namespace kvpush::sim
