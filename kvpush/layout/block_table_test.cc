#include "kvpush/layout/block_table.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

TEST(BlockTable, PacksConsecutiveIdsIntoOneSpan) {
  const std::vector<BlockId> blocks{{4}, {5}, {6}, {2}, {1}, {2}};

  const BlockTable table = pack(blocks);

  EXPECT_EQ(table, (BlockTable{{{BlockId{4}, 3}, {BlockId{2}, 1}, {BlockId{1}, 2}}}));
  EXPECT_EQ(table.block_count(), 6u);
}

TEST(BlockTable, PacksNeighbouringAbsentBlocksIntoOneSpan) {
  const std::vector<BlockId> blocks{kAbsentBlock, kAbsentBlock, {0}, kAbsentBlock};

  EXPECT_EQ(pack(blocks), (BlockTable{{{kAbsentBlock, 2}, {BlockId{0}, 1}, {kAbsentBlock, 1}}}));
}

TEST(BlockTable, KeepsTheLargestIdApartFromAbsentBlocks) {
  const std::vector<BlockId> blocks{{0xfffffffe}, kAbsentBlock, {0}};

  EXPECT_EQ(pack(blocks), (BlockTable{{{BlockId{0xfffffffe}, 1}, {kAbsentBlock, 1}, {BlockId{0}, 1}}}));
}

TEST(BlockTable, GrowsItsLastSpanByIdsThatContinueIt) {
  const std::vector<BlockId> more{{9}, {10}, {3}};
  BlockTable table{{{BlockId{7}, 2}}};

  append(table, more);

  EXPECT_EQ(table, (BlockTable{{{BlockId{7}, 4}, {BlockId{3}, 1}}}));
}

TEST(BlockTable, IsEmptyForNoBlocks) {
  EXPECT_TRUE(pack({}).spans.empty());
  EXPECT_EQ(BlockTable{}.block_count(), 0u);
}

}  // namespace
}  // namespace kvpush
