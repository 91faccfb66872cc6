#include "kvpush/layout/block_table.h"

namespace kvpush {
namespace {

bool continues(const BlockSpan& span, BlockId block) {
  if (span.first == kAbsentBlock || block == kAbsentBlock) return span.first == block;
  return std::uint64_t{span.first.value} + span.count == block.value;
}

}  // namespace

std::uint64_t BlockTable::block_count() const {
  std::uint64_t count = 0;
  for (const BlockSpan& span : spans) count += span.count;
  return count;
}

BlockTable pack(std::span<const BlockId> blocks) {
  BlockTable table;
  append(table, blocks);
  return table;
}

void append(BlockTable& table, std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (!table.spans.empty() && continues(table.spans.back(), block)) {
      ++table.spans.back().count;
    } else {
      table.spans.push_back({.first = block, .count = 1});
    }
  }
}

}  // namespace kvpush
