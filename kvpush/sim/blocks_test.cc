#include "kvpush/sim/blocks.h"

#include <gtest/gtest.h>

namespace kvpush::sim {
namespace {

constexpr std::uint32_t kBlocks = 16;

class BlocksOfOneRank : public ::testing::Test {
 protected:
  // Of a block in the first plane, and one whole block of it.
  std::uint64_t address_of(std::uint32_t block) const { return plane().base + block * plane().block_stride_bytes; }
  const Plane& plane() const { return blocks_.layout().planes.front(); }
  std::uint64_t block_bytes() const { return plane().block_stride_bytes; }

  Blocks blocks_{1, 0, 1, "bfloat16", {.block_count = kBlocks, .heads_total = 2}};
};

TEST_F(BlocksOfOneRank, KnowTheHolderOfEveryByte) {
  const auto first = blocks_.hold(8, Choice::kConsecutive, 0);
  const auto second = blocks_.hold(4, Choice::kConsecutive, 0);

  EXPECT_EQ(blocks_.holder_of(address_of(1), block_bytes()), first->holder);
  EXPECT_EQ(blocks_.holder_of(address_of(0), 2 * block_bytes()), first->holder);
  EXPECT_EQ(blocks_.holder_of(address_of(2) + block_bytes() - 1, 1), second->holder);
  EXPECT_EQ(blocks_.holder_of(address_of(3), 1), kNobody);
}

TEST_F(BlocksOfOneRank, BytesOfTwoHoldersAreNobodys) {
  blocks_.hold(4, Choice::kConsecutive, 0);
  blocks_.hold(4, Choice::kConsecutive, 0);

  EXPECT_EQ(blocks_.holder_of(address_of(1) - 1, 2), kNobody);
}

TEST_F(BlocksOfOneRank, BytesThatLeaveTheirPlaneAreNobodys) {
  const auto all = blocks_.hold(kBlocks * Blocks::kBlockTokens, Choice::kConsecutive, 0);
  const std::uint64_t end = address_of(kBlocks * static_cast<std::uint32_t>(blocks_.layout().planes.size()));

  EXPECT_EQ(blocks_.holder_of(address_of(kBlocks) - 1, 1), all->holder);
  EXPECT_EQ(blocks_.holder_of(address_of(kBlocks) - 1, 2), kNobody);
  EXPECT_EQ(blocks_.holder_of(end - 1, 2), kNobody);
}

TEST_F(BlocksOfOneRank, ThatAreTakenAgainHaveAnotherHolder) {
  const auto first = blocks_.hold(4, Choice::kConsecutive, 0);
  blocks_.give_back(*first);
  const auto second = blocks_.hold(4, Choice::kConsecutive, blocks_.freed_last());

  EXPECT_EQ(second->blocks, first->blocks);
  EXPECT_NE(second->holder, first->holder);
}

TEST_F(BlocksOfOneRank, AreEqualOnlyToTheWholePromptTheyWereFilledWith) {
  const auto held = blocks_.hold(8, Choice::kScattered, 0);
  blocks_.fill(*held, "x1", {2, 8});

  EXPECT_TRUE(blocks_.equals(*held, "x1", {2, 8}));
  EXPECT_FALSE(blocks_.equals(*held, "x1", {1, 8}));
  EXPECT_FALSE(blocks_.equals(*held, "x2", {2, 8}));
  EXPECT_TRUE(blocks_.is_untouched(*held, {0, 2}));
  EXPECT_FALSE(blocks_.is_untouched(*held, {0, 3}));
}

TEST_F(BlocksOfOneRank, AreNotGivenOutWhenThereAreTooFew) {
  EXPECT_TRUE(blocks_.hold(kBlocks * Blocks::kBlockTokens - 4, Choice::kScattered, 5).has_value());
  EXPECT_FALSE(blocks_.hold(5, Choice::kConsecutive, 0).has_value());
  EXPECT_TRUE(blocks_.hold(4, Choice::kConsecutive, 0).has_value());
}

}  // namespace
}  // namespace kvpush::sim
