// Where the tokens of a request lie in the blocks of both sides. Private to plan.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvpush/layout/block_table.h"

namespace kvpush {

// A number of blocks and of tokens: a token's place in a group, or a step from one to another.
struct Place {
  std::uint64_t blocks = 0;
  std::uint64_t tokens = 0;
  bool operator==(const Place&) const = default;
};

// A token of a request, with where its block table puts it.
//
// Job: goes through a table token by token, span by span.
// Not here: whether the table covers the tokens asked for; its user has made sure.
// Thread: value type.
class TableWalk {
 public:
  // At token `first`. The table must outlive the walk; `block_tokens` > 0.
  TableWalk(const BlockTable& table, std::uint32_t block_tokens, std::uint64_t first);

  bool absent() const { return span().first == kAbsentBlock; }
  Place place() const;
  // Tokens from here to the end of the span.
  std::uint64_t tokens_left() const { return span_tokens() - passed_; }
  // One past the last block of the span.
  std::uint64_t blocks_end() const { return std::uint64_t{span().first.value} + span().count; }
  void advance(std::uint64_t tokens);

 private:
  const BlockSpan& span() const { return table_->spans[span_]; }
  std::uint64_t span_tokens() const { return std::uint64_t{span().count} * block_tokens_; }

  const BlockTable* table_;
  std::uint32_t block_tokens_ = 0;
  std::size_t span_ = 0;
  std::uint64_t passed_ = 0;  // tokens of the span
};

// A repetition of tokens, with its step on each side.
struct Repeat {
  std::uint64_t count = 1;
  Place producer{};
  Place consumer{};
};

// Tokens that lie alike on both sides: `tokens` of them within one block of each side, then again `fine.count` times by
// blocks of the side with the smaller ones, and all of that `coarse.count` times by blocks of the other.
struct Segment {
  Place producer{};
  Place consumer{};
  std::uint64_t tokens = 0;
  Repeat fine{};
  Repeat coarse{};
  std::uint64_t tokens_all() const { return tokens * fine.count * coarse.count; }
};

struct BlockSizes {
  std::uint32_t producer_tokens = 0;
  std::uint32_t consumer_tokens = 0;
};

// The longest segment that starts where both walks stand, at the same token of present blocks; `tokens_max` > 0.
Segment segment_at(const TableWalk& producer, const TableWalk& consumer, BlockSizes sizes, std::uint64_t tokens_max);

}  // namespace kvpush
