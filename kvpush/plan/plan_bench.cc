// Planning and expanding one prompt whose bytes are a few large descriptors or many small ones: 59 layers with keys and
// values apart, 160 blocks of 16 tokens, 8 heads of 256 bytes.
#include <benchmark/benchmark.h>

#include <string>

#include "kvpush/base/limits.h"
#include "kvpush/plan/plan.h"

namespace kvpush {
namespace {

constexpr std::uint32_t kLayers = 59;
constexpr std::uint32_t kBlocks = 160;
constexpr std::uint32_t kBlockTokens = 16;
constexpr std::uint32_t kHeads = 8;
constexpr std::uint64_t kInnerBytes = 256;
constexpr std::uint64_t kPageBytes = kBlockTokens * kHeads * kInnerBytes;

// Every (layer, component) in an allocation of its own. Uneven ones are no constant step apart, so each is planned by
// itself.
RankLayout make_layout(std::uint64_t base, bool even) {
  RankLayout layout;
  for (std::uint32_t i = 0; i < 2 * kLayers; ++i) {
    layout.planes.push_back({.layer = "layer" + std::to_string(i / 2),
                             .component = i % 2 == 0 ? Component::kKey : Component::kValue,
                             .dtype = "bfloat16",
                             .element_bytes = 2,
                             .block_tokens = kBlockTokens,
                             .block_count = 2 * kBlocks,
                             .heads = {0, kHeads, kHeads},
                             .base = base,
                             .block_stride_bytes = kPageBytes,
                             .head_stride_bytes = kInnerBytes,
                             .token_stride_bytes = kHeads * kInnerBytes,
                             .inner_bytes = kInnerBytes});
    base += (4 * kBlocks + (even ? 0 : i * i)) * kPageBytes;
  }
  return layout;
}

// Consecutive ids, or every second one so that no two blocks adjoin.
BlockTables make_tables(bool contiguous) {
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < kBlocks; ++i) blocks.push_back(BlockId{contiguous ? i : 2 * i});
  return {pack(blocks)};
}

void plan_and_expand(benchmark::State& state, bool contiguous, bool even) {
  const RankLayout producer = make_layout(std::uint64_t{1} << 40, even);
  const RankLayout consumer = make_layout(std::uint64_t{1} << 44, even);
  const PairPlan plan = PairPlan::make(producer, consumer, assign(consumer, 0, std::span(&producer, 1))->front());
  const BlockTables tables = make_tables(contiguous);
  std::vector<Run> runs;
  std::vector<Descriptor> batch;
  std::uint64_t descriptors = 0;
  for (auto _ : state) {
    if (!plan.plan({0, kBlocks * kBlockTokens}, tables, tables, runs)) state.SkipWithError("the plan was refused");
    Cursor cursor;
    while (!cursor.at_end(runs)) {
      batch.clear();
      cursor.take(std::span<const Run>(runs), kBatchDescriptorsMax, ~std::uint64_t{0}, batch);
      benchmark::DoNotOptimize(batch.data());
      descriptors += batch.size();
    }
  }
  const auto per_plan = static_cast<double>(descriptors) / static_cast<double>(state.iterations());
  state.counters["descriptors"] = per_plan;
  state.counters["runs"] = static_cast<double>(runs.size());
  state.counters["bytes"] = static_cast<double>(bytes(runs));
  state.counters["time_per_descriptor"] =
      benchmark::Counter(static_cast<double>(descriptors), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(plan_and_expand, contiguous_blocks_even_layers, true, true);
BENCHMARK_CAPTURE(plan_and_expand, contiguous_blocks_uneven_layers, true, false);
BENCHMARK_CAPTURE(plan_and_expand, separate_blocks_even_layers, false, true);
BENCHMARK_CAPTURE(plan_and_expand, separate_blocks_uneven_layers, false, false);

}  // namespace
}  // namespace kvpush
