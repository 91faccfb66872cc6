#include "kvpush/standin/kv.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvpush {
namespace {

constexpr KvShape kShape{.layers = 2, .heads = 2, .row_bytes = 16, .block_tokens = 4, .block_count = 8};
const std::vector<BlockId> kBlocks{BlockId{5}, BlockId{2}};
const std::vector<BlockId> kOtherBlocks{BlockId{0}, BlockId{7}};

std::vector<PrefixKey> keys_of(const char* prompt) {
  return prefix_keys(tokens_of(prompt));
}

void compute(KvCache& cache, const std::vector<PrefixKey>& keys, const std::vector<BlockId>& blocks) {
  cache.compute({0, static_cast<std::uint32_t>(keys.size())}, keys, blocks);
}

TEST(KvCache, ReadsWhatItComputed) {
  KvCache cache(kShape);
  const auto keys = keys_of("prompt");
  compute(cache, keys, kBlocks);

  EXPECT_FALSE(cache.read(keys, kBlocks).wrong);
}

TEST(KvCache, GivesOneDigestToOnePromptInAnyBlocks) {
  KvCache cache(kShape);
  const auto keys = keys_of("prompt");
  compute(cache, keys, kBlocks);
  compute(cache, keys, kOtherBlocks);

  EXPECT_EQ(cache.read(keys, kBlocks).digest, cache.read(keys, kOtherBlocks).digest);
}

TEST(KvCache, ComputesInPiecesWhatItComputesAtOnce) {
  KvCache cache(kShape);
  const auto keys = keys_of("prompt");
  compute(cache, keys, kBlocks);

  cache.compute({0, 3}, keys, kOtherBlocks);
  cache.compute({3, 6}, keys, kOtherBlocks);

  EXPECT_EQ(cache.read(keys, kOtherBlocks).digest, cache.read(keys, kBlocks).digest);
}

TEST(KvCache, ReadsOtherDigestsFromOtherPrompts) {
  KvCache cache(kShape);
  compute(cache, keys_of("prompt"), kBlocks);
  compute(cache, keys_of("Prompt"), kOtherBlocks);

  EXPECT_NE(cache.read(keys_of("prompt"), kBlocks).digest, cache.read(keys_of("Prompt"), kOtherBlocks).digest);
}

TEST(KvCache, FindsEachByteThatIsNotWhatItMustBeAndReadsAnotherDigest) {
  KvCache cache(kShape);
  const auto keys = keys_of("eight888");
  compute(cache, keys, kBlocks);
  const std::uint64_t right = cache.read(keys, kBlocks).digest;

  for (const BlockId block : kBlocks) {
    for (std::uint64_t offset = 0; offset < cache.block_bytes(); ++offset) {
      ASSERT_TRUE(cache.invert(block, offset));
      const KvCache::Reading reading = cache.read(keys, kBlocks);
      ASSERT_TRUE(reading.wrong) << "byte " << offset << " of block " << block.value;
      ASSERT_EQ(reading.wrong->block, block);
      ASSERT_NE(reading.digest, right);
      ASSERT_TRUE(cache.invert(block, offset));
    }
  }
  EXPECT_FALSE(cache.read(keys, kBlocks).wrong);
}

TEST(KvCache, NamesTheWrongRow) {
  KvCache cache(kShape);
  const auto keys = keys_of("prompt");
  compute(cache, keys, kBlocks);
  // Layers are apart by 2 heads x 2 components x 4 tokens x 16 bytes; then head 1, its V, and slot 1.
  const std::uint64_t offset = 256 + (2 * 1 + 1) * 64 + 1 * 16;
  ASSERT_TRUE(cache.invert(kBlocks[1], offset));

  const std::optional<WrongRow> wrong = cache.read(keys, kBlocks).wrong;

  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->block, kBlocks[1]);
  EXPECT_EQ(wrong->token, 5u);
  EXPECT_EQ(wrong->layer, "layers.1");
  EXPECT_EQ(wrong->component, Component::kValue);
  EXPECT_EQ(wrong->head, 1u);
}

TEST(KvCache, FindsBlocksInTheWrongOrderAndWhatWasNeverWritten) {
  KvCache cache(kShape);
  const auto keys = keys_of("eight888");
  compute(cache, keys, kBlocks);

  EXPECT_TRUE(cache.read(keys, std::vector{kBlocks[1], kBlocks[0]}).wrong);

  cache.wipe(kBlocks[1]);
  const std::optional<WrongRow> wrong = cache.read(keys, kBlocks).wrong;
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->token, 4u);
}

TEST(KvCache, HasALayoutWhosePlanesItsMemoryHolds) {
  const KvCache cache(kShape);

  const RankLayout layout = cache.layout();

  ASSERT_TRUE(validate(layout));
  std::uint64_t bytes = 0;
  for (const Plane& plane : layout.planes) {
    const MemoryRange range = extent(plane);
    EXPECT_GE(range.base, cache.memory().base);
    EXPECT_LE(range.base + range.size_bytes, cache.memory().base + cache.memory().size_bytes);
    bytes += std::uint64_t{plane.block_count} * plane.block_tokens * plane.heads.count * plane.inner_bytes;
  }
  EXPECT_EQ(bytes, cache.memory().size_bytes) << "every byte belongs to a plane";
}

TEST(KvCache, HasNoBytesBeyondItsBlocks) {
  KvCache cache(kShape);

  EXPECT_FALSE(cache.invert(BlockId{8}, 0));
  EXPECT_FALSE(cache.invert(BlockId{0}, cache.block_bytes()));
}

}  // namespace
}  // namespace kvpush
