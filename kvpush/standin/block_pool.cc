#include "kvpush/standin/block_pool.h"

#include <ranges>

#include "kvpush/base/check.h"

namespace kvpush {

BlockPool::BlockPool(std::uint32_t block_count) : blocks_(block_count) {
  for (std::uint32_t i = 0; i < block_count; ++i) blocks_[i].place = free_.insert(free_.end(), BlockId{i});
}

std::optional<std::vector<BlockId>> BlockPool::take(std::size_t count) {
  if (count > free_.size()) return std::nullopt;
  std::vector<BlockId> taken;
  taken.reserve(count);
  while (taken.size() < count) {
    const BlockId id = free_.front();
    free_.pop_front();
    forget(blocks_[id.value]);
    blocks_[id.value].holders = 1;
    taken.push_back(id);
  }
  return taken;
}

std::vector<BlockId> BlockPool::reuse(std::span<const PrefixKey> prefixes) {
  std::vector<BlockId> reused;
  for (const PrefixKey prefix : prefixes) {
    const auto known = by_prefix_.find(prefix);
    if (known == by_prefix_.end()) break;
    Block& block = blocks_[known->second.value];
    if (block.holders == 0) free_.erase(block.place);
    ++block.holders;
    reused.push_back(known->second);
  }
  return reused;
}

void BlockPool::remember(BlockId id, PrefixKey prefix) {
  Block& block = blocks_[id.value];
  KVPUSH_CHECK(block.holders > 0, "a block is remembered by one who holds it");
  if (block.prefix || !by_prefix_.emplace(prefix, id).second) return;
  block.prefix = prefix;
}

void BlockPool::give_back(std::span<const BlockId> blocks) {
  for (const BlockId id : std::views::reverse(blocks)) {
    Block& block = blocks_[id.value];
    KVPUSH_CHECK(block.holders > 0, "a block is given back by one who holds it");
    if (--block.holders == 0) block.place = free_.insert(free_.end(), id);
  }
}

void BlockPool::forget(Block& block) {
  if (block.prefix) by_prefix_.erase(*block.prefix);
  block.prefix.reset();
}

}  // namespace kvpush
