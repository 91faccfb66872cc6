#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvpush/agent/agent.h"
#include "kvpush/standin/tokens.h"

namespace kvpush {

// The blocks of a KV cache: who may use them, and which of them hold the KV of a known prefix.
//
// Job: gives out blocks, shares those whose prefix comes again, and forgets prefixes only when it needs the room: the
//      block that has been free for longest is given out first.
// Not here: the bytes in the blocks.
// Owner: Scheduler, by value.
// Thread: value type.
// Invariant: a block is free exactly when nobody holds it; a prefix names at most one block.
class BlockPool {
 public:
  explicit BlockPool(std::uint32_t block_count);

  // Blocks that nobody holds, now held once each; none at all if there are not so many.
  std::optional<std::vector<BlockId>> take(std::size_t count);
  // The blocks of the longest known beginning of these prefixes, held once more each. Prefix i ends with block i.
  std::vector<BlockId> reuse(std::span<const PrefixKey> prefixes);
  // The block holds the whole KV at the end of this prefix and will not change while it does. Of two such blocks the
  // first one stays known. The block must be held.
  void remember(BlockId block, PrefixKey prefix);
  // Ends one hold of each. Later blocks become free first, so that a prefix loses its end before its beginning.
  void give_back(std::span<const BlockId> blocks);

  std::size_t free_blocks() const { return free_.size(); }
  std::size_t known_prefixes() const { return by_prefix_.size(); }

 private:
  struct Block {
    std::uint32_t holders = 0;
    std::optional<PrefixKey> prefix{};
    std::list<BlockId>::iterator place{};  // in free_, while nobody holds it
  };

  void forget(Block& block);

  std::vector<Block> blocks_;
  std::list<BlockId> free_;  // longest free first
  std::unordered_map<PrefixKey, BlockId> by_prefix_;
};

}  // namespace kvpush
