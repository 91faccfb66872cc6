#include "kvpush/transport/copy_queue.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kvpush/base/limits.h"

namespace kvpush {
namespace {

constexpr PeerId kPeer{1};
constexpr PeerId kOther{2};

std::uint64_t bytes_of(const Slice& slice) {
  return std::accumulate(slice.pieces.begin(), slice.pieces.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Descriptor& piece) { return sum + piece.length_bytes; });
}

std::vector<WriteCompletion> ends_of(CopyQueue& queue) {
  std::vector<WriteCompletion> ends;
  queue.hand_out(ends);
  return ends;
}

TEST(CopyQueue, CutsALargeDescriptorIntoSlicesThatMeet) {
  CopyQueue queue;
  const Descriptor large{0, 1000, kSliceBytesMax + 5};
  ASSERT_TRUE(queue.post(kPeer, {&large, 1}, WriteToken{7}));

  const Slice first = queue.next().value();
  ASSERT_EQ(first.pieces.size(), 1u);
  EXPECT_EQ(first.pieces[0], (Descriptor{0, 1000, kSliceBytesMax}));
  queue.advance(kPeer, kSliceBytesMax);
  EXPECT_FALSE(queue.has_ends());

  EXPECT_EQ(queue.next().value().pieces[0], (Descriptor{kSliceBytesMax, 1000 + kSliceBytesMax, 5}));
  queue.advance(kPeer, 5);
  EXPECT_FALSE(queue.next());
  EXPECT_EQ(ends_of(queue).size(), 1u);
}

TEST(CopyQueue, GoesOnWhereAPartialCopyStopped) {
  CopyQueue queue;
  const Descriptor batch[] = {{0, 100, 10}, {50, 0, 0}, {20, 200, 10}};
  ASSERT_TRUE(queue.post(kPeer, batch, WriteToken{7}));

  EXPECT_EQ(bytes_of(queue.next().value()), 20u);
  queue.advance(kPeer, 14);

  const Slice rest = queue.next().value();
  ASSERT_EQ(rest.pieces.size(), 1u);
  EXPECT_EQ(rest.pieces[0], (Descriptor{24, 204, 6}));
}

TEST(CopyQueue, TakesTurnsBetweenPeers) {
  CopyQueue queue;
  const Descriptor large{0, 0, 4 * kSliceBytesMax};
  const Descriptor small{0, 0, 1};
  ASSERT_TRUE(queue.post(kPeer, {&large, 1}, WriteToken{1}));
  ASSERT_TRUE(queue.post(kOther, {&small, 1}, WriteToken{2}));

  EXPECT_EQ(queue.next().value().peer, kPeer);
  queue.advance(kPeer, kSliceBytesMax);
  EXPECT_EQ(queue.next().value().peer, kOther);
  queue.advance(kOther, 1);
  EXPECT_EQ(queue.next().value().peer, kPeer);
}

TEST(CopyQueue, EndsABatchOfNoBytesWithoutASlice) {
  CopyQueue queue;
  const Descriptor empty{0, 0, 0};
  ASSERT_TRUE(queue.post(kPeer, {}, WriteToken{1}));
  ASSERT_TRUE(queue.post(kPeer, {&empty, 1}, WriteToken{2}));

  EXPECT_FALSE(queue.next());
  EXPECT_EQ(ends_of(queue).size(), 2u);
}

TEST(CopyQueue, FailsThePeersOwnBatchesOnly) {
  CopyQueue queue;
  const Descriptor small{0, 0, 1};
  ASSERT_TRUE(queue.post(kPeer, {&small, 1}, WriteToken{1}));
  ASSERT_TRUE(queue.post(kOther, {&small, 1}, WriteToken{2}));

  queue.fail_all(kPeer, {ErrorCode::kPeerLost, "gone"});

  const auto ends = ends_of(queue);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].token, WriteToken{1});
  EXPECT_EQ(ends[0].error->code, ErrorCode::kPeerLost);
  EXPECT_EQ(queue.next().value().peer, kOther);
}

TEST(CopyQueue, IsFullUntilAnEndWasHandedOut) {
  CopyQueue queue;
  for (std::size_t i = 0; i < kBatchesInFlightMax; ++i) ASSERT_TRUE(queue.post(kPeer, {}, WriteToken{i}));
  EXPECT_EQ(queue.post(kPeer, {}, WriteToken{99}).error().code, ErrorCode::kFull);
  EXPECT_TRUE(queue.post(kOther, {}, WriteToken{100})) << "another peer has room of its own";

  EXPECT_FALSE(queue.next());
  EXPECT_EQ(queue.post(kPeer, {}, WriteToken{99}).error().code, ErrorCode::kFull);
  ends_of(queue);
  EXPECT_TRUE(queue.post(kPeer, {}, WriteToken{99}));
}

}  // namespace
}  // namespace kvpush
