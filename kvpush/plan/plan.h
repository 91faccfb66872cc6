// From two layouts, an assignment, two sets of block tables and a token range to the copies that must be made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvpush/base/descriptor.h"
#include "kvpush/base/error.h"
#include "kvpush/layout/assignment.h"
#include "kvpush/layout/block_table.h"
#include "kvpush/layout/layout.h"

namespace kvpush {

// `count` copies of `length_bytes` each: the i-th from local + i * local_stride to remote + i * remote_stride
// (strides may be negative). The producer reads `local`, its own memory; `remote` is the consumer's.
struct Run {
  std::uint64_t local = 0;
  std::uint64_t remote = 0;
  std::uint64_t count = 0;
  std::int64_t local_stride_bytes = 0;
  std::int64_t remote_stride_bytes = 0;
  std::uint64_t length_bytes = 0;
  bool operator==(const Run&) const = default;
};

// What is fixed for a pair of ranks: which addresses and strides belong together, merged over planes as far as both
// layouts allow. Made once a session; planning a transfer with it allocates nothing after warm-up.
//
// Job: turns block tables and a token range into runs, in O(runs + table spans) time and O(runs) memory.
// Not here: what may be written now (protocol) and descriptors (Cursor below).
// Thread: any (immutable).
class PairPlan {
 public:
  // All three have passed validate().
  static PairPlan make(const RankLayout& producer, const RankLayout& consumer, const Assignment& assignment);

  // Replaces the contents of `runs` by copies that move every byte of `tokens` of every assigned plane exactly once.
  // Tokens whose block is absent on the consumer are skipped; no tokens need no tables. kBadMessage: the range is not
  // covered by a table that an assigned plane uses, a table names there a block that its plane does not have, or a
  // block that the consumer has is absent on the producer; `runs` is then empty.
  Result<void> plan(TokenRange tokens, const BlockTables& producer, const BlockTables& consumer,
                    std::vector<Run>& runs) const;

  // The bytes plan() moves for `tokens` when the consumer's absent blocks are left out, computed from the consumer's
  // side alone: what a consumer must see delivered. Errors as plan() as far as the consumer's tables cause them.
  Result<std::uint64_t> bytes_expected(TokenRange tokens, const BlockTables& consumer) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Total bytes of runs that plan() made.
std::uint64_t bytes(std::span<const Run> runs);

// A place within a list of runs, from which descriptors are taken in batches just before they are posted.
//
// Job: expands runs into descriptors, a bounded number at a time.
// Thread: value type.
class Cursor {
 public:
  // Appends descriptors of `runs` from this place on to `batch`, until `descriptors_max` are in it or their bytes
  // would pass `bytes_max` (one descriptor larger than bytes_max is split), and moves on. Returns the bytes appended; 0
  // at the end.
  std::uint64_t take(std::span<const Run> runs, std::size_t descriptors_max, std::uint64_t bytes_max,
                     std::vector<Descriptor>& batch);
  bool at_end(std::span<const Run> runs) const { return run_ >= runs.size(); }

 private:
  std::size_t run_ = 0;
  std::uint64_t index_ = 0;         // within the run
  std::uint64_t offset_bytes_ = 0;  // within the copy
};

}  // namespace kvpush
