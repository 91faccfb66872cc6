#include "tests/fuzz/messages.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <variant>
#include <vector>

#include "kvpush/base/check.h"
#include "kvpush/wire/codec.h"
#include "kvpush/wire/limits.h"

namespace kvpush::testing {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::uint32_t kElementBytes = 2;
constexpr std::uint32_t kBlockTokens = 4;
constexpr std::uint32_t kBlockCount = 64;
constexpr std::uint32_t kHeadsTotal = 2;

template <class Make>
auto any_list(Choices& choices, std::size_t count_max, Make make) {
  std::vector<decltype(make())> list;
  for (std::size_t left = choices.below(count_max + 1); left > 0; --left) list.push_back(make());
  return list;
}

std::vector<std::byte> any_bytes(Choices& choices) {
  std::vector<std::byte> bytes;
  for (const char c : choices.text(32)) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

RankName any_rank_name(Choices& choices) {
  return {choices.text(16),
          {choices.number<std::uint64_t>()},
          choices.number<std::uint32_t>(),
          choices.number<std::uint32_t>()};
}

Plane any_plane(Choices& choices) {
  const auto u32 = [&] { return choices.number<std::uint32_t>(); };
  const auto u64 = [&] { return choices.number<std::uint64_t>(); };
  return {.layer = choices.text(16),
          .component = static_cast<Component>(choices.below(6)),
          .group = choices.number<std::uint16_t>(),
          .dtype = choices.text(8),
          .element_bytes = u32(),
          .block_tokens = u32(),
          .block_count = u32(),
          .heads = {u32(), u32(), u32()},
          .base = u64(),
          .block_stride_bytes = u64(),
          .head_stride_bytes = u64(),
          .token_stride_bytes = u64(),
          .inner_bytes = u64()};
}

// One of the small ones, or one with a number changed, or anything.
RankLayout any_layout(Choices& choices) {
  if (choices.rarely(8)) return {any_list(choices, 4, [&] { return any_plane(choices); })};
  const std::uint32_t rank_count = 1 + choices.below(2);
  RankLayout layout = small_layout(choices.number<std::uint64_t>() << 32, choices.below(rank_count), rank_count);
  if (choices.flip()) return layout;
  Plane& plane = layout.planes[choices.below(layout.planes.size())];
  switch (choices.below(9)) {
    case 0: plane.block_tokens = choices.number<std::uint32_t>(); break;
    case 1: plane.block_count = choices.number<std::uint32_t>(); break;
    case 2: plane.heads.count = choices.number<std::uint32_t>(); break;
    case 3: plane.heads.total = choices.number<std::uint32_t>(); break;
    case 4: plane.base = choices.number<std::uint64_t>(); break;
    case 5: plane.block_stride_bytes = choices.number<std::uint64_t>(); break;
    case 6: plane.inner_bytes = choices.number<std::uint64_t>(); break;
    case 7: plane.layer = choices.text(8); break;
    default: plane.group = choices.number<std::uint16_t>(); break;
  }
  return layout;
}

TransportOffer any_offer(Choices& choices) {
  constexpr std::array kNames = {"fencing", "plain", "", "loopback"};
  return {kNames[choices.below(kNames.size())], any_bytes(choices)};
}

PlaneShare any_share(Choices& choices) {
  const auto u32 = [&] { return choices.number<std::uint32_t>(); };
  return {u32(), u32(), u32(), u32(), u32()};
}

BlockSpan any_span(Choices& choices) {
  if (choices.rarely(8)) return {kAbsentBlock, choices.number<std::uint32_t>()};
  if (choices.rarely(8)) return {{choices.number<std::uint32_t>()}, choices.number<std::uint32_t>()};
  return {{choices.below(kBlockCount)}, 1u + choices.below(8)};
}

Duration any_duration(Choices& choices) {
  return Duration(choices.number<Duration::rep>());
}

}  // namespace

Message any_message(Choices& choices) {
  const auto registration = [&] { return RegistrationNumber{choices.number<std::uint64_t>()}; };
  const auto version = [&] { return choices.rarely(16) ? choices.number<std::uint32_t>() : kProtocolVersion; };
  const auto offers = [&] { return any_list(choices, 3, [&] { return any_offer(choices); }); };
  switch (choices.below(std::variant_size_v<Message>)) {
    case 0:
      return Hello{version(), any_rank_name(choices), {choices.number<std::uint64_t>()}, any_layout(choices), offers()};
    case 1: return Welcome{version(), any_rank_name(choices), any_layout(choices), offers()};
    case 2:
      return Assign{any_list(choices, 6, [&] { return any_share(choices); }), any_offer(choices).name,
                    any_bytes(choices)};
    case 3: return Assigned{};
    case 4: return Refused{any_code(choices), choices.text(64)};
    case 5: return Register{registration(), any_transfer_id(choices), any_tokens(choices), any_tables(choices)};
    case 6: return Writing{registration()};
    case 7:
      return Delivered{registration(),
                       choices.number<std::uint64_t>(),
                       {any_duration(choices), any_duration(choices), any_duration(choices), any_duration(choices)}};
    case 8: return Failed{registration(), any_code(choices), choices.flip()};
    case 9: return Quiet{registration()};
    case 10: return Revoke{registration()};
    case 11: return Revoked{registration()};
    case 12: return Unwanted{any_transfer_id(choices)};
    case 13: return Done{registration()};
    case 14: return Goodbye{};
    case 15: return Renew{Instant(any_duration(choices))};
    case 16: return Renewed{Instant(any_duration(choices))};
    case 17: return Expect{any_transfer_id(choices)};
    default: return Admitted{any_transfer_id(choices)};
  }
}

namespace {

// What a peer reads of it: who greets in another version, and that it was refused, whatever the code means there.
Message as_read(const Message& message) {
  if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && hello->version != kProtocolVersion) {
    return Hello{hello->version, hello->from, hello->session, {}, {}};
  }
  if (const auto* welcome = std::get_if<Welcome>(&message);
      welcome != nullptr && welcome->version != kProtocolVersion) {
    return Welcome{welcome->version, welcome->from, {}, {}};
  }
  const auto* refused = std::get_if<Refused>(&message);
  if (refused == nullptr || std::ranges::find(kErrorCodes, refused->code) != std::end(kErrorCodes)) return message;
  return Refused{ErrorCode::kUnavailable, refused->text};
}

}  // namespace

std::optional<Message> heard(const Message& message) {
  std::vector<std::byte> frame;
  if (!encode(message, frame)) return std::nullopt;
  const Result<Message> decoded = decode(std::span(frame).subspan(kLengthBytes));
  KVPUSH_CHECK(decoded && *decoded == as_read(message), "what was encoded is decoded to the same");
  return *decoded;
}

void check_sendable(const Message& message) {
  std::vector<std::byte> frame;
  KVPUSH_CHECK(encode(message, frame).has_value(), "a machine says what can be sent");
}

TransferId any_transfer_id(Choices& choices) {
  if (choices.rarely(16)) return choices.text(kTransferIdBytesMax);
  return std::string(1, static_cast<char>('a' + choices.below(4)));
}

ErrorCode any_code(Choices& choices) {
  return kErrorCodes[choices.below(std::size(kErrorCodes))];
}

TokenRange any_tokens(Choices& choices) {
  if (choices.rarely(8)) return {choices.number<std::uint32_t>(), choices.number<std::uint32_t>()};
  const std::uint32_t first = choices.below(16);
  return {first, first + choices.below(16)};
}

BlockTables any_tables(Choices& choices) {
  return any_list(choices, 2, [&] { return BlockTable{any_list(choices, 6, [&] { return any_span(choices); })}; });
}

RankLayout small_layout(std::uint64_t base, std::uint32_t rank, std::uint32_t rank_count) {
  const std::uint32_t heads = kHeadsTotal / rank_count;
  const std::uint64_t token_stride = std::uint64_t{heads} * kElementBytes;
  const std::uint64_t block_stride = token_stride * kBlockTokens;
  RankLayout layout;
  for (const char* layer : {"layer.0", "layer.1"}) {
    for (const Component component : {Component::kKey, Component::kValue}) {
      layout.planes.push_back({.layer = layer,
                               .component = component,
                               .group = 0,
                               .dtype = "bfloat16",
                               .element_bytes = kElementBytes,
                               .block_tokens = kBlockTokens,
                               .block_count = kBlockCount,
                               .heads = {rank * heads, heads, kHeadsTotal},
                               .base = base + layout.planes.size() * block_stride * kBlockCount,
                               .block_stride_bytes = block_stride,
                               .head_stride_bytes = kElementBytes,
                               .token_stride_bytes = token_stride,
                               .inner_bytes = kElementBytes});
    }
  }
  return layout;
}

const RankLayout& own_layout() {
  static const RankLayout kLayout = small_layout(std::uint64_t{1} << 32, 0, 1);
  return kLayout;
}

}  // namespace kvpush::testing
