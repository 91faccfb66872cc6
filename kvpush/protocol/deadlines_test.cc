#include "kvpush/protocol/deadlines.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvpush {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Instant kStart{1h};

TEST(Deadlines, HaveNoNextWhenNoneIsSet) {
  const Deadlines<std::string> deadlines;

  EXPECT_EQ(deadlines.next(), std::nullopt);
}

TEST(Deadlines, AreTakenEarliestFirstAndOnlyWhenDue) {
  Deadlines<std::string> deadlines;
  deadlines.set("late", kStart + 3s);
  deadlines.set("first", kStart + 1s);
  deadlines.set("second", kStart + 2s);

  EXPECT_THAT(deadlines.take_due(kStart + 1s - 1ns), IsEmpty());
  EXPECT_THAT(deadlines.take_due(kStart + 2s), ElementsAre("first", "second"));

  EXPECT_EQ(deadlines.next(), kStart + 3s);
}

TEST(Deadlines, AreTakenOnce) {
  Deadlines<std::string> deadlines;
  deadlines.set("once", kStart);

  EXPECT_THAT(deadlines.take_due(kStart), ElementsAre("once"));

  EXPECT_THAT(deadlines.take_due(kStart), IsEmpty());
  EXPECT_EQ(deadlines.next(), std::nullopt);
}

TEST(Deadlines, AreReplacedBySettingTheKeyAgain) {
  Deadlines<std::string> deadlines;
  deadlines.set("moved", kStart + 1s);

  deadlines.set("moved", kStart + 5s);

  EXPECT_THAT(deadlines.take_due(kStart + 4s), IsEmpty());
  EXPECT_THAT(deadlines.take_due(kStart + 5s), ElementsAre("moved"));
}

TEST(Deadlines, StayAwayOnceCleared) {
  Deadlines<std::string> deadlines;
  deadlines.set("kept", kStart);
  deadlines.set("cleared", kStart);

  deadlines.clear("cleared");
  deadlines.clear("never set");

  EXPECT_THAT(deadlines.take_due(kStart), ElementsAre("kept"));
}

TEST(Deadlines, OfOneInstantAreAllTaken) {
  Deadlines<int> deadlines;
  deadlines.set(2, kStart);
  deadlines.set(1, kStart);

  EXPECT_THAT(deadlines.take_due(kStart), ElementsAre(1, 2));
}

}  // namespace
}  // namespace kvpush
