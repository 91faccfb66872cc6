#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kvpush/agent/agent.h"
#include "kvpush/standin/tokens.h"

namespace kvpush {

// How large a stand-in's KV is. A token has 2 * layers * heads rows of `row_bytes`.
struct KvShape {
  std::uint32_t layers = 4;
  std::uint32_t heads = 2;
  std::uint32_t row_bytes = 64;  // a multiple of 8
  std::uint32_t block_tokens = 16;
  std::uint32_t block_count = 1024;

  // K and V of one block in one layer.
  std::uint64_t layer_block_bytes() const { return std::uint64_t{2} * heads * block_tokens * row_bytes; }
  std::uint64_t block_bytes() const { return layers * layer_block_bytes(); }
  std::uint64_t size_bytes() const { return block_count * block_bytes(); }
};

// Of a whole cache: far more than a machine has, and an address space has room for several.
inline constexpr std::uint64_t kKvBytesMax = std::uint64_t{1} << 40;

// A row of KV that does not have the bytes that its prompt gives it.
struct WrongRow {
  BlockId block;
  std::uint32_t token = 0;  // its position in the prompt
  std::string layer;
  Component component = Component::kKey;
  std::uint32_t head = 0;
};

// The KV cache of a stand-in engine: memory whose every byte follows from the tokens before it.
//
// Job: computes the KV of tokens into blocks, reads it back, and says which row is not what it must be.
//      A row is a function of the prefix that ends with its token and of its place in the model, so that a row of
//      another prompt, position, layer, component or head is wrong; the digest of a reading changes with each byte
//      read.
// Not here: who holds which block.
// Owner: StandinEngine. Outlives the agent, which lets peers write into it.
// Thread: engine role; peers write into blocks that the engine has reserved for them.
class KvCache {
 public:
  // The memory is not touched, so that a large pool costs only what is used of it. At most kKvBytesMax.
  explicit KvCache(const KvShape& shape);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  RankLayout layout() const;
  MemoryRange memory() const;

  // Computes the KV of tokens [range.first, range.end): `keys` are those of the tokens from 0 on, `blocks` the table.
  void compute(TokenRange range, std::span<const PrefixKey> keys, std::span<const BlockId> blocks);

  struct Reading {
    std::uint64_t digest = 0;
    std::optional<WrongRow> wrong{};  // the first one
  };
  // Reads every byte of tokens [0, keys.size()).
  Reading read(std::span<const PrefixKey> keys, std::span<const BlockId> blocks) const;

  // Fills a block with bytes that no prompt has: what is not written into it afterwards is found by the next reading.
  void wipe(BlockId block);
  // Inverts one byte, `offset` counted in the block's bytes over all layers. False if there is no such byte.
  bool invert(BlockId block, std::uint64_t offset);
  std::uint64_t block_bytes() const { return shape_.block_bytes(); }

 private:
  struct Row;
  // Calls visit(Row) for each row of these tokens, in an order that does not depend on the blocks.
  template <class Visit>
  void visit_rows(TokenRange range, std::span<const PrefixKey> keys, std::span<const BlockId> blocks,
                  Visit visit) const;
  std::byte* layer_block(std::uint32_t layer, BlockId block) const;

  const KvShape shape_;
  std::byte* const base_;
};

}  // namespace kvpush
