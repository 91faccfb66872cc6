#include "kvpush/wire/codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/wire/frame_limits.h"
#include "kvpush/wire/limits.h"
#include "message_generated.h"

namespace kvpush {
namespace {

using flatbuffers::Offset;
using Builder = flatbuffers::FlatBufferBuilder;
template <class T>
using Vector = flatbuffers::Vector<T>;

// Frame, message and what it holds: planes of a Hello are the deepest and the most.
constexpr flatbuffers::uoffset_t kDepthMax = 4;
constexpr flatbuffers::uoffset_t kTablesMax = 3 + kPlanesMax + kTransportsMax;
// FlatBuffers are read in place, so the bytes must lie as their largest scalar wants it.
constexpr std::size_t kAlignment = alignof(std::uint64_t);
// What most messages fit in.
constexpr std::size_t kBuilderBytes = 1024;

// Plain structs to FlatBuffers. Children are built before the tables that hold them.

Offset<flatbuffers::String> build(Builder& builder, std::string_view text) {
  return builder.CreateString(text.data(), text.size());
}

Offset<flat::RankName> build(Builder& builder, const RankName& name) {
  const auto engine_id = build(builder, name.engine_id);
  return flat::CreateRankName(builder, engine_id, name.incarnation.value, name.rank, name.rank_count);
}

Offset<flat::Plane> build(Builder& builder, const Plane& plane) {
  const auto layer = build(builder, plane.layer);
  const auto dtype = build(builder, plane.dtype);
  const flat::HeadRange heads(plane.heads.first, plane.heads.count, plane.heads.total);
  return flat::CreatePlane(builder, layer, static_cast<std::uint8_t>(plane.component), plane.group, dtype,
                           plane.element_bytes, plane.block_tokens, plane.block_count, &heads, plane.base,
                           plane.block_stride_bytes, plane.head_stride_bytes, plane.token_stride_bytes,
                           plane.inner_bytes);
}

Offset<flatbuffers::Vector<std::uint8_t>> build(Builder& builder, const std::vector<std::byte>& bytes) {
  return builder.CreateVector(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

Offset<flat::TransportOffer> build(Builder& builder, const TransportOffer& offer) {
  const auto name = build(builder, offer.name);
  const auto address = build(builder, offer.address);
  return flat::CreateTransportOffer(builder, name, address);
}

Offset<flat::BlockTable> build(Builder& builder, const BlockTable& table) {
  const auto fill = [&table](std::size_t index, flat::BlockSpan* span) {
    *span = flat::BlockSpan(table.spans[index].first.value, table.spans[index].count);
  };
  return flat::CreateBlockTable(builder, builder.CreateVectorOfStructs<flat::BlockSpan>(table.spans.size(), fill));
}

template <class T>
auto build(Builder& builder, const std::vector<T>& values) {
  std::vector<decltype(build(builder, values.front()))> offsets;
  offsets.reserve(values.size());
  for (const T& value : values) offsets.push_back(build(builder, value));
  return builder.CreateVector(offsets);
}

Offset<flat::Hello> build(Builder& builder, const Hello& hello) {
  const auto from = build(builder, hello.from);
  const auto planes = build(builder, hello.layout.planes);
  const auto transports = build(builder, hello.transports);
  return flat::CreateHello(builder, hello.version, from, hello.session.value, planes, transports);
}

Offset<flat::Welcome> build(Builder& builder, const Welcome& welcome) {
  const auto from = build(builder, welcome.from);
  const auto planes = build(builder, welcome.layout.planes);
  const auto transports = build(builder, welcome.transports);
  return flat::CreateWelcome(builder, welcome.version, from, planes, transports);
}

Offset<flat::Assign> build(Builder& builder, const Assign& assign) {
  const auto fill = [&assign](std::size_t index, flat::PlaneShare* out) {
    const PlaneShare& share = assign.shares[index];
    *out = flat::PlaneShare(share.producer_plane, share.consumer_plane, share.producer_head, share.consumer_head,
                            share.head_count);
  };
  const auto shares = builder.CreateVectorOfStructs<flat::PlaneShare>(assign.shares.size(), fill);
  const auto transport = build(builder, assign.transport);
  const auto address = assign.address.empty() ? 0 : build(builder, assign.address);
  return flat::CreateAssign(builder, shares, transport, address);
}

Offset<flat::Assigned> build(Builder& builder, const Assigned&) {
  return flat::CreateAssigned(builder);
}

Offset<flat::Refused> build(Builder& builder, const Refused& refused) {
  const auto text = build(builder, refused.text);
  return flat::CreateRefused(builder, static_cast<std::uint8_t>(refused.code), text);
}

Offset<flat::Register> build(Builder& builder, const Register& message) {
  const auto transfer_id = build(builder, message.transfer_id);
  const auto tables = build(builder, message.tables);
  const flat::TokenRange tokens(message.tokens.first, message.tokens.end);
  return flat::CreateRegister(builder, message.registration.value, transfer_id, &tokens, tables);
}

Offset<flat::Writing> build(Builder& builder, const Writing& message) {
  return flat::CreateWriting(builder, message.registration.value);
}

Offset<flat::Delivered> build(Builder& builder, const Delivered& message) {
  const flat::SendTimes times(message.times.since_offered.count(), message.times.since_matched.count(),
                              message.times.since_first_post.count(), message.times.since_last_post.count());
  return flat::CreateDelivered(builder, message.registration.value, message.bytes, &times);
}

Offset<flat::Failed> build(Builder& builder, const Failed& message) {
  return flat::CreateFailed(builder, message.registration.value, static_cast<std::uint8_t>(message.code),
                            message.quiescent);
}

Offset<flat::Quiet> build(Builder& builder, const Quiet& message) {
  return flat::CreateQuiet(builder, message.registration.value);
}

Offset<flat::Revoke> build(Builder& builder, const Revoke& message) {
  return flat::CreateRevoke(builder, message.registration.value);
}

Offset<flat::Revoked> build(Builder& builder, const Revoked& message) {
  return flat::CreateRevoked(builder, message.registration.value);
}

Offset<flat::Unwanted> build(Builder& builder, const Unwanted& message) {
  return flat::CreateUnwanted(builder, build(builder, message.transfer_id));
}

Offset<flat::Done> build(Builder& builder, const Done& message) {
  return flat::CreateDone(builder, message.up_to.value);
}

Offset<flat::Goodbye> build(Builder& builder, const Goodbye&) {
  return flat::CreateGoodbye(builder);
}

Offset<flat::Renew> build(Builder& builder, const Renew& message) {
  return flat::CreateRenew(builder, message.stamp.time_since_epoch().count());
}

Offset<flat::Renewed> build(Builder& builder, const Renewed& message) {
  return flat::CreateRenewed(builder, message.stamp.time_since_epoch().count());
}

Offset<flat::Expect> build(Builder& builder, const Expect& message) {
  return flat::CreateExpect(builder, build(builder, message.transfer_id));
}

Offset<flat::Admitted> build(Builder& builder, const Admitted& message) {
  return flat::CreateAdmitted(builder, build(builder, message.transfer_id));
}

template <class FlatMessage>
Offset<flat::Frame> build_frame(Builder& builder, Offset<FlatMessage> body) {
  return flat::CreateFrame(builder, flat::BodyTraits<FlatMessage>::enum_value, body.Union());
}

// FlatBuffers that passed check_limits() to plain structs.

std::string read(const flatbuffers::String& text) {
  return text.str();
}

RankName read(const flat::RankName& name) {
  return {read(*name.engine_id()), {name.incarnation()}, name.rank(), name.rank_count()};
}

Plane read(const flat::Plane& plane) {
  return {
      .layer = read(*plane.layer()),
      .component = static_cast<Component>(plane.component()),
      .group = plane.group(),
      .dtype = read(*plane.dtype()),
      .element_bytes = plane.element_bytes(),
      .block_tokens = plane.block_tokens(),
      .block_count = plane.block_count(),
      .heads = {plane.heads()->first(), plane.heads()->count(), plane.heads()->total()},
      .base = plane.base(),
      .block_stride_bytes = plane.block_stride_bytes(),
      .head_stride_bytes = plane.head_stride_bytes(),
      .token_stride_bytes = plane.token_stride_bytes(),
      .inner_bytes = plane.inner_bytes(),
  };
}

std::vector<std::byte> read(const flatbuffers::Vector<std::uint8_t>& bytes) {
  const auto found = std::as_bytes(std::span(bytes.data(), bytes.size()));
  return {found.begin(), found.end()};
}

TransportOffer read(const flat::TransportOffer& offer) {
  return {read(*offer.name()), read(*offer.address())};
}

BlockSpan read(const flat::BlockSpan& span) {
  return {{span.first()}, span.count()};
}

PlaneShare read(const flat::PlaneShare& share) {
  return {share.producer_plane(), share.consumer_plane(), share.producer_head(), share.consumer_head(),
          share.head_count()};
}

BlockTable read(const flat::BlockTable& table);

template <class Element>
auto read(const Vector<Element>& elements) {
  std::vector<decltype(read(*elements.Get(0)))> values;
  values.reserve(elements.size());
  for (const auto* element : elements) values.push_back(read(*element));
  return values;
}

BlockTable read(const flat::BlockTable& table) {
  return {read(*table.spans())};
}

Hello read(const flat::Hello& hello) {
  Hello message{hello.version(), read(*hello.from()), {hello.session()}, {}, {}};
  if (hello.version() != kProtocolVersion) return message;  // the rest may mean something else
  message.layout = {read(*hello.planes())};
  message.transports = read(*hello.transports());
  return message;
}

Welcome read(const flat::Welcome& welcome) {
  Welcome message{welcome.version(), read(*welcome.from()), {}, {}};
  if (welcome.version() != kProtocolVersion) return message;
  message.layout = {read(*welcome.planes())};
  message.transports = read(*welcome.transports());
  return message;
}

Assign read(const flat::Assign& assign) {
  Assign message{read(*assign.shares()), read(*assign.transport())};
  if (assign.address() != nullptr) message.address = read(*assign.address());
  return message;
}

Refused read(const flat::Refused& refused) {
  const bool is_ours = is_error_code(refused.code());  // another version may have more; its text says which
  return {is_ours ? static_cast<ErrorCode>(refused.code()) : ErrorCode::kUnavailable, read(*refused.text())};
}

Register read(const flat::Register& message) {
  return {{message.registration()},
          read(*message.transfer_id()),
          {message.tokens()->first(), message.tokens()->end()},
          read(*message.tables())};
}

Delivered read(const flat::Delivered& message) {
  const flat::SendTimes& times = *message.times();
  return {{message.registration()},
          message.bytes(),
          {.since_offered = Duration(times.since_offered()),
           .since_matched = Duration(times.since_matched()),
           .since_first_post = Duration(times.since_first_post()),
           .since_last_post = Duration(times.since_last_post())}};
}

Failed read(const flat::Failed& message) {
  return {{message.registration()}, static_cast<ErrorCode>(message.code()), message.quiescent()};
}

Message read(const flat::Frame& frame) {
  switch (frame.body_type()) {
    case flat::Body_Hello: return read(*frame.body_as_Hello());
    case flat::Body_Welcome: return read(*frame.body_as_Welcome());
    case flat::Body_Assign: return read(*frame.body_as_Assign());
    case flat::Body_Assigned: return Assigned{};
    case flat::Body_Refused: return read(*frame.body_as_Refused());
    case flat::Body_Register: return read(*frame.body_as_Register());
    case flat::Body_Writing: return Writing{{frame.body_as_Writing()->registration()}};
    case flat::Body_Delivered: return read(*frame.body_as_Delivered());
    case flat::Body_Failed: return read(*frame.body_as_Failed());
    case flat::Body_Quiet: return Quiet{{frame.body_as_Quiet()->registration()}};
    case flat::Body_Revoke: return Revoke{{frame.body_as_Revoke()->registration()}};
    case flat::Body_Revoked: return Revoked{{frame.body_as_Revoked()->registration()}};
    case flat::Body_Unwanted: return Unwanted{read(*frame.body_as_Unwanted()->transfer_id())};
    case flat::Body_Done: return Done{{frame.body_as_Done()->up_to()}};
    case flat::Body_Goodbye: return Goodbye{};
    case flat::Body_Renew: return Renew{Instant(Duration(frame.body_as_Renew()->stamp()))};
    case flat::Body_Renewed: return Renewed{Instant(Duration(frame.body_as_Renewed()->stamp()))};
    case flat::Body_Expect: return Expect{read(*frame.body_as_Expect()->transfer_id())};
    case flat::Body_Admitted: return Admitted{read(*frame.body_as_Admitted()->transfer_id())};
    case flat::Body_NONE: break;
  }
  // What check_limits() let through has a known kind.
  std::unreachable();
}

// `bytes` starts at a multiple of kAlignment.
Result<Message> decode_aligned(const std::uint8_t* bytes, std::size_t size) {
  flatbuffers::Verifier verifier(bytes, size, kDepthMax, kTablesMax);
  if (!flat::VerifyFrameBuffer(verifier)) return fail(ErrorCode::kBadMessage, "the bytes are no message");
  const flat::Frame& frame = *flat::GetFrame(bytes);
  if (const auto ok = check_limits(frame); !ok) return std::unexpected(ok.error());
  return read(frame);
}

}  // namespace

Result<void> encode(const Message& message, std::vector<std::byte>& out) {
  Builder builder(kBuilderBytes);
  const auto frame =
      std::visit([&builder](const auto& body) { return build_frame(builder, build(builder, body)); }, message);
  flat::FinishFrameBuffer(builder, frame);
  if (const auto ok = check_limits(*flat::GetFrame(builder.GetBufferPointer())); !ok) return ok;
  KVPUSH_CHECK(builder.GetSize() <= kFrameBytesMax, "a message that keeps its limits fits a frame");

  const auto size = static_cast<std::uint32_t>(builder.GetSize());
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<std::byte>(size >> shift));
  const auto body = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  out.insert(out.end(), body.begin(), body.end());
  return {};
}

Result<Message> decode(std::span<const std::byte> body) {
  if (body.size() > kFrameBytesMax) return fail(ErrorCode::kBadMessage, "a frame is too large");
  if (reinterpret_cast<std::uintptr_t>(body.data()) % kAlignment == 0) {
    return decode_aligned(reinterpret_cast<const std::uint8_t*>(body.data()), body.size());
  }
  std::vector<std::uint64_t> aligned(body.size() / kAlignment + 1);
  std::memcpy(aligned.data(), body.data(), body.size());
  return decode_aligned(reinterpret_cast<const std::uint8_t*>(aligned.data()), body.size());
}

}  // namespace kvpush
