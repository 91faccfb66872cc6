#include "kvpush/plan/segments.h"

#include <algorithm>

namespace kvpush {
namespace {

// How whole fine blocks repeat from the start of one of them: to the end of its coarse block or, from the start of
// that, over whole coarse blocks. `coarse_offset` and `tokens_max` are tokens; at least one fine block is left.
void repeat(Segment& segment, BlockSizes sizes, std::uint64_t tokens_max) {
  const bool producer_is_fine = sizes.producer_tokens <= sizes.consumer_tokens;
  const std::uint64_t fine_tokens = std::min(sizes.producer_tokens, sizes.consumer_tokens);
  const std::uint64_t coarse_tokens = std::max(sizes.producer_tokens, sizes.consumer_tokens);
  const std::uint64_t coarse_offset = producer_is_fine ? segment.consumer.tokens : segment.producer.tokens;
  const bool whole = coarse_offset == 0 && tokens_max >= coarse_tokens;
  const std::uint64_t fine_count = std::min(coarse_tokens - coarse_offset, tokens_max) / fine_tokens;

  const Place fine_block{.blocks = 1};
  const Place within_coarse{.tokens = fine_tokens};
  const Place fine_blocks{.blocks = fine_count};
  const Place coarse_block{.blocks = 1};
  segment.fine = {.count = fine_count,
                  .producer = producer_is_fine ? fine_block : within_coarse,
                  .consumer = producer_is_fine ? within_coarse : fine_block};
  segment.coarse = {.count = whole ? tokens_max / coarse_tokens : 1,
                    .producer = producer_is_fine ? fine_blocks : coarse_block,
                    .consumer = producer_is_fine ? coarse_block : fine_blocks};
}

}  // namespace

TableWalk::TableWalk(const BlockTable& table, std::uint32_t block_tokens, std::uint64_t first)
    : table_(&table), block_tokens_(block_tokens) {
  advance(first);
}

Place TableWalk::place() const {
  return {.blocks = span().first.value + passed_ / block_tokens_, .tokens = passed_ % block_tokens_};
}

void TableWalk::advance(std::uint64_t tokens) {
  passed_ += tokens;
  while (span_ < table_->spans.size() && passed_ >= span_tokens()) {
    passed_ -= span_tokens();
    ++span_;
  }
}

Segment segment_at(const TableWalk& producer, const TableWalk& consumer, BlockSizes sizes, std::uint64_t tokens_max) {
  Segment segment{.producer = producer.place(), .consumer = consumer.place()};
  const std::uint64_t tokens = std::min({tokens_max, producer.tokens_left(), consumer.tokens_left()});
  segment.tokens = std::min(
      {tokens, sizes.producer_tokens - segment.producer.tokens, sizes.consumer_tokens - segment.consumer.tokens});
  // A whole fine block is inside one coarse block only where the sizes divide; else each piece is on its own.
  const auto [fine_tokens, coarse_tokens] = std::minmax(sizes.producer_tokens, sizes.consumer_tokens);
  if (coarse_tokens % fine_tokens == 0 && segment.tokens == fine_tokens) repeat(segment, sizes, tokens);
  return segment;
}

}  // namespace kvpush
