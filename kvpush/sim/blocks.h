#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvpush/base/ids.h"
#include "kvpush/layout/block_table.h"
#include "kvpush/layout/layout.h"

namespace kvpush::sim {

// Who has a block: each hold() has a number of its own, so a block that was given back and taken again differs.
using Holder = std::uint64_t;
inline constexpr Holder kNobody = 0;

// How hold() chooses: consecutive blocks make few descriptors, scattered ones make one for each block and plane.
enum class Choice { kConsecutive, kScattered };

// The KV cache of one rank: real bytes at made-up addresses, in blocks that requests hold.
//
// Job: gives blocks out, fills them with what a prompt's KV would be, says who holds the blocks at an address.
// Not here: when blocks are given back; World asks the protocol.
// Thread: value type.
// Invariant: all bytes of a block, in all planes, have one holder. The protocol hands memory over by whole blocks, so
//            the owner of every byte is known by its block.
class Blocks {
 public:
  static constexpr std::uint32_t kBlockTokens = 4;

  struct Size {
    std::uint32_t block_count = 512;  // a power of two
    std::uint32_t heads_total = 2;    // over all ranks; more ranks than heads hold copies
  };
  // `place` sets this cache's addresses apart from those of others.
  Blocks(std::uint32_t place, std::uint32_t rank, std::uint32_t rank_count, const std::string& dtype, Size size);

  const RankLayout& layout() const { return layout_; }
  static std::uint32_t place_of(std::uint64_t address) { return static_cast<std::uint32_t>(address >> kPlaceBits); }
  std::span<std::byte> at(std::uint64_t address, std::uint64_t length_bytes);
  // The holder of all blocks that the bytes touch; kNobody also when they have several, or leave their plane.
  Holder holder_of(std::uint64_t address, std::uint64_t length_bytes) const;

  BlockId block_of(std::uint64_t address) const;

  struct Held {
    Holder holder = kNobody;
    std::vector<std::uint32_t> blocks{};
    BlockTables tables{};
  };
  // Enough free blocks for `token_count` tokens, from `from` on; nothing when there are too few.
  std::optional<Held> hold(std::uint32_t token_count, Choice choice, std::uint32_t from);
  // Frees the blocks and overwrites them, as their next user might.
  void give_back(const Held& held);
  // One of the blocks that were given back last.
  std::uint32_t freed_last() const { return freed_last_; }

  // The KV of a transfer's prompt, the same on every engine.
  void fill(const Held& held, const TransferId& transfer_id, TokenRange tokens);
  bool equals(const Held& held, const TransferId& transfer_id, TokenRange tokens);
  // Nothing was written there since the blocks were given back last.
  bool is_untouched(const Held& held, TokenRange tokens);

 private:
  static constexpr unsigned kPlaceBits = 32;

  template <class Visit>
  void each_element(const Held& held, const TransferId& transfer_id, TokenRange tokens, Visit visit);

  std::uint64_t place_;
  RankLayout layout_;
  std::vector<std::byte> memory_;
  std::vector<Holder> holders_;  // by block
  Holder holder_last_ = kNobody;
  std::uint32_t freed_last_ = 0;
};

}  // namespace kvpush::sim
