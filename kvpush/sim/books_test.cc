#include "kvpush/sim/books.h"

#include <chrono>

#include <gtest/gtest.h>

namespace kvpush::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kOutcomeTimeout = 60s;

// A producer that talks with one rank of a consumer that has two, in a first and a second session.
class Book : public ::testing::Test {
 protected:
  void hear(const ProducerBook::Talk& talk, const Message& message) { book_.heard(talk, message, now_); }
  bool accepts(const ProducerBook::Talk& talk, const Message& message) { return !book_.said(talk, message); }

  const ProducerBook::Talk first_{.consumer = {{7}, 0}, .rank_count = 2, .connection = {1}};
  const ProducerBook::Talk second_{.consumer = {{7}, 0}, .rank_count = 2, .connection = {2}};
  const ProducerBook::Talk other_rank_{.consumer = {{7}, 1}, .rank_count = 2, .connection = {3}};
  Instant now_{1s};
  ProducerBook book_{kOutcomeTimeout};
};

TEST_F(Book, AllowsOneOutcomeForEachRegistration) {
  hear(first_, Register{{1}, "x1", {}, {}});
  EXPECT_TRUE(accepts(first_, Delivered{{1}, 0, {}}));
  EXPECT_TRUE(accepts(second_, Delivered{{1}, 0, {}})) << "the same again";
  EXPECT_FALSE(accepts(second_, Failed{{1}, ErrorCode::kAborted, true}));
}

TEST_F(Book, DoesNotAllowADeliveryAfterRevoked) {
  EXPECT_TRUE(accepts(second_, Revoked{{1}}));
  hear(first_, Register{{1}, "x1", {}, {}});

  EXPECT_FALSE(accepts(second_, Delivered{{1}, 0, {}}));
}

TEST_F(Book, WantsTheOutcomeToldBeforeRevokedInTheSameSession) {
  hear(first_, Register{{1}, "x1", {}, {}});
  EXPECT_TRUE(accepts(first_, Delivered{{1}, 0, {}}));
  hear(second_, Revoke{{1}});

  EXPECT_FALSE(accepts(second_, Revoked{{1}}));
  EXPECT_TRUE(accepts(second_, Delivered{{1}, 0, {}}));
  EXPECT_TRUE(accepts(second_, Revoked{{1}}));
}

TEST_F(Book, LetsOutcomesBeForgottenAfterDoneOrALongSilence) {
  for (const std::uint64_t number : {1U, 2U}) {
    hear(first_, Register{{number}, "x1", {}, {}});
    EXPECT_TRUE(accepts(first_, Delivered{{number}, 0, {}}));
  }
  hear(first_, Done{{1}});
  EXPECT_TRUE(accepts(second_, Revoked{{1}}));

  now_ += kOutcomeTimeout;
  hear(second_, Revoke{{2}});
  EXPECT_TRUE(accepts(second_, Revoked{{2}}));
}

TEST_F(Book, ATransferIsCompleteWhenEachRankHasItsPartOrDeclinedIt) {
  hear(first_, Register{{1}, "x1", {}, {}});
  EXPECT_FALSE(book_.is_complete("x1"));
  EXPECT_TRUE(accepts(first_, Delivered{{1}, 0, {}}));
  EXPECT_FALSE(book_.is_complete("x1"));

  hear(other_rank_, Unwanted{"x1"});

  EXPECT_TRUE(book_.is_complete("x1"));
}

TEST_F(Book, KnowsWhoseBlocksMustNotBeWrittenAnyMore) {
  hear(first_, Register{{1}, "x1", {0, 8}, {BlockTable{{{BlockId{4}, 2}}}}});
  EXPECT_EQ(book_.stopped_at(first_, BlockId{5}), std::nullopt);

  hear(first_, Revoke{{1}});

  EXPECT_EQ(book_.stopped_at(first_, BlockId{5}), RegistrationNumber{1});
  EXPECT_EQ(book_.stopped_at(first_, BlockId{6}), std::nullopt);
  EXPECT_EQ(book_.stopped_at(second_, BlockId{5}), std::nullopt) << "another session's blocks";
  EXPECT_TRUE(accepts(first_, Revoked{{1}}));
  EXPECT_EQ(book_.stopped_at(first_, BlockId{5}), std::nullopt) << "they may be another registration's";
}

}  // namespace
}  // namespace kvpush::sim
