#include "kvpush/plan/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/plan/segments.h"
#include "kvpush/plan/strided.h"

namespace kvpush {
namespace {

// How far apart blocks and tokens are on one side.
struct Strides {
  std::uint64_t block_bytes = 0;
  std::uint64_t token_bytes = 0;
  auto operator<=>(const Strides&) const = default;

  // Modulo 2^64, so that strides which are never stepped along may be anything.
  std::uint64_t bytes(const Place& place) const { return place.blocks * block_bytes + place.tokens * token_bytes; }
};

// What shares must have in common to be planned as one.
struct Shape {
  std::uint64_t inner_bytes = 0;
  Strides local{};
  Strides remote{};
  Axis heads{};
  Axis layers{};
  Axis components{};
  auto operator<=>(const Shape&) const = default;
};

// Assigned heads of one plane, or of several whose addresses are in steps.
struct Part {
  Component component{};
  Shape shape{};
  std::uint64_t local = 0;
  std::uint64_t remote = 0;
  auto operator<=>(const Part&) const = default;
};

struct GroupPair {
  std::uint16_t producer = 0;
  std::uint16_t consumer = 0;
  auto operator<=>(const GroupPair&) const = default;
};

// The assigned planes that use one pair of block tables.
struct PairedTables {
  GroupPair groups;
  BlockSizes block_tokens;
  // The least of any of the planes: blocks that all of them have.
  std::uint32_t producer_block_count = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t consumer_block_count = std::numeric_limits<std::uint32_t>::max();
  std::uint64_t token_bytes = 0;
  std::vector<Part> parts;
};

std::int64_t difference(std::uint64_t from, std::uint64_t to) {
  return static_cast<std::int64_t>(to - from);
}

bool alike(const Part& a, const Part& b) {
  return a.component == b.component && a.shape == b.shape;
}

// Axis from one part to the next, its count still open.
Axis step(const Part& from, const Part& to) {
  return {.local_stride_bytes = difference(from.local, to.local),
          .remote_stride_bytes = difference(from.remote, to.remote)};
}

// How many of the parts from the first on are alike and a constant step apart; sorted by shape and address.
std::size_t progression(std::span<const Part> parts) {
  std::size_t count = 1;
  while (count < parts.size() && alike(parts[0], parts[count]) &&
         step(parts[count - 1], parts[count]) == step(parts[0], parts[1])) {
    ++count;
  }
  return count;
}

// Replaces parts that differ by a constant step only by one that repeats along `axis`.
void fuse(std::vector<Part>& parts, Axis Shape::* axis) {
  std::ranges::sort(parts);
  std::vector<Part> fused;
  for (std::span<const Part> rest = parts; !rest.empty();) {
    const std::size_t count = progression(rest);
    Part part = rest.front();
    if (count > 1) {
      part.shape.*axis = step(rest[0], rest[1]);
      (part.shape.*axis).count = count;
    }
    fused.push_back(part);
    rest = rest.subspan(count);
  }
  parts = std::move(fused);
}

// Layers of one component first: their addresses are often in steps. Then components whose layers are so alike.
void fuse(std::vector<Part>& parts) {
  fuse(parts, &Shape::layers);
  for (Part& part : parts) part.component = {};
  fuse(parts, &Shape::components);
}

Part make_part(const Plane& producer, const Plane& consumer, const PlaneShare& share) {
  return {.component = consumer.component,
          .shape = {.inner_bytes = consumer.inner_bytes,
                    .local = {producer.block_stride_bytes, producer.token_stride_bytes},
                    .remote = {consumer.block_stride_bytes, consumer.token_stride_bytes},
                    .heads = {.count = share.head_count,
                              .local_stride_bytes = static_cast<std::int64_t>(producer.head_stride_bytes),
                              .remote_stride_bytes = static_cast<std::int64_t>(consumer.head_stride_bytes)}},
          .local = producer.base + share.producer_head * producer.head_stride_bytes,
          .remote = consumer.base + share.consumer_head * consumer.head_stride_bytes};
}

void append(std::vector<Run>& runs, const Part& part, const Segment& segment) {
  const Strides& local = part.shape.local;
  const Strides& remote = part.shape.remote;
  const auto axis = [&](const Repeat& repeat) {
    return Axis{.count = repeat.count,
                .local_stride_bytes = static_cast<std::int64_t>(local.bytes(repeat.producer)),
                .remote_stride_bytes = static_cast<std::int64_t>(remote.bytes(repeat.consumer))};
  };
  StridedCopy copy(part.local + local.bytes(segment.producer), part.remote + remote.bytes(segment.consumer),
                   part.shape.inner_bytes);
  copy.add(axis({.count = segment.tokens, .producer = {.tokens = 1}, .consumer = {.tokens = 1}}));
  copy.add(axis(segment.fine));
  copy.add(axis(segment.coarse));
  copy.add(part.shape.heads);
  copy.add(part.shape.layers);
  copy.add(part.shape.components);
  copy.merge();
  copy.append_to(runs);
}

// The group's table, if it covers the tokens up to `end`.
Result<const BlockTable*> covering_table(const BlockTables& tables, std::uint16_t group, std::uint32_t block_tokens,
                                         std::uint32_t end) {
  if (group >= tables.size()) return fail(ErrorCode::kBadMessage, "a KV cache group has no block table");
  const std::uint64_t blocks_needed = (std::uint64_t{end} + block_tokens - 1) / block_tokens;
  if (tables[group].block_count() < blocks_needed) {
    return fail(ErrorCode::kBadMessage, "a block table does not cover the tokens");
  }
  return &tables[group];
}

std::unexpected<Error> unknown_block() {
  return fail(ErrorCode::kBadMessage, "a block table names a block that a plane does not have");
}

Result<void> append(std::vector<Run>& runs, const PairedTables& paired, TokenRange tokens, const BlockTable& producer,
                    const BlockTable& consumer) {
  TableWalk from(producer, paired.block_tokens.producer_tokens, tokens.first);
  TableWalk to(consumer, paired.block_tokens.consumer_tokens, tokens.first);
  for (std::uint64_t left = tokens.end - tokens.first; left > 0;) {
    std::uint64_t passed = std::min(left, to.tokens_left());
    if (!to.absent()) {
      if (from.absent()) return fail(ErrorCode::kBadMessage, "a block the consumer has is absent on the producer");
      if (from.blocks_end() > paired.producer_block_count) return unknown_block();
      if (to.blocks_end() > paired.consumer_block_count) return unknown_block();
      const Segment segment = segment_at(from, to, paired.block_tokens, left);
      for (const Part& part : paired.parts) append(runs, part, segment);
      passed = segment.tokens_all();
    }
    from.advance(passed);
    to.advance(passed);
    left -= passed;
  }
  return {};
}

Result<std::uint64_t> tokens_present(TokenRange tokens, const BlockTable& table, std::uint32_t block_tokens,
                                     std::uint32_t block_count) {
  std::uint64_t present = 0;
  TableWalk walk(table, block_tokens, tokens.first);
  for (std::uint64_t left = tokens.end - tokens.first; left > 0;) {
    const std::uint64_t passed = std::min(left, walk.tokens_left());
    if (!walk.absent()) {
      if (walk.blocks_end() > block_count) return unknown_block();
      present += passed;
    }
    walk.advance(passed);
    left -= passed;
  }
  return present;
}

}  // namespace

struct PairPlan::Impl {
  std::vector<PairedTables> pairs;

  Result<void> append_runs(TokenRange tokens, const BlockTables& producer, const BlockTables& consumer,
                           std::vector<Run>& runs) const;
};

PairPlan PairPlan::make(const RankLayout& producer, const RankLayout& consumer, const Assignment& assignment) {
  std::map<GroupPair, PairedTables> pairs;
  for (const PlaneShare& share : assignment) {
    KVPUSH_CHECK(share.producer_plane < producer.planes.size() && share.consumer_plane < consumer.planes.size(),
                 "an assignment is validated before it is planned with");
    const Plane& from = producer.planes[share.producer_plane];
    const Plane& to = consumer.planes[share.consumer_plane];
    const GroupPair groups{.producer = from.group, .consumer = to.group};
    PairedTables& paired = pairs[groups];
    paired.groups = groups;
    paired.block_tokens = {.producer_tokens = from.block_tokens, .consumer_tokens = to.block_tokens};
    paired.producer_block_count = std::min(paired.producer_block_count, from.block_count);
    paired.consumer_block_count = std::min(paired.consumer_block_count, to.block_count);
    paired.token_bytes += std::uint64_t{share.head_count} * to.inner_bytes;
    paired.parts.push_back(make_part(from, to, share));
  }
  auto impl = std::make_shared<Impl>();
  for (auto& [groups, paired] : pairs) {
    fuse(paired.parts);
    impl->pairs.push_back(std::move(paired));
  }
  PairPlan plan;
  plan.impl_ = std::move(impl);
  return plan;
}

Result<void> PairPlan::plan(TokenRange tokens, const BlockTables& producer, const BlockTables& consumer,
                            std::vector<Run>& runs) const {
  runs.clear();
  const Result<void> planned = impl_->append_runs(tokens, producer, consumer, runs);
  if (!planned) runs.clear();
  return planned;
}

Result<void> PairPlan::Impl::append_runs(TokenRange tokens, const BlockTables& producer, const BlockTables& consumer,
                                         std::vector<Run>& runs) const {
  if (tokens.first > tokens.end) return fail(ErrorCode::kBadMessage, "a token range ends before it begins");
  if (tokens.first == tokens.end) return {};
  for (const PairedTables& paired : pairs) {
    const auto from = covering_table(producer, paired.groups.producer, paired.block_tokens.producer_tokens, tokens.end);
    if (!from) return std::unexpected(from.error());
    const auto to = covering_table(consumer, paired.groups.consumer, paired.block_tokens.consumer_tokens, tokens.end);
    if (!to) return std::unexpected(to.error());
    if (const auto appended = append(runs, paired, tokens, **from, **to); !appended) return appended;
  }
  return {};
}

Result<std::uint64_t> PairPlan::bytes_expected(TokenRange tokens, const BlockTables& consumer) const {
  if (tokens.first > tokens.end) return fail(ErrorCode::kBadMessage, "a token range ends before it begins");
  if (tokens.first == tokens.end) return 0;
  std::uint64_t bytes = 0;
  for (const PairedTables& paired : impl_->pairs) {
    const std::uint32_t block_tokens = paired.block_tokens.consumer_tokens;
    const auto table = covering_table(consumer, paired.groups.consumer, block_tokens, tokens.end);
    if (!table) return std::unexpected(table.error());
    const auto present = tokens_present(tokens, **table, block_tokens, paired.consumer_block_count);
    if (!present) return std::unexpected(present.error());
    bytes += *present * paired.token_bytes;
  }
  return bytes;
}

std::uint64_t bytes(std::span<const Run> runs) {
  std::uint64_t total = 0;
  for (const Run& run : runs) total += run.count * run.length_bytes;
  return total;
}

std::uint64_t Cursor::take(std::span<const Run> runs, std::size_t descriptors_max, std::uint64_t bytes_max,
                           std::vector<Descriptor>& batch) {
  std::uint64_t taken = 0;
  while (run_ < runs.size() && batch.size() < descriptors_max && taken < bytes_max) {
    const Run& run = runs[run_];
    const std::uint64_t rest = run.length_bytes - offset_bytes_;
    const std::uint64_t length = rest < bytes_max - taken ? rest : bytes_max - taken;
    if (length < rest && taken > 0 && run.length_bytes <= bytes_max) break;  // whole in the next batch
    const auto step = static_cast<std::int64_t>(index_);
    batch.push_back({run.local + static_cast<std::uint64_t>(step * run.local_stride_bytes) + offset_bytes_,
                     run.remote + static_cast<std::uint64_t>(step * run.remote_stride_bytes) + offset_bytes_, length});
    taken += length;
    offset_bytes_ += length;
    if (offset_bytes_ < run.length_bytes) continue;
    offset_bytes_ = 0;
    if (++index_ < run.count) continue;
    index_ = 0;
    ++run_;
  }
  return taken;
}

}  // namespace kvpush
