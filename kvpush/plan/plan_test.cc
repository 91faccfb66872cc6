#include "kvpush/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <ostream>
#include <string>

namespace {

std::size_t allocations = 0;

}  // namespace

// Counts what this program allocates, for the promise that planning does not. Inlined, g++ takes the pair for a
// mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace kvpush {

void PrintTo(const Run& run, std::ostream* out) {
  *out << "Run{" << run.local << " -> " << run.remote << ", " << run.count << " x " << run.length_bytes << ", strides "
       << run.local_stride_bytes << ", " << run.remote_stride_bytes << "}";
}

namespace {

using Runs = std::vector<Run>;  // inside a test, Run is a name of GoogleTest

// Two heads of 8 bytes in blocks of 4 tokens; each head of a block has its keys, then its values. A page is 128 bytes.
constexpr std::uint64_t kPageBytes = 128;

RankLayout paged(const std::vector<std::uint64_t>& bases, std::uint32_t block_count = 16) {
  RankLayout layout;
  for (std::size_t i = 0; i < bases.size(); ++i) {
    Plane plane{.layer = "layer" + std::to_string(i),
                .component = Component::kKey,
                .dtype = "bfloat16",
                .element_bytes = 2,
                .block_tokens = 4,
                .block_count = block_count,
                .heads = {0, 2, 2},
                .base = bases[i],
                .block_stride_bytes = kPageBytes,
                .head_stride_bytes = 64,
                .token_stride_bytes = 8,
                .inner_bytes = 8};
    layout.planes.push_back(plane);
    plane.component = Component::kValue;
    plane.base += 32;
    layout.planes.push_back(plane);
  }
  return layout;
}

// One layer without heads: a row of 16 bytes for each token, tokens and blocks without gaps.
RankLayout latent(std::uint64_t base, std::uint32_t block_tokens, std::uint32_t block_count = 16) {
  return {{{.layer = "layer0",
            .component = Component::kLatent,
            .dtype = "bfloat16",
            .element_bytes = 2,
            .block_tokens = block_tokens,
            .block_count = block_count,
            .heads = {0, 1, 1},
            .base = base,
            .block_stride_bytes = std::uint64_t{16} * block_tokens,
            .token_stride_bytes = 16,
            .inner_bytes = 16}}};
}

BlockTables table(const std::vector<std::uint32_t>& ids) {
  std::vector<BlockId> blocks;
  for (const std::uint32_t id : ids) blocks.push_back(BlockId{id});
  return {pack(blocks)};
}

constexpr std::uint32_t kAbsent = kAbsentBlock.value;

PairPlan make(const RankLayout& producer, const RankLayout& consumer) {
  const auto assignments = assign(consumer, 0, std::span(&producer, 1));
  EXPECT_TRUE(validate(producer) && validate(consumer) && assignments);
  return PairPlan::make(producer, consumer, assignments->front());
}

Runs runs_of(const PairPlan& plan, TokenRange tokens, const BlockTables& producer, const BlockTables& consumer) {
  Runs runs;
  const Result<void> planned = plan.plan(tokens, producer, consumer, runs);
  EXPECT_TRUE(planned.has_value()) << planned.error().what;
  return runs;
}

TEST(PairPlan, MovesContiguousBlocksOfEvenlySpacedLayersInOneRun) {
  const PairPlan plan = make(paged({10'000, 20'000, 30'000}), paged({100'000, 105'000, 110'000}));

  const auto runs = runs_of(plan, {0, 16}, table({5, 6, 7, 8}), table({2, 3, 4, 5}));

  const Runs whole_pages{{.local = 10'000 + 5 * kPageBytes,
                          .remote = 100'000 + 2 * kPageBytes,
                          .count = 3,
                          .local_stride_bytes = 10'000,
                          .remote_stride_bytes = 5'000,
                          .length_bytes = 4 * kPageBytes}};
  EXPECT_EQ(runs, whole_pages);
}

// Shows D8.
TEST(PairPlan, MovesScatteredBlocksInOneRunEachOverAllLayers) {
  const PairPlan plan = make(paged({10'000, 20'000, 30'000}), paged({100'000, 105'000, 110'000}));

  const auto runs = runs_of(plan, {0, 8}, table({9, 1}), table({3, 0}));

  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].local, 10'000 + 9 * kPageBytes);
  EXPECT_EQ(runs[0].remote, 100'000 + 3 * kPageBytes);
  EXPECT_EQ(runs[1].local, 10'000 + 1 * kPageBytes);
  EXPECT_EQ(runs[1].remote, 100'000u);
  for (const auto& run : runs) {
    EXPECT_EQ(run.count, 3u);
    EXPECT_EQ(run.length_bytes, kPageBytes);
  }
}

TEST(PairPlan, StepsBackwardsWhereTheConsumersLayersAreInReverse) {
  const PairPlan plan = make(paged({10'000, 20'000, 30'000}), paged({110'000, 105'000, 100'000}));

  const auto runs = runs_of(plan, {0, 4}, table({0}), table({0}));

  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].remote, 110'000u);
  EXPECT_EQ(runs[0].remote_stride_bytes, -5'000);
}

TEST(PairPlan, MovesUnevenlySpacedLayersToo) {
  const PairPlan plan = make(paged({10'000, 20'000, 90'000}), paged({100'000, 105'000, 110'000}));

  auto runs = runs_of(plan, {0, 4}, table({0}), table({0}));

  std::ranges::sort(runs, {}, &kvpush::Run::local);
  const Runs a_pair_and_one{{.local = 10'000,
                             .remote = 100'000,
                             .count = 2,
                             .local_stride_bytes = 10'000,
                             .remote_stride_bytes = 5'000,
                             .length_bytes = kPageBytes},
                            {.local = 90'000, .remote = 110'000, .count = 1, .length_bytes = kPageBytes}};
  EXPECT_EQ(runs, a_pair_and_one);
}

// Shows D1.
TEST(PairPlan, CopiesOnlyTheTokensAskedForOfABlock) {
  const PairPlan plan = make(paged({10'000}), paged({100'000}));

  const auto runs = runs_of(plan, {1, 3}, table({2}), table({7}));

  const Runs keys_and_values_of_both_heads{{.local = 10'000 + 2 * kPageBytes + 8,
                                            .remote = 100'000 + 7 * kPageBytes + 8,
                                            .count = 4,
                                            .local_stride_bytes = 32,
                                            .remote_stride_bytes = 32,
                                            .length_bytes = 16}};
  EXPECT_EQ(runs, keys_and_values_of_both_heads);
}

// Shows D2.
TEST(PairPlan, SplitsAtTheFinerOfTwoBlockSizes) {
  const PairPlan plan = make(latent(1'000, 2), latent(50'000, 4));

  const auto runs = runs_of(plan, {0, 8}, table({4, 0, 2, 7}), table({1, 0}));

  std::vector<Descriptor> descriptors;
  Cursor{}.take(runs, 16, 1'000'000, descriptors);
  const std::vector<Descriptor> one_for_each_block_of_two{
      {1'128, 50'064, 32}, {1'000, 50'096, 32}, {1'064, 50'000, 32}, {1'224, 50'032, 32}};
  EXPECT_EQ(descriptors, one_for_each_block_of_two);
}

TEST(PairPlan, MergesContiguousBlocksOfDifferentSizes) {
  for (const auto& [producer_tokens, consumer_tokens] : {std::pair(2u, 4u), std::pair(4u, 2u)}) {
    const PairPlan plan = make(latent(1'000, producer_tokens), latent(50'000, consumer_tokens));

    const auto runs = runs_of(plan, {0, 8}, table({0, 1, 2, 3}), table({0, 1, 2, 3}));

    const Runs all_at_once{{.local = 1'000, .remote = 50'000, .count = 1, .length_bytes = 8 * 16}};
    EXPECT_EQ(runs, all_at_once);
  }
}

TEST(PairPlan, FillsUpALargerBlockBeforeItTakesWholeOnes) {
  // Pages end with a gap, so that neither blocks nor their parts merge.
  RankLayout producer = latent(1'000, 2);
  RankLayout consumer = latent(50'000, 4);
  producer.planes[0].block_stride_bytes = 40;
  consumer.planes[0].block_stride_bytes = 100;
  const PairPlan plan = make(producer, consumer);

  const auto runs = runs_of(plan, {2, 12}, table({0, 1, 2, 3, 4, 5}), table({0, 1, 2}));

  std::vector<Descriptor> descriptors;
  Cursor{}.take(runs, 16, 1'000'000, descriptors);
  std::ranges::sort(descriptors, {}, &Descriptor::local);
  const std::vector<Descriptor> one_for_each_block_of_two{
      {1'040, 50'032, 32}, {1'080, 50'100, 32}, {1'120, 50'132, 32}, {1'160, 50'200, 32}, {1'200, 50'232, 32}};
  EXPECT_EQ(descriptors, one_for_each_block_of_two);
}

TEST(PairPlan, PairsConsecutiveBlocksOfSizesThatDoNotDivide) {
  RankLayout consumer = latent(50'000, 3);
  consumer.planes[0].block_stride_bytes = 100;
  const PairPlan plan = make(latent(1'000, 2), consumer);

  const auto runs = runs_of(plan, {0, 12}, table({0, 1, 2, 3, 4, 5}), table({0, 1, 2, 3}));

  std::vector<Descriptor> descriptors;
  Cursor{}.take(runs, 16, 1'000'000, descriptors);
  const std::vector<Descriptor> pieces{{1'000, 50'000, 32}, {1'032, 50'032, 16}, {1'048, 50'100, 16},
                                       {1'064, 50'116, 32}, {1'096, 50'200, 32}, {1'128, 50'232, 16},
                                       {1'144, 50'300, 16}, {1'160, 50'316, 32}};
  EXPECT_EQ(descriptors, pieces);
}

// Shows D2.
TEST(PairPlan, PairsBlockSizesThatDoNotDivide) {
  const PairPlan plan = make(latent(1'000, 2), latent(50'000, 3));

  const auto runs = runs_of(plan, {1, 5}, table({3, 1, 0}), table({0, 2}));

  std::vector<Descriptor> descriptors;
  Cursor{}.take(runs, 16, 1'000'000, descriptors);
  const std::vector<Descriptor> pieces{
      {1'112, 50'016, 16}, {1'032, 50'032, 16}, {1'048, 50'096, 16}, {1'000, 50'112, 16}};
  EXPECT_EQ(descriptors, pieces);
}

// Shows D6.
TEST(PairPlan, SkipsTokensWhoseBlockIsAbsentOnTheConsumer) {
  const PairPlan plan = make(latent(1'000, 4), latent(50'000, 4));
  const BlockTables consumer = table({kAbsent, kAbsent, 5});

  const auto runs = runs_of(plan, {0, 12}, table({kAbsent, 1, 2}), consumer);

  const Runs last_block{{.local = 1'128, .remote = 50'320, .count = 1, .length_bytes = 64}};
  EXPECT_EQ(runs, last_block);
  EXPECT_EQ(plan.bytes_expected({0, 12}, consumer), 64u);
}

TEST(PairPlan, MakesNoRunsForNoTokens) {
  const PairPlan plan = make(latent(1'000, 4), latent(50'000, 4));

  EXPECT_TRUE(runs_of(plan, {3, 3}, {}, {}).empty());
  EXPECT_EQ(plan.bytes_expected({3, 3}, {}), 0u);
}

TEST(PairPlan, RefusesTablesThatCannotServeTheTokens) {
  const PairPlan plan = make(latent(1'000, 4), latent(50'000, 4));
  const BlockTables good = table({0, 1});
  const BlockTables wraps = {{{{.first = BlockId{0xfffffffe}, .count = 2}}}};
  const struct {
    const char* what;
    TokenRange tokens;
    BlockTables producer;
    BlockTables consumer;
  } cases[] = {
      {"a range that ends before it begins", {5, 4}, good, good},
      {"no producer table", {0, 4}, {}, good},
      {"no consumer table", {0, 4}, good, {}},
      {"a short producer table", {0, 5}, table({0}), good},
      {"a short consumer table", {0, 5}, good, table({0})},
      {"a producer block past the plane", {0, 8}, table({0, 16}), good},
      {"a consumer block past the plane", {0, 8}, good, table({0, 16})},
      {"ids that wrap around", {0, 8}, good, wraps},
      {"a consumer block that the producer lacks", {0, 8}, table({0, kAbsent}), good},
  };
  for (const auto& bad : cases) {
    Runs runs(3);

    const Result<void> planned = plan.plan(bad.tokens, bad.producer, bad.consumer, runs);

    ASSERT_FALSE(planned.has_value()) << bad.what;
    EXPECT_EQ(planned.error().code, ErrorCode::kBadMessage) << bad.what;
    EXPECT_TRUE(runs.empty()) << bad.what;
  }
}

TEST(PairPlan, ExpectsNothingOfTablesThatCannotServeTheTokens) {
  const PairPlan plan = make(latent(1'000, 4), latent(50'000, 4));

  EXPECT_FALSE(plan.bytes_expected({5, 4}, table({0, 1})).has_value());
  EXPECT_FALSE(plan.bytes_expected({0, 9}, table({0, 1})).has_value());
  EXPECT_FALSE(plan.bytes_expected({0, 8}, table({0, 16})).has_value());
  EXPECT_FALSE(plan.bytes_expected({0, 8}, {}).has_value());
}

TEST(PairPlan, ReadsSpansOfNoBlocksAsNothing) {
  const PairPlan plan = make(latent(1'000, 4), latent(50'000, 4));
  const BlockTables gaps = {{{{.first = BlockId{9}, .count = 0}, {.first = BlockId{3}, .count = 2}}}};

  const auto runs = runs_of(plan, {0, 8}, gaps, table({0, 1}));

  const Runs both_blocks{{.local = 1'192, .remote = 50'000, .count = 1, .length_bytes = 128}};
  EXPECT_EQ(runs, both_blocks);
}

TEST(PairPlan, UsesTheTableOfEachSidesOwnGroup) {
  RankLayout producer = latent(1'000, 4);
  RankLayout consumer = latent(50'000, 4);
  producer.planes[0].group = 1;
  const PairPlan plan = make(producer, consumer);

  const auto runs = runs_of(plan, {0, 4}, {{}, table({2})[0]}, table({3}));

  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].local, 1'128u);
  EXPECT_EQ(runs[0].remote, 50'192u);
}

TEST(PairPlan, IgnoresStridesThatNothingStepsAlong) {
  RankLayout producer = latent(1'000, 1, 1);
  RankLayout consumer = latent(50'000, 1, 1);
  for (Plane* plane : {&producer.planes[0], &consumer.planes[0]}) {
    plane->block_stride_bytes = plane->head_stride_bytes = plane->token_stride_bytes = ~std::uint64_t{0};
  }
  const PairPlan plan = make(producer, consumer);

  const auto runs = runs_of(plan, {0, 1}, table({0}), table({0}));

  const Runs one_row{{.local = 1'000, .remote = 50'000, .count = 1, .length_bytes = 16}};
  EXPECT_EQ(runs, one_row);
}

TEST(PairPlan, AllocatesNothingAfterWarmUp) {
  const PairPlan plan = make(paged({10'000, 20'000, 90'000}), paged({100'000, 105'000, 110'000}));
  const BlockTables producer = table({9, 1, 2, 3});
  const BlockTables consumer = table({3, 0, 1, 7});
  Runs runs;
  std::vector<Descriptor> batch;
  const auto plan_and_expand = [&] {
    ASSERT_TRUE(plan.plan({1, 15}, producer, consumer, runs).has_value());
    batch.clear();
    Cursor{}.take(runs, 512, 1 << 20, batch);
  };
  plan_and_expand();

  const std::size_t before = allocations;
  for (int i = 0; i < 10; ++i) plan_and_expand();

  EXPECT_EQ(allocations, before);
  EXPECT_FALSE(batch.empty());
}

class CursorTest : public testing::Test {
 protected:
  std::vector<Descriptor> take(std::size_t descriptors_max, std::uint64_t bytes_max) {
    std::vector<Descriptor> batch;
    taken_bytes_ = cursor_.take(runs_, descriptors_max, bytes_max, batch);
    return batch;
  }
  using Batch = std::vector<Descriptor>;

  Runs runs_{{.local = 100,
              .remote = 900,
              .count = 3,
              .local_stride_bytes = 10,
              .remote_stride_bytes = -20,
              .length_bytes = 8},
             {.local = 500, .remote = 700, .count = 1, .length_bytes = 6}};
  Cursor cursor_;
  std::uint64_t taken_bytes_ = 0;
};

TEST_F(CursorTest, ExpandsRunsInOrder) {
  EXPECT_EQ(take(10, 1000), (Batch{{100, 900, 8}, {110, 880, 8}, {120, 860, 8}, {500, 700, 6}}));
  EXPECT_EQ(taken_bytes_, 30u);
  EXPECT_TRUE(cursor_.at_end(runs_));
  EXPECT_TRUE(take(10, 1000).empty());
  EXPECT_EQ(taken_bytes_, 0u);
}

TEST_F(CursorTest, StopsAtTheMostDescriptorsAndGoesOnThere) {
  EXPECT_EQ(take(2, 1000), (Batch{{100, 900, 8}, {110, 880, 8}}));
  EXPECT_FALSE(cursor_.at_end(runs_));
  EXPECT_EQ(take(2, 1000), (Batch{{120, 860, 8}, {500, 700, 6}}));
}

TEST_F(CursorTest, KeepsCopiesThatFitABatchWhole) {
  EXPECT_EQ(take(10, 15), (Batch{{100, 900, 8}}));
  EXPECT_EQ(take(10, 16), (Batch{{110, 880, 8}, {120, 860, 8}}));
}

TEST_F(CursorTest, SplitsACopyLargerThanABatch) {
  EXPECT_EQ(take(10, 5), (Batch{{100, 900, 5}}));
  EXPECT_EQ(take(10, 5), (Batch{{105, 905, 3}, {110, 880, 2}}));
  EXPECT_EQ(taken_bytes_, 5u);
}

TEST_F(CursorTest, CanBePutBackByKeepingACopy) {
  take(1, 1000);
  const Cursor before = cursor_;
  const Batch first = take(2, 1000);

  cursor_ = before;

  EXPECT_EQ(take(2, 1000), first);
}

TEST_F(CursorTest, AppendsToABatchUpToItsMostDescriptors) {
  std::vector<Descriptor> batch{{1, 2, 3}};

  EXPECT_EQ(cursor_.take(runs_, 2, 1000, batch), 8u);

  EXPECT_EQ(batch, (Batch{{1, 2, 3}, {100, 900, 8}}));
}

}  // namespace
}  // namespace kvpush
