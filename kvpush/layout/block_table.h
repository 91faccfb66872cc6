// The blocks of one request in one KV cache group, as runs of ids.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvpush/base/ids.h"

namespace kvpush {

// `count` blocks with ids first, first + 1, ...; all absent if first is kAbsentBlock.
struct BlockSpan {
  BlockId first;
  std::uint32_t count = 0;
  bool operator==(const BlockSpan&) const = default;
};

// Block i of the table covers tokens [i * B, (i + 1) * B) of the request, B the group's block size in tokens.
struct BlockTable {
  std::vector<BlockSpan> spans;
  std::uint64_t block_count() const;
  bool operator==(const BlockTable&) const = default;
};

// Packs ids; consecutive ones become one span, and so do neighbouring absent ones.
BlockTable pack(std::span<const BlockId> blocks);
// Appends ids to a table, growing its last span where they continue it.
void append(BlockTable& table, std::span<const BlockId> blocks);

// Tokens [first, end) of a prompt.
struct TokenRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
  bool operator==(const TokenRange&) const = default;
};

// One table for each KV cache group, in order of group.
using BlockTables = std::vector<BlockTable>;

}  // namespace kvpush
