#include "kvpush/protocol/lease.h"

#include <chrono>

#include <gtest/gtest.h>

namespace kvpush {
namespace {

using namespace std::chrono_literals;

constexpr Instant kStart{100s};
constexpr Duration kTerm = 6s;
constexpr Duration kMargin = 1s;

// Needed from the start, and asked for then.
Lease needed() {
  Lease lease(kTerm, kMargin);
  lease.need(kStart);
  lease.ask(kStart);
  return lease;
}

TEST(Lease, IsNotLiveBeforeItsFirstAnswer) {
  EXPECT_FALSE(Lease().is_live(kStart));
  EXPECT_FALSE(needed().is_live(kStart));
}

TEST(Lease, EndsItsMarginBeforeItsTermCountedFromTheStampAndNotFromTheAnswer) {
  Lease lease = needed();

  ASSERT_TRUE(lease.answer(kStart));  // however late it is

  EXPECT_TRUE(lease.is_live(kStart + kTerm - kMargin - 1ns));
  EXPECT_FALSE(lease.is_live(kStart + kTerm - kMargin));
}

TEST(Lease, RefusesAnswersToWhatWasNeverAsked) {
  EXPECT_FALSE(Lease(kTerm, kMargin).answer(kStart));
  EXPECT_FALSE(needed().answer(kStart + 1ns));
  EXPECT_FALSE(needed().answer(Instant::max()));
}

TEST(Lease, IsNotShortenedByAnswersThatComeAgain) {
  Lease lease = needed();
  lease.ask(kStart + 2s);
  ASSERT_TRUE(lease.answer(kStart + 2s));

  EXPECT_TRUE(lease.answer(kStart));
  EXPECT_TRUE(lease.answer(Instant::min()));

  EXPECT_TRUE(lease.is_live(kStart + 2s + kTerm - kMargin - 1ns));
}

TEST(Lease, WantsRenewalThreeTimesInATerm) {
  Lease lease = needed();

  EXPECT_EQ(lease.due(), kStart + 2s);
  EXPECT_FALSE(lease.wants_renewal(kStart + 2s - 1ns));
  EXPECT_TRUE(lease.wants_renewal(kStart + 2s));
  lease.ask(kStart + 2s);
  EXPECT_FALSE(lease.wants_renewal(kStart + 2s));
  EXPECT_EQ(lease.due(), kStart + 4s);
}

TEST(Lease, LapsesBeforeTheConsumerCountsAsSilent) {
  Lease lease = needed();
  lease.ask(kStart + 2s);
  ASSERT_TRUE(lease.answer(kStart));
  lease.ask(kStart + 5s);

  EXPECT_FALSE(lease.has_lapsed(kStart + kTerm - kMargin - 1ns));
  EXPECT_TRUE(lease.has_lapsed(kStart + kTerm - kMargin));
  EXPECT_FALSE(lease.is_silent(kStart + kTerm - 1ns));
  EXPECT_TRUE(lease.is_silent(kStart + kTerm));
  EXPECT_EQ(lease.due(), kStart + kTerm) << "before the next renewal";
}

TEST(Lease, HoldsNoSilenceAgainstAConsumerThatWasNotAsked) {
  Lease lease = needed();
  ASSERT_TRUE(lease.answer(kStart));
  lease.rest();

  const Instant later = kStart + 10 * kTerm;
  EXPECT_FALSE(lease.is_silent(later));
  EXPECT_FALSE(lease.has_lapsed(later));
  lease.need(later);

  EXPECT_FALSE(lease.is_live(later));
  EXPECT_TRUE(lease.wants_renewal(later));
  EXPECT_FALSE(lease.has_lapsed(later + kTerm - kMargin - 1ns));
  EXPECT_FALSE(lease.is_silent(later + kTerm - 1ns));
  EXPECT_TRUE(lease.is_silent(later + kTerm));
}

}  // namespace
}  // namespace kvpush
