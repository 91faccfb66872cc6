#include "kvpush/standin/kv.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <utility>

#include "kvpush/base/check.h"

namespace kvpush {
namespace {

// A layer's block has for each head the rows of K, then those of V.
constexpr Component kComponents[] = {Component::kKey, Component::kValue};

constexpr std::byte kWiped{0xdb};

std::string layer_name(std::uint32_t layer) {
  return fmt::format("layers.{}", layer);
}

// What all words of a row have in common: the prefix, and the row's place in the model.
std::uint64_t row_seed(PrefixKey key, std::uint32_t place) {
  return mix(key.value ^ (0xd1b54a32d192ed03 * (place + 1)));
}
std::uint64_t row_word(std::uint64_t seed, std::uint64_t index) {
  return mix(seed + index * 0x9e3779b97f4a7c15);
}

// One to one in `digest` and in `word`: one wrong word always changes the result.
std::uint64_t absorb(std::uint64_t digest, std::uint64_t word) {
  return std::rotl((digest ^ word) * 0x9e3779b97f4a7c15, 29);
}

std::byte* map_memory(std::uint64_t size_bytes) {
  void* const memory =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KVPUSH_CHECK(memory != MAP_FAILED, "the process has address space for its KV cache");
  return static_cast<std::byte*>(memory);
}

}  // namespace

KvCache::KvCache(const KvShape& shape) : shape_(shape), base_(map_memory(shape.size_bytes())) {
  KVPUSH_CHECK(shape.row_bytes % sizeof(std::uint64_t) == 0, "rows of KV are whole words");
}

KvCache::~KvCache() {
  munmap(base_, shape_.size_bytes());
}

RankLayout KvCache::layout() const {
  RankLayout layout;
  const std::uint64_t rows_bytes = std::uint64_t{shape_.block_tokens} * shape_.row_bytes;
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::uint64_t i = 0; i < std::size(kComponents); ++i) {
      layout.planes.push_back({.layer = layer_name(layer),
                               .component = kComponents[i],
                               .group = 0,
                               .dtype = "uint64",
                               .element_bytes = 8,
                               .block_tokens = shape_.block_tokens,
                               .block_count = shape_.block_count,
                               .heads = {0, shape_.heads, shape_.heads},
                               .base = reinterpret_cast<std::uint64_t>(layer_block(layer, BlockId{0})) + i * rows_bytes,
                               .block_stride_bytes = shape_.layer_block_bytes(),
                               .head_stride_bytes = std::size(kComponents) * rows_bytes,
                               .token_stride_bytes = shape_.row_bytes,
                               .inner_bytes = shape_.row_bytes});
    }
  }
  return layout;
}

MemoryRange KvCache::memory() const {
  return {reinterpret_cast<std::uint64_t>(base_), shape_.size_bytes()};
}

struct KvCache::Row {
  std::byte* bytes = nullptr;
  std::uint64_t seed = 0;  // of its words
  BlockId block;
  std::uint32_t token = 0;
  std::uint32_t layer = 0;
  std::uint32_t index = 0;  // within the layer's block: for each head the components
};

void KvCache::compute(TokenRange range, std::span<const PrefixKey> keys, std::span<const BlockId> blocks) {
  visit_rows(range, keys, blocks, [this](const Row& row) {
    for (std::uint64_t w = 0; w < shape_.row_bytes / sizeof(std::uint64_t); ++w) {
      const std::uint64_t word = row_word(row.seed, w);
      std::memcpy(row.bytes + w * sizeof word, &word, sizeof word);
    }
  });
}

KvCache::Reading KvCache::read(std::span<const PrefixKey> keys, std::span<const BlockId> blocks) const {
  Reading reading;
  visit_rows({0, static_cast<std::uint32_t>(keys.size())}, keys, blocks, [&](const Row& row) {
    std::uint64_t difference = 0;
    for (std::uint64_t w = 0; w < shape_.row_bytes / sizeof(std::uint64_t); ++w) {
      std::uint64_t word = 0;
      std::memcpy(&word, row.bytes + w * sizeof word, sizeof word);
      difference |= word ^ row_word(row.seed, w);
      reading.digest = absorb(reading.digest, word);
    }
    if (difference == 0 || reading.wrong) return;
    const std::uint32_t components = std::size(kComponents);
    reading.wrong = WrongRow{.block = row.block,
                             .token = row.token,
                             .layer = layer_name(row.layer),
                             .component = kComponents[row.index % components],
                             .head = row.index / components};
  });
  return reading;
}

void KvCache::wipe(BlockId block) {
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    std::memset(layer_block(layer, block), static_cast<int>(kWiped), shape_.layer_block_bytes());
  }
}

bool KvCache::invert(BlockId block, std::uint64_t offset) {
  if (block.value >= shape_.block_count || offset >= block_bytes()) return false;
  const auto layer = static_cast<std::uint32_t>(offset / shape_.layer_block_bytes());
  std::byte& byte = layer_block(layer, block)[offset % shape_.layer_block_bytes()];
  byte = ~byte;
  return true;
}

template <class Visit>
void KvCache::visit_rows(TokenRange range, std::span<const PrefixKey> keys, std::span<const BlockId> blocks,
                         Visit visit) const {
  const std::uint32_t rows = static_cast<std::uint32_t>(std::size(kComponents)) * shape_.heads;
  for (std::uint32_t token = range.first; token < range.end; ++token) {
    const BlockId block = blocks[token / shape_.block_tokens];
    const std::uint64_t slot = token % shape_.block_tokens;
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      std::byte* const bytes = layer_block(layer, block);
      for (std::uint32_t i = 0; i < rows; ++i) {
        visit(Row{bytes + (std::uint64_t{i} * shape_.block_tokens + slot) * shape_.row_bytes,
                  row_seed(keys[token], layer * rows + i), block, token, layer, i});
      }
    }
  }
}

std::byte* KvCache::layer_block(std::uint32_t layer, BlockId block) const {
  return base_ + (std::uint64_t{layer} * shape_.block_count + block.value) * shape_.layer_block_bytes();
}

}  // namespace kvpush
