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
#include "kvpush/plan/plan.h"

namespace kvpush::testing {

// Who has a block: each hold() has a number of its own, so a block that was given back and taken again differs.
using Holder = std::uint64_t;
inline constexpr Holder kNobody = 0;

// How hold() chooses: consecutive blocks make few descriptors, scattered ones make one for each block and plane.
enum class Choice { kConsecutive, kScattered };

// The KV cache of one rank: real bytes at made-up addresses, in blocks that requests hold.
//
// Job: gives blocks out, fills them with what a prompt's KV would be, says who holds the block at an address.
// Not here: when blocks are given back; World asks the protocol.
// Thread: value type.
class Blocks {
 public:
  static constexpr std::uint32_t kBlockTokens = 4;
  static constexpr std::uint32_t kBlockCount = 512;
  static constexpr std::uint32_t kHeadsTotal = 2;

  // `place` sets this cache's addresses apart from those of others.
  Blocks(std::uint32_t place, std::uint32_t rank, std::uint32_t rank_count, const std::string& dtype);

  const RankLayout& layout() const { return layout_; }
  bool contains(std::uint64_t address) const { return address >> kPlaceBits == place_; }
  std::span<std::byte> at(std::uint64_t address, std::uint64_t length_bytes);
  Holder holder_at(std::uint64_t address) const;

  struct Held {
    Holder holder = kNobody;
    std::vector<std::uint32_t> blocks{};
    BlockTables tables{};
  };
  // Enough free blocks for `token_count` tokens, from `from` on; nothing when there are too few.
  std::optional<Held> hold(std::uint32_t token_count, Choice choice, std::uint32_t from);
  // Frees the blocks and overwrites them, as their next user might.
  void give_back(const Held& held);

  // The KV of a transfer's prompt, the same on every engine.
  void fill(const Held& held, const TransferId& transfer_id, TokenRange tokens);
  bool equals(const Held& held, const TransferId& transfer_id, TokenRange tokens);

 private:
  static constexpr unsigned kPlaceBits = 32;

  template <class Visit>
  void each_element(const Held& held, const TransferId& transfer_id, TokenRange tokens, Visit visit);

  std::uint64_t place_;
  RankLayout layout_;
  std::vector<std::byte> memory_;
  std::vector<Holder> holders_;  // by block
  Holder holder_last_ = kNobody;
};

}  // namespace kvpush::testing
