#include "kvpush/sim/blocks.h"

#include <algorithm>
#include <functional>

namespace kvpush::sim {

namespace {

constexpr std::uint32_t kElementBytes = 2;
constexpr std::byte kOverwritten{0xee};

RankLayout make_layout(std::uint64_t base, HeadRange heads, const std::string& dtype, std::uint32_t block_count) {
  RankLayout layout;
  const std::uint64_t token_stride = std::uint64_t{heads.count} * kElementBytes;
  const std::uint64_t block_stride = token_stride * Blocks::kBlockTokens;
  for (const char* layer : {"layer.0", "layer.1"}) {
    for (const Component component : {Component::kKey, Component::kValue}) {
      layout.planes.push_back({.layer = layer,
                               .component = component,
                               .group = 0,
                               .dtype = dtype,
                               .element_bytes = kElementBytes,
                               .block_tokens = Blocks::kBlockTokens,
                               .block_count = block_count,
                               .heads = heads,
                               .base = base + layout.planes.size() * block_stride * block_count,
                               .block_stride_bytes = block_stride,
                               .head_stride_bytes = kElementBytes,
                               .token_stride_bytes = token_stride,
                               .inner_bytes = kElementBytes});
    }
  }
  return layout;
}

HeadRange heads_of(std::uint32_t rank, std::uint32_t rank_count, std::uint32_t total) {
  return {.first = rank * total / rank_count, .count = std::max(1U, total / rank_count), .total = total};
}

}  // namespace

Blocks::Blocks(std::uint32_t place, std::uint32_t rank, std::uint32_t rank_count, const std::string& dtype, Size size)
    : place_(place),
      layout_(make_layout(std::uint64_t{place} << kPlaceBits, heads_of(rank, rank_count, size.heads_total), dtype,
                          size.block_count)),
      memory_(layout_.planes.size() * layout_.planes[0].block_stride_bytes * size.block_count, kOverwritten),
      holders_(size.block_count, kNobody) {}

std::span<std::byte> Blocks::at(std::uint64_t address, std::uint64_t length_bytes) {
  return std::span(memory_).subspan(address - (place_ << kPlaceBits), length_bytes);
}

BlockId Blocks::block_of(std::uint64_t address) const {
  const std::uint64_t index = (address - (place_ << kPlaceBits)) / layout_.planes[0].block_stride_bytes;
  return BlockId{static_cast<std::uint32_t>(index % holders_.size())};
}

Holder Blocks::holder_of(std::uint64_t address, std::uint64_t length_bytes) const {
  const std::uint64_t offset = address - (place_ << kPlaceBits);
  const std::uint64_t stride = layout_.planes[0].block_stride_bytes;
  const std::uint64_t first = offset / stride;
  const std::uint64_t last = (offset + length_bytes - 1) / stride;
  if (first / holders_.size() != last / holders_.size() || last >= holders_.size() * layout_.planes.size()) {
    return kNobody;
  }
  const Holder holder = holders_[first % holders_.size()];
  for (std::uint64_t block = first + 1; block <= last; ++block) {
    if (holders_[block % holders_.size()] != holder) return kNobody;
  }
  return holder;
}

std::optional<Blocks::Held> Blocks::hold(std::uint32_t token_count, Choice choice, std::uint32_t from) {
  const auto block_count = static_cast<std::uint32_t>(holders_.size());
  const std::uint32_t needed = (token_count + kBlockTokens - 1) / kBlockTokens;
  const std::uint32_t step = choice == Choice::kScattered ? 3 : 1;  // coprime to block_count: visits every block
  Held held{.holder = ++holder_last_};
  std::vector<BlockId> ids;
  for (std::uint32_t i = 0; i < block_count && held.blocks.size() < needed; ++i) {
    const std::uint32_t block = (from + i * step) % block_count;
    if (holders_[block] != kNobody) continue;
    held.blocks.push_back(block);
    ids.push_back(BlockId{block});
  }
  if (held.blocks.size() < needed) return std::nullopt;
  for (const std::uint32_t block : held.blocks) holders_[block] = held.holder;
  held.tables = {pack(ids)};
  return held;
}

void Blocks::give_back(const Held& held) {
  for (const std::uint32_t block : held.blocks) {
    holders_[block] = kNobody;
    freed_last_ = block;
    for (const Plane& plane : layout_.planes) {
      std::ranges::fill(at(plane.base + block * plane.block_stride_bytes, plane.block_stride_bytes), kOverwritten);
    }
  }
}

void Blocks::fill(const Held& held, const TransferId& transfer_id, TokenRange tokens) {
  each_element(held, transfer_id, tokens,
               [](std::span<std::byte> element, std::byte expected) { std::ranges::fill(element, expected); });
}

bool Blocks::equals(const Held& held, const TransferId& transfer_id, TokenRange tokens) {
  bool are_equal = true;
  each_element(held, transfer_id, tokens, [&](std::span<std::byte> element, std::byte expected) {
    are_equal = are_equal && std::ranges::all_of(element, [&](std::byte byte) { return byte == expected; });
  });
  return are_equal;
}

bool Blocks::is_untouched(const Held& held, TokenRange tokens) {
  bool is_untouched = true;
  each_element(held, {}, tokens, [&](std::span<std::byte> element, std::byte) {
    is_untouched = is_untouched && std::ranges::all_of(element, [](std::byte byte) { return byte == kOverwritten; });
  });
  return is_untouched;
}

template <class Visit>
void Blocks::each_element(const Held& held, const TransferId& transfer_id, TokenRange tokens, Visit visit) {
  const std::size_t prompt = std::hash<std::string>{}(transfer_id);
  for (std::size_t index = 0; index < layout_.planes.size(); ++index) {
    const Plane& plane = layout_.planes[index];
    for (std::uint32_t token = tokens.first; token < tokens.end; ++token) {
      for (std::uint32_t head = 0; head < plane.heads.count; ++head) {
        const std::uint64_t address = plane.base + held.blocks[token / kBlockTokens] * plane.block_stride_bytes +
                                      token % kBlockTokens * plane.token_stride_bytes + head * plane.head_stride_bytes;
        const std::size_t value = prompt + index * 101 + (plane.heads.first + head) * 57UL + token * 7UL;
        visit(at(address, kElementBytes), static_cast<std::byte>(value % 227));  // never kOverwritten
      }
    }
  }
}

}  // namespace kvpush::sim
