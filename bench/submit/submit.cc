// What an agent's thread does with a transfer, planning and posting, callable from Python and timed inside: ctypes
// calls it without the interpreter's lock, as the agent's thread runs. bench/submit/submit_kvpush.py calls it.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/common/pair.h"
#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/layout/assignment.h"
#include "kvpush/plan/plan.h"

namespace kvpush {
namespace {

constexpr std::uint32_t kBlockTokens = 16;

// Of submit_case.py: one plane a layer, each a row of pages at its offset.
struct Geometry {
  std::span<const std::uint64_t> offsets;
  std::uint32_t blocks = 0;
  std::uint32_t page_bytes = 0;
};

RankLayout layout_at(std::uint64_t base, const Geometry& geometry) {
  const std::uint32_t token_bytes = geometry.page_bytes / kBlockTokens;
  RankLayout layout;
  for (const std::uint64_t offset : geometry.offsets) {
    layout.planes.push_back({.layer = "layer" + std::to_string(layout.planes.size()),
                             .component = Component::kKey,
                             .dtype = "uint8",
                             .element_bytes = 1,
                             .block_tokens = kBlockTokens,
                             .block_count = geometry.blocks,
                             .heads = {},
                             .base = base + offset,
                             .block_stride_bytes = geometry.page_bytes,
                             .head_stride_bytes = token_bytes,
                             .token_stride_bytes = token_bytes,
                             .inner_bytes = token_bytes});
  }
  return layout;
}

// A session's plan, and what an agent keeps between transfers.
struct Submitter {
  explicit Submitter(const char* wish, std::size_t size_bytes) : pair(wish, size_bytes) {}

  void prepare(const Geometry& geometry) {
    const RankLayout producer = layout_at(reinterpret_cast<std::uint64_t>(pair.memory.data()), geometry);
    const RankLayout consumer = layout_at(pair.target_memory, geometry);
    const auto assignments = assign(consumer, 0, std::span(&producer, 1));
    KVPUSH_CHECK(assignments.has_value(), "equal layouts fit");
    plan = std::make_unique<PairPlan>(PairPlan::make(producer, consumer, assignments->front()));
  }

  Spent send(std::span<const BlockId> from, std::span<const BlockId> to) {
    const BlockTables producer{pack(from)};
    const BlockTables consumer{pack(to)};
    const TokenRange tokens{0, static_cast<std::uint32_t>(from.size()) * kBlockTokens};
    const auto begin = Clock::now();
    KVPUSH_CHECK(plan->plan(tokens, producer, consumer, runs), "the plan was refused");
    const Seconds planning = Clock::now() - begin;
    Cursor cursor;
    descriptors = 0;
    Spent spent = write_all(pair, [&] {
      batch.clear();
      cursor.take(runs, kBatchDescriptorsMax, kBatchBytesMax, batch);
      descriptors += batch.size();
      return std::span<const Descriptor>(batch);
    });
    spent.taking += planning;
    return spent;
  }

  Pair pair;
  std::unique_ptr<PairPlan> plan;
  std::vector<Run> runs;
  std::vector<Descriptor> batch;
  std::size_t descriptors = 0;  // of the last transfer
};

}  // namespace
}  // namespace kvpush

#define KVPUSH_EXPORT extern "C" __attribute__((visibility("default")))

// Null if the transport cannot be used here. Call before the process starts threads: it forks.
KVPUSH_EXPORT void* kvpush_submit_open(const char* transport, std::uint64_t size_bytes) {
  auto submitter = std::make_unique<kvpush::Submitter>(transport, size_bytes);
  return submitter->pair.transport == nullptr ? nullptr : submitter.release();
}

KVPUSH_EXPORT void kvpush_submit_prepare(void* submitter, const std::uint64_t* offsets, std::uint32_t planes,
                                         std::uint32_t blocks, std::uint32_t page_bytes) {
  static_cast<kvpush::Submitter*>(submitter)->prepare({{offsets, planes}, blocks, page_bytes});
}

// Fills `seconds` with those of planning, and inside the transport's write() and poll(); returns the number of
// descriptors.
KVPUSH_EXPORT std::uint64_t kvpush_submit_send(void* submitter, const std::uint32_t* from, const std::uint32_t* to,
                                               std::uint64_t blocks, double* seconds) {
  static_assert(sizeof(kvpush::BlockId) == sizeof(std::uint32_t));
  auto* self = static_cast<kvpush::Submitter*>(submitter);
  const auto ids = [blocks](const std::uint32_t* first) {
    return std::vector<kvpush::BlockId>(reinterpret_cast<const kvpush::BlockId*>(first),
                                        reinterpret_cast<const kvpush::BlockId*>(first) + blocks);
  };
  const kvpush::Spent spent = self->send(ids(from), ids(to));
  seconds[0] = spent.taking.count();
  seconds[1] = spent.posting.count();
  seconds[2] = spent.polling.count();
  return self->descriptors;
}
