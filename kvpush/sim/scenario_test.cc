#include "kvpush/sim/scenario.h"

#include <gtest/gtest.h>

#include "kvpush/sim/shrink.h"

namespace kvpush::sim {
namespace {

Scenario everything() {
  Scenario scenario{.seed = 7, .transfers = 100, .incidents = 50, .producers = 3, .consumers = 2};
  scenario.allowed.fill(true);
  return scenario;
}

TEST(Scenario, FollowsFromItsSeed) {
  EXPECT_EQ(Scenario::make(7).flags(), Scenario::make(7).flags());
  EXPECT_NE(Scenario::make(7).flags(), Scenario::make(8).flags());
}

TEST(Scenario, SaysAsFlagsWhatItIs) {
  Scenario scenario{.seed = 7, .transfers = 3, .incidents = 0, .producers = 1, .consumers = 2};
  scenario.allowed[static_cast<std::size_t>(Trouble::kCut)] = true;
  scenario.allowed[static_cast<std::size_t>(Trouble::kRetry)] = true;

  EXPECT_EQ(scenario.flags(), "--seed 7 --transfers 3 --incidents 0 --producers 1 --consumers 2 --troubles=cut,retry");
}

TEST(Scenario, NamesOfTroublesCanBeReadBack) {
  for (std::size_t index = 0; index < kTroubleCount; ++index) {
    const auto read = parse_troubles(trouble_name(static_cast<Trouble>(index)));
    ASSERT_TRUE(read.has_value());
    Troubles expected{};
    expected[index] = true;
    EXPECT_EQ(*read, expected);
  }
  EXPECT_EQ(parse_troubles("none"), Troubles{});
  EXPECT_EQ(parse_troubles("cut,cat").error().code, ErrorCode::kBadParams);
}

TEST(Shrink, LeavesOutWhatIsNotNeeded) {
  const auto fails = [](const Scenario& scenario) {
    return scenario.transfers > 12 && scenario.incidents > 30 && scenario.consumers > 1 &&
           scenario.allows(Trouble::kStop) && scenario.allows(Trouble::kAbort);
  };

  const Scenario small = shrink(everything(), fails);

  EXPECT_EQ(small.flags(), "--seed 7 --transfers 13 --incidents 31 --producers 1 --consumers 2 --troubles=stop,abort");
}

TEST(Shrink, LeavesOutWhatIsNeededOnlyForSomethingThatIsNot) {
  // Transfers are needed as long as there is a third producer.
  const auto fails = [](const Scenario& scenario) { return scenario.producers < 3 || scenario.transfers > 50; };

  const Scenario small = shrink(everything(), fails);

  EXPECT_EQ(small.flags(), "--seed 7 --transfers 0 --incidents 0 --producers 1 --consumers 1 --troubles=none");
}

}  // namespace
}  // namespace kvpush::sim
