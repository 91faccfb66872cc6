// Layouts, tables and assignments drawn at random, against what counting one by one says.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <vector>

#include "kvpush/layout/assignment.h"
#include "kvpush/layout/block_table.h"
#include "kvpush/layout/layout.h"

namespace kvpush {
namespace {

// Uniform in [first, last].
std::uint32_t draw(std::uint32_t first, std::uint32_t last) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(first, last + 1));
}

// Any strides: elements may overlap.
Plane draw_plane() {
  Plane plane{.layer = "layer",
              .dtype = "int8",
              .element_bytes = 1,
              .block_tokens = draw(1, 4),
              .block_count = draw(1, 4),
              .heads = {},
              .base = draw(0, 100),
              .inner_bytes = draw(1, 3)};
  plane.heads = {.first = 0, .count = draw(1, 4), .total = 4};
  plane.block_stride_bytes = draw(0, 60);
  plane.head_stride_bytes = draw(0, 20);
  plane.token_stride_bytes = draw(0, 8);
  return plane;
}

RC_GTEST_PROP(LayoutProperty, NeverAcceptsPlanesWhoseElementsOverlapAndKnowsTheirExtent, ()) {
  const Plane plane = draw_plane();
  RC_PRE(validate(RankLayout{{plane}}).has_value());

  std::set<std::uint64_t> bytes;
  std::uint64_t count = 0;
  for (std::uint64_t block = 0; block < plane.block_count; ++block) {
    for (std::uint64_t head = 0; head < plane.heads.count; ++head) {
      for (std::uint64_t token = 0; token < plane.block_tokens; ++token) {
        for (std::uint64_t i = 0; i < plane.inner_bytes; ++i, ++count) {
          bytes.insert(plane.base + block * plane.block_stride_bytes + head * plane.head_stride_bytes +
                       token * plane.token_stride_bytes + i);
        }
      }
    }
  }

  RC_ASSERT(bytes.size() == count);
  RC_ASSERT(extent(plane).base == *bytes.begin());
  RC_ASSERT(extent(plane).base + extent(plane).size_bytes == *bytes.rbegin() + 1);
}

RC_GTEST_PROP(BlockTableProperty, PackedIdsReadBackTheSameHoweverTheyWereAppended, ()) {
  std::vector<BlockId> blocks;
  for (std::uint32_t left = draw(0, 30); left > 0; --left) {
    const std::uint32_t next = blocks.empty() ? 0 : blocks.back().value + 1;  // the one after an absent block is 0
    blocks.push_back(draw(0, 2) > 0 ? BlockId{next} : draw(0, 2) > 0 ? BlockId{draw(0, 9)} : kAbsentBlock);
  }
  const auto cut = static_cast<std::ptrdiff_t>(draw(0, static_cast<std::uint32_t>(blocks.size())));

  BlockTable table = pack({blocks.begin(), blocks.begin() + cut});
  append(table, {blocks.begin() + cut, blocks.end()});

  std::vector<BlockId> read;
  for (const BlockSpan& span : table.spans) {
    for (std::uint32_t i = 0; i < span.count; ++i) {
      read.push_back(span.first == kAbsentBlock ? kAbsentBlock : BlockId{span.first.value + i});
    }
  }
  RC_ASSERT(read == blocks);
  RC_ASSERT(table == pack(blocks));
}

RC_GTEST_PROP(AssignProperty, AssignsEveryHeadExactlyOnceOrNamesOneThatNobodyHolds, ()) {
  const std::uint32_t total = draw(1, 8);
  const auto draw_layout = [total] {
    Plane plane{.layer = "layer", .dtype = "int8", .element_bytes = 1, .heads = {}, .inner_bytes = 1};
    plane.block_tokens = plane.block_count = 1;
    plane.head_stride_bytes = 1;
    plane.heads.first = draw(0, total - 1);
    plane.heads.count = draw(1, total - plane.heads.first);
    plane.heads.total = total;
    return RankLayout{{plane}};
  };
  const RankLayout consumer = draw_layout();
  std::vector<RankLayout> producers(draw(1, 6));
  for (RankLayout& producer : producers) producer = draw_layout();
  std::set<std::uint32_t> held;
  for (const RankLayout& producer : producers) {
    const HeadRange& heads = producer.planes[0].heads;
    for (std::uint32_t head = 0; head < heads.count; ++head) held.insert(heads.first + head);
  }
  const HeadRange& wanted = consumer.planes[0].heads;
  bool all_held = true;
  for (std::uint32_t head = 0; head < wanted.count; ++head) all_held &= held.contains(wanted.first + head);

  const auto assigned = assign(consumer, draw(0, 7), producers);

  RC_ASSERT(assigned.has_value() == all_held);
  if (!assigned) return;
  std::vector<int> written(wanted.count);
  for (std::size_t rank = 0; rank < producers.size(); ++rank) {
    RC_ASSERT(validate((*assigned)[rank], producers[rank], consumer).has_value());
    for (const PlaneShare& share : (*assigned)[rank]) {
      for (std::uint32_t i = 0; i < share.head_count; ++i) ++written[share.consumer_head + i];
    }
  }
  RC_ASSERT(written == std::vector<int>(wanted.count, 1));
}

}  // namespace
}  // namespace kvpush
