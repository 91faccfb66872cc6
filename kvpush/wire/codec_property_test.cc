#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kvpush/wire/codec.h"
#include "kvpush/wire/limits.h"

namespace kvpush {
namespace {

// Each any_...() picks inside a running property, so that RapidCheck can shrink what it picked.

template <class T>
T any() {
  return *rc::gen::arbitrary<T>();
}

// From 0 to `last`, small ones more often.
template <class T>
T any_up_to(T last) {
  return *rc::gen::oneOf(rc::gen::inRange<T>(0, static_cast<T>(std::min<std::uint64_t>(last, 4) + 1)),
                         rc::gen::map(rc::gen::arbitrary<std::uint64_t>(), [last](std::uint64_t value) {
                           return static_cast<T>(value % (static_cast<std::uint64_t>(last) + 1));
                         }));
}

std::string any_text(std::size_t bytes_max) {
  auto text = *rc::gen::container<std::string>(rc::gen::arbitrary<char>());
  text.resize(std::min(text.size(), bytes_max));
  return text;
}

template <class Make>
auto any_list(std::size_t count_max, Make make) {
  std::vector<decltype(make())> list(any_up_to(count_max));
  for (auto& element : list) element = make();
  return list;
}

ErrorCode any_code() {
  return *rc::gen::elementOf(std::vector(std::begin(kErrorCodes), std::end(kErrorCodes)));
}

Duration any_send_time() {
  const auto limit = Duration(kSendTimeMax).count();
  return Duration(any<Duration::rep>() % (limit + 1));
}

RankName any_rank_name() {
  const auto last = any_up_to<std::uint32_t>(kRanksMax - 1);
  return {any_text(kEngineIdBytesMax), {any<std::uint64_t>()}, any_up_to(last), last + 1};
}

Plane any_plane() {
  return {.layer = any_text(kLayerNameBytesMax),
          .component = static_cast<Component>(1 + any_up_to(3u)),
          .group = any_up_to<std::uint16_t>(kGroupsMax - 1),
          .dtype = any_text(kDtypeBytesMax),
          .element_bytes = any<std::uint32_t>(),
          .block_tokens = any<std::uint32_t>(),
          .block_count = any<std::uint32_t>(),
          .heads = {any<std::uint32_t>(), any<std::uint32_t>(), any<std::uint32_t>()},
          .base = any<std::uint64_t>(),
          .block_stride_bytes = any<std::uint64_t>(),
          .head_stride_bytes = any<std::uint64_t>(),
          .token_stride_bytes = any<std::uint64_t>(),
          .inner_bytes = any<std::uint64_t>()};
}

std::vector<std::byte> any_address() {
  std::vector<std::byte> address;
  for (const char c : any_text(kTransportAddressBytesMax)) address.push_back(static_cast<std::byte>(c));
  return address;
}

TransportOffer any_offer() {
  return {any_text(kTransportNameBytesMax), any_address()};
}

BlockSpan any_span() {
  const auto count = 1 + any_up_to<std::uint32_t>(kBlocksPerTableMax / 16 - 1);
  if (any_up_to(4u) == 0) return {kAbsentBlock, count};
  return {{any_up_to(kAbsentBlock.value - count)}, count};
}

Register any_register() {
  const auto end = any<std::uint32_t>();
  const auto any_table = [] { return BlockTable{any_list(16, any_span)}; };
  return {
      {any<std::uint64_t>()}, any_text(kTransferIdBytesMax), {any_up_to(end), end}, any_list(kGroupsMax, any_table)};
}

Assign any_assign() {
  const auto any_share = [] {
    return PlaneShare{any<std::uint32_t>(), any<std::uint32_t>(), any<std::uint32_t>(), any<std::uint32_t>(),
                      any<std::uint32_t>()};
  };
  return {any_list(20, any_share), any_text(kTransportNameBytesMax), any_address()};
}

Message any_message() {
  const RegistrationNumber registration{any<std::uint64_t>()};
  switch (any_up_to<std::size_t>(std::variant_size_v<Message> - 1)) {
    case 0:
      return Hello{kProtocolVersion,
                   any_rank_name(),
                   {any<std::uint64_t>()},
                   {any_list(10, any_plane)},
                   any_list(kTransportsMax, any_offer)};
    case 1:
      return Welcome{kProtocolVersion, any_rank_name(), {any_list(10, any_plane)}, any_list(kTransportsMax, any_offer)};
    case 2: return any_assign();
    case 3: return Assigned{};
    case 4: return Refused{any_code(), any_text(kRefusalBytesMax)};
    case 5: return any_register();
    case 6: return Writing{registration};
    case 7:
      return Delivered{
          registration, any<std::uint64_t>(), {any_send_time(), any_send_time(), any_send_time(), any_send_time()}};
    case 8: return Failed{registration, any_code(), any<bool>()};
    case 9: return Quiet{registration};
    case 10: return Revoke{registration};
    case 11: return Revoked{registration};
    case 12: return Unwanted{any_text(kTransferIdBytesMax)};
    case 13: return Done{registration};
    case 14: return Goodbye{};
    case 15: return Renew{Instant(Duration(any<Duration::rep>()))};
    case 16: return Expect{any_text(kTransferIdBytesMax)};
    case 17: return Admitted{any_text(kTransferIdBytesMax)};
    default: return Renewed{Instant(Duration(any<Duration::rep>()))};
  }
}

std::vector<std::byte> encoded(const Message& message) {
  std::vector<std::byte> frame;
  const auto ok = encode(message, frame);
  if (!ok) RC_FAIL(std::string("encode refused it: ") + ok.error().what);
  return frame;
}

Result<Message> decode_frame(const std::vector<std::byte>& frame) {
  return decode(std::span(frame).subspan(4));
}

// Whatever the bytes are, decode() refuses them or gives a message that survives being sent on.
void expect_refused_or_whole(std::span<const std::byte> body) {
  const Result<Message> decoded = decode(body);
  if (!decoded) {
    RC_ASSERT(decoded.error().code == ErrorCode::kBadMessage);
    return;
  }
  RC_ASSERT(decode_frame(encoded(*decoded)).value() == *decoded);
}

RC_GTEST_PROP(Codec, DecodesWhatItEncoded, ()) {
  const Message message = any_message();
  RC_ASSERT(decode_frame(encoded(message)).value() == message);
}

RC_GTEST_PROP(Codec, SurvivesRandomBytes, ()) {
  const auto bytes = *rc::gen::container<std::vector<std::uint8_t>>(rc::gen::arbitrary<std::uint8_t>());
  expect_refused_or_whole(std::as_bytes(std::span(bytes)));
}

RC_GTEST_PROP(Codec, SurvivesTruncation, ()) {
  const std::vector<std::byte> frame = encoded(any_message());
  const auto body = std::span(frame).subspan(4);
  // A copy of exactly that size, so that reading past it is seen.
  const auto kept = body.first(any_up_to(body.size()));
  expect_refused_or_whole(std::vector(kept.begin(), kept.end()));
}

RC_GTEST_PROP(Codec, SurvivesFlippedBits, ()) {
  std::vector<std::byte> frame = encoded(any_message());
  for (auto flips = 1 + any_up_to(7u); flips > 0; --flips) {
    const auto at = 4 + any_up_to(frame.size() - 5);
    frame[at] ^= static_cast<std::byte>(1u << any_up_to(7u));
  }
  expect_refused_or_whole(std::span(frame).subspan(4));
}

RC_GTEST_PROP(Codec, SurvivesHugeNumbersAnywhere, ()) {
  std::vector<std::byte> frame = encoded(any_message());
  const auto at = 4 + any_up_to(frame.size() - 8);
  std::fill_n(frame.begin() + static_cast<std::ptrdiff_t>(at), 4, static_cast<std::byte>(any<std::uint8_t>()));
  expect_refused_or_whole(std::span(frame).subspan(4));
}

}  // namespace
}  // namespace kvpush
