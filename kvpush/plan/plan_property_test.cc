// Plans between random layouts and compares with what a byte-by-byte reading of both layouts says.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "kvpush/plan/plan.h"

namespace kvpush {
namespace {

// Uniform in [first, last].
std::uint32_t draw(std::uint32_t first, std::uint32_t last) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(first, last + 1));
}

bool draw_chance(std::uint32_t one_in) {
  return draw(1, one_in) == one_in;
}

template <class Range>
void shuffle(Range& range) {
  for (std::size_t i = range.size(); i > 1; --i) {
    std::swap(range[i - 1], range[draw(0, static_cast<std::uint32_t>(i) - 1)]);
  }
}

// What both engines agree on.
struct Model {
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;
  std::uint32_t groups = 0;
  std::uint32_t tokens = 0;
  std::vector<Component> components;
  std::uint32_t element_bytes = 0;
  std::uint32_t inner_bytes = 0;
};

Model draw_model() {
  Model model{.layers = draw(1, 4),
              .heads = draw(1, 4),
              .groups = draw(1, 2),
              .tokens = draw(1, 40),
              .components = {Component::kKey, Component::kValue},
              .element_bytes = draw(1, 2),
              .inner_bytes = 0};
  if (draw_chance(3)) model.components = {Component::kLatent};
  model.inner_bytes = model.element_bytes * draw(1, 3);
  return model;
}

// The engine's numbering of groups and the sizes of their blocks.
struct EngineGroups {
  std::vector<std::uint16_t> number;
  std::vector<std::uint32_t> block_tokens;
};

EngineGroups draw_groups(const Model& model) {
  EngineGroups groups;
  groups.number.resize(model.groups);
  std::iota(groups.number.begin(), groups.number.end(), std::uint16_t{0});
  shuffle(groups.number);
  for (std::uint32_t i = 0; i < model.groups; ++i) groups.block_tokens.push_back(draw(1, 8));
  return groups;
}

// Strides for axes of these sizes in a random order, padded or not. The last stride is the size of it all.
std::vector<std::uint64_t> draw_strides(const std::vector<std::uint32_t>& sizes, std::uint64_t inner_bytes) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (draw_chance(2)) shuffle(order);
  const bool padded = draw_chance(3);
  std::vector<std::uint64_t> strides(sizes.size() + 1);
  std::uint64_t spanned_bytes = inner_bytes;
  for (const std::size_t axis : order) {
    if (padded) spanned_bytes += draw(0, 5);
    strides[axis] = spanned_bytes;
    spanned_bytes *= sizes[axis];
  }
  strides.back() = spanned_bytes;
  return strides;
}

struct Rank {
  RankLayout layout;
  BlockTables tables;
};

// Lays out planes of one group, in one allocation or in one each, at or after `address`, and moves it past them.
void lay_out(std::vector<Plane> planes, std::uint64_t& address, RankLayout& layout) {
  const Plane& first = planes.front();
  const bool one_allocation = draw_chance(2);
  const auto planes_together = static_cast<std::uint32_t>(one_allocation ? planes.size() : 1);
  const std::vector<std::uint64_t> strides =
      draw_strides({first.block_tokens, first.heads.count, planes_together, first.block_count}, first.inner_bytes);
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const std::size_t place = i % planes_together;
    if (place == 0 && draw_chance(2)) address += draw(0, 64);
    planes[i].base = address + place * strides[2];
    planes[i].token_stride_bytes = strides[0];
    planes[i].head_stride_bytes = strides[1];
    planes[i].block_stride_bytes = strides[3];
    if (place + 1 == planes_together) address += strides[4];
  }
  if (draw_chance(3)) shuffle(planes);
  layout.planes.insert(layout.planes.end(), planes.begin(), planes.end());
}

std::uint32_t blocks_for(std::uint32_t tokens, std::uint32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

std::vector<BlockId> draw_blocks(std::uint32_t count, std::uint32_t block_count) {
  std::vector<BlockId> blocks(block_count);
  for (std::uint32_t i = 0; i < block_count; ++i) blocks[i] = BlockId{i};
  if (draw_chance(3)) shuffle(blocks);
  const std::uint32_t skipped = draw(0, block_count - count);
  return {blocks.begin() + skipped, blocks.begin() + skipped + count};
}

// The planes of the layers that `has_layer` picks, and blocks for all of the model's tokens.
template <class HasLayer>
Rank draw_rank(const Model& model, const EngineGroups& groups, HeadRange heads, HasLayer has_layer) {
  Rank rank;
  rank.tables.resize(model.groups);
  std::uint64_t address = draw(0, 1000);
  for (std::uint32_t group = 0; group < model.groups; ++group) {
    const std::uint32_t block_tokens = groups.block_tokens[group];
    const std::uint32_t blocks = blocks_for(model.tokens, block_tokens);
    const std::uint32_t block_count = blocks + draw(0, 3);
    rank.tables[groups.number[group]] = pack(draw_blocks(blocks, block_count));
    std::vector<Plane> planes;
    for (std::uint32_t layer = group; layer < model.layers; layer += model.groups) {
      if (!has_layer(layer)) continue;
      for (const Component component : model.components) {
        planes.push_back({.layer = "layer" + std::to_string(layer),
                          .component = component,
                          .group = groups.number[group],
                          .dtype = "dtype",
                          .element_bytes = model.element_bytes,
                          .block_tokens = block_tokens,
                          .block_count = block_count,
                          .heads = heads,
                          .inner_bytes = model.inner_bytes});
      }
    }
    if (!planes.empty()) lay_out(std::move(planes), address, rank.layout);
  }
  return rank;
}

HeadRange draw_heads(std::uint32_t first, std::uint32_t end, std::uint32_t total) {
  const std::uint32_t from = draw(first, end - 1);
  return {.first = from, .count = draw(1, end - from), .total = total};
}

// Ranks that between them hold every head of every layer at least once: stages of layers, each split over heads, each
// part held by one or more ranks.
std::vector<Rank> draw_producers(const Model& model, const EngineGroups& groups) {
  const std::uint32_t stages = draw(1, std::min(2u, model.layers));
  std::vector<Rank> ranks;
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    for (std::uint32_t first = 0; first < model.heads;) {
      const HeadRange heads{.first = first, .count = draw(1, model.heads - first), .total = model.heads};
      const std::uint32_t copies = draw(1, 2);
      for (std::uint32_t copy = 0; copy < copies; ++copy) {
        ranks.push_back(draw_rank(model, groups, heads, [&](std::uint32_t layer) { return layer % stages == stage; }));
      }
      first += heads.count;
    }
  }
  shuffle(ranks);
  return ranks;
}

std::vector<BlockId> unpack(const BlockTable& table) {
  std::vector<BlockId> blocks;
  for (const BlockSpan& span : table.spans) {
    for (std::uint32_t i = 0; i < span.count; ++i) {
      blocks.push_back(span.first == kAbsentBlock ? kAbsentBlock : BlockId{span.first.value + i});
    }
  }
  return blocks;
}

// Where one byte lies.
struct Byte {
  std::string layer;
  Component component{};
  std::uint32_t head = 0;  // of the model
  std::uint32_t token = 0;
  std::uint64_t index = 0;
  auto operator<=>(const Byte&) const = default;
};

// Every byte of the tokens in present blocks, with its address.
std::map<Byte, std::uint64_t> addresses(const Rank& rank, TokenRange tokens) {
  std::map<Byte, std::uint64_t> found;
  for (const Plane& plane : rank.layout.planes) {
    const std::vector<BlockId> blocks = unpack(rank.tables[plane.group]);
    for (std::uint32_t token = tokens.first; token < tokens.end; ++token) {
      const BlockId block = blocks[token / plane.block_tokens];
      if (block == kAbsentBlock) continue;
      for (std::uint32_t head = 0; head < plane.heads.count; ++head) {
        for (std::uint64_t i = 0; i < plane.inner_bytes; ++i) {
          found[{plane.layer, plane.component, plane.heads.first + head, token, i}] =
              plane.base + block.value * plane.block_stride_bytes + head * plane.head_stride_bytes +
              token % plane.block_tokens * plane.token_stride_bytes + i;
        }
      }
    }
  }
  return found;
}

struct Pair {
  Model model;
  EngineGroups producer_groups;
  EngineGroups consumer_groups;
  Rank consumer;
  std::uint32_t consumer_rank = 0;
  std::vector<Rank> producers;
  std::vector<Assignment> assignments;
  TokenRange tokens;
};

// Blocks of the consumer that are absent at random, and those of the producers that then need not be there.
void remove_blocks(Pair& pair) {
  for (std::uint32_t group = 0; group < pair.model.groups; ++group) {
    BlockTable& table = pair.consumer.tables[pair.consumer_groups.number[group]];
    std::vector<BlockId> blocks = unpack(table);
    for (BlockId& block : blocks) {
      if (draw_chance(4)) block = kAbsentBlock;
    }
    table = pack(blocks);
    const auto wanted = [&](std::uint32_t token) {
      return token >= pair.tokens.first && token < pair.tokens.end &&
             blocks[token / pair.consumer_groups.block_tokens[group]] != kAbsentBlock;
    };
    const std::uint32_t block_tokens = pair.producer_groups.block_tokens[group];
    for (Rank& producer : pair.producers) {
      BlockTable& held = producer.tables[pair.producer_groups.number[group]];
      std::vector<BlockId> held_blocks = unpack(held);
      for (std::uint32_t i = 0; i < held_blocks.size(); ++i) {
        bool needed = false;
        for (std::uint32_t token = i * block_tokens; token < (i + 1) * block_tokens; ++token) needed |= wanted(token);
        if (!needed && draw_chance(2)) held_blocks[i] = kAbsentBlock;
      }
      held = pack(held_blocks);
    }
  }
}

Pair draw_pair() {
  Pair pair;
  pair.model = draw_model();
  pair.producer_groups = draw_groups(pair.model);
  pair.consumer_groups = draw_chance(2) ? pair.producer_groups : draw_groups(pair.model);
  const auto every_layer = [](std::uint32_t) { return true; };
  pair.consumer =
      draw_rank(pair.model, pair.consumer_groups, draw_heads(0, pair.model.heads, pair.model.heads), every_layer);
  pair.producers = draw_producers(pair.model, pair.producer_groups);
  pair.consumer_rank = draw(0, 7);
  pair.tokens.end = draw_chance(2) ? pair.model.tokens : draw(0, pair.model.tokens);
  pair.tokens.first = draw_chance(2) ? std::min(pair.tokens.end, draw(0, 8)) : draw(0, pair.tokens.end);
  if (draw_chance(2)) remove_blocks(pair);

  RC_ASSERT(validate(pair.consumer.layout).has_value());
  std::vector<RankLayout> layouts;
  for (const Rank& producer : pair.producers) {
    RC_ASSERT(validate(producer.layout).has_value());
    layouts.push_back(producer.layout);
  }
  auto assigned = assign(pair.consumer.layout, pair.consumer_rank, layouts);
  RC_ASSERT(assigned.has_value());
  pair.assignments = *std::move(assigned);
  return pair;
}

std::vector<Run> plan_runs(const Pair& pair, std::size_t producer, const PairPlan& plan) {
  std::vector<Run> runs;
  const Result<void> planned = plan.plan(pair.tokens, pair.producers[producer].tables, pair.consumer.tables, runs);
  if (!planned) RC_FAIL(planned.error().what);
  return runs;
}

PairPlan make_plan(const Pair& pair, std::size_t producer) {
  return PairPlan::make(pair.producers[producer].layout, pair.consumer.layout, pair.assignments[producer]);
}

// Descriptors in batches of random sizes, so that runs are cut anywhere.
std::vector<Descriptor> expand(const std::vector<Run>& runs) {
  std::vector<Descriptor> descriptors;
  Cursor cursor;
  while (!cursor.at_end(runs)) {
    const std::uint32_t bytes_max = draw_chance(2) ? draw(1, 100) : 1'000'000;
    std::vector<Descriptor> batch;
    const std::uint64_t taken = cursor.take(std::span<const Run>(runs), draw(1, 40), bytes_max, batch);
    RC_ASSERT(taken > 0u);
    RC_ASSERT(taken <= bytes_max);
    descriptors.insert(descriptors.end(), batch.begin(), batch.end());
  }
  return descriptors;
}

// Shows D1, D2, D3, D7.
RC_GTEST_PROP(PairPlanProperty, WritesEveryWantedByteOnceFromItsSourceAndNothingElse, ()) {
  const Pair pair = draw_pair();
  std::map<std::uint64_t, Byte> unwritten;  // by address on the consumer
  for (const auto& [byte, address] : addresses(pair.consumer, pair.tokens)) unwritten[address] = byte;

  for (std::size_t i = 0; i < pair.producers.size(); ++i) {
    const std::map<Byte, std::uint64_t> sources = addresses(pair.producers[i], pair.tokens);
    for (const Descriptor& descriptor : expand(plan_runs(pair, i, make_plan(pair, i)))) {
      for (std::uint64_t offset = 0; offset < descriptor.length_bytes; ++offset) {
        const auto written = unwritten.find(descriptor.remote + offset);
        RC_ASSERT(written != unwritten.end());
        const auto source = sources.find(written->second);
        RC_ASSERT(source != sources.end());
        RC_ASSERT(source->second == descriptor.local + offset);
        unwritten.erase(written);
      }
    }
  }

  RC_ASSERT(unwritten.empty());
}

RC_GTEST_PROP(PairPlanProperty, ExpectsExactlyTheBytesThatEachProducerWrites, ()) {
  const Pair pair = draw_pair();
  std::uint64_t total = 0;

  for (std::size_t i = 0; i < pair.producers.size(); ++i) {
    const PairPlan plan = make_plan(pair, i);
    const Result<std::uint64_t> expected = plan.bytes_expected(pair.tokens, pair.consumer.tables);
    RC_ASSERT(expected.has_value());
    RC_ASSERT(*expected == bytes(plan_runs(pair, i, plan)));
    total += *expected;
  }

  RC_ASSERT(total == addresses(pair.consumer, pair.tokens).size());
}

RC_GTEST_PROP(PairPlanProperty, RefusesOrPlansWithinThePlanesWhateverTheTablesSay, ()) {
  Pair pair = draw_pair();
  for (BlockTables* tables : {&pair.consumer.tables, &pair.producers[0].tables}) {
    for (BlockTable& table : *tables) {
      if (draw_chance(2)) continue;
      table.spans.clear();
      for (std::uint32_t spans = draw(0, 3); spans > 0; --spans) {
        table.spans.push_back({.first = BlockId{draw_chance(4) ? ~draw(0, 2) : draw(0, 12)},
                               .count = draw_chance(6) ? ~draw(0, 2) : draw(0, 6)});
      }
    }
  }

  std::vector<Run> runs;
  const Result<void> planned =
      make_plan(pair, 0).plan(pair.tokens, pair.producers[0].tables, pair.consumer.tables, runs);

  if (!planned) RC_ASSERT(runs.empty());
  std::uint64_t first = ~std::uint64_t{0};
  std::uint64_t last = 0;
  for (const Plane& plane : pair.consumer.layout.planes) {
    first = std::min(first, extent(plane).base);
    last = std::max(last, extent(plane).base + extent(plane).size_bytes);
  }
  for (const Descriptor& descriptor : expand(runs)) {
    RC_ASSERT(descriptor.remote >= first);
    RC_ASSERT(descriptor.remote + descriptor.length_bytes <= last);
  }
}

}  // namespace
}  // namespace kvpush
