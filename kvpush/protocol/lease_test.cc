#include "kvpush/protocol/lease.h"

#include <chrono>

#include <gtest/gtest.h>

namespace kvpush {
namespace {

using namespace std::chrono_literals;

constexpr Instant kAsked{100s};
constexpr Duration kTerm = 6s;
constexpr Duration kMargin = 1s;

// Needed from the start, and asked for then.
Lease needed() {
  Lease lease(kTerm, kMargin);
  lease.need(kAsked);
  lease.ask(kAsked);
  return lease;
}

TEST(Lease, IsNotLiveBeforeItsFirstAnswer) {
  EXPECT_FALSE(Lease().is_live(kAsked));
  EXPECT_FALSE(needed().is_live(kAsked));
}

TEST(Lease, EndsItsMarginBeforeItsTermCountedFromTheStampAndNotFromTheAnswer) {
  Lease lease = needed();

  ASSERT_TRUE(lease.answer(kAsked));  // however late it is

  EXPECT_TRUE(lease.is_live(kAsked + kTerm - kMargin - 1ns));
  EXPECT_FALSE(lease.is_live(kAsked + kTerm - kMargin));
}

TEST(Lease, RefusesAnswersToWhatWasNeverAsked) {
  EXPECT_FALSE(Lease(kTerm, kMargin).answer(kAsked));
  EXPECT_FALSE(needed().answer(kAsked + 1ns));
  EXPECT_FALSE(needed().answer(Instant::max()));
  EXPECT_FALSE(needed().answer(kAsked - 1ns));
  EXPECT_FALSE(needed().answer(Instant::min()));  // now - stamp would overflow: the lease would live for ever
}

TEST(Lease, IsNotShortenedByAnswersThatComeAgain) {
  Lease lease = needed();
  lease.ask(kAsked + 2s);
  ASSERT_TRUE(lease.answer(kAsked + 2s));

  EXPECT_TRUE(lease.answer(kAsked));

  EXPECT_TRUE(lease.is_live(kAsked + 2s + kTerm - kMargin - 1ns));
}

TEST(Lease, WantsRenewalThreeTimesInATerm) {
  Lease lease = needed();

  EXPECT_EQ(lease.due(), kAsked + 2s);
  EXPECT_FALSE(lease.wants_renewal(kAsked + 2s - 1ns));
  EXPECT_TRUE(lease.wants_renewal(kAsked + 2s));
  lease.ask(kAsked + 2s);
  EXPECT_FALSE(lease.wants_renewal(kAsked + 2s));
  EXPECT_EQ(lease.due(), kAsked + 4s);
}

TEST(Lease, LapsesBeforeTheConsumerCountsAsSilent) {
  Lease lease = needed();
  lease.ask(kAsked + 2s);
  ASSERT_TRUE(lease.answer(kAsked));
  lease.ask(kAsked + 5s);

  EXPECT_FALSE(lease.has_lapsed(kAsked + kTerm - kMargin - 1ns));
  EXPECT_TRUE(lease.has_lapsed(kAsked + kTerm - kMargin));
  EXPECT_FALSE(lease.is_silent(kAsked + kTerm - 1ns));
  EXPECT_TRUE(lease.is_silent(kAsked + kTerm));
  EXPECT_EQ(lease.due(), kAsked + kTerm) << "before the next renewal";
}

TEST(Lease, HoldsNoSilenceAgainstAConsumerThatWasNotAsked) {
  Lease lease = needed();
  ASSERT_TRUE(lease.answer(kAsked));
  lease.rest();

  const Instant later = kAsked + 10 * kTerm;
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
