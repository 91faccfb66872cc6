#include "kvpush/wire/codec.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "kvpush/wire/limits.h"
#include "message_generated.h"

namespace kvpush {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

std::string text(std::size_t bytes) {
  return std::string(bytes, 'x');
}

Plane plane() {
  return {.layer = "model.layers.7.self_attn",
          .component = Component::kValue,
          .group = 3,
          .dtype = "bfloat16",
          .element_bytes = 2,
          .block_tokens = 16,
          .block_count = 4096,
          .heads = {2, 4, 8},
          .base = 0x7fff'0000'1000,
          .block_stride_bytes = 32768,
          .head_stride_bytes = 128,
          .token_stride_bytes = 1024,
          .inner_bytes = 128};
}

Hello hello() {
  return {.from = {"decode-1", Incarnation{0xfeed'beef'0000'0001}, 1, 2},
          .session = SessionNumber{9},
          .layout = {{plane(), plane()}},
          .transports = {{"cma", {std::byte{1}, std::byte{0}, std::byte{255}}}, {"ucx", {}}}};
}

Welcome welcome() {
  const Hello other = hello();
  return {.from = other.from, .layout = other.layout, .transports = other.transports};
}

Register registration() {
  return {.registration = RegistrationNumber{77},
          .transfer_id = "cmpl-4711-0",
          .tokens = {16, 1000},
          .tables = {{{{BlockId{5}, 40}, {kAbsentBlock, 3}, {BlockId{0}, 20}}}, {}}};
}

Delivered delivered() {
  return {.registration = RegistrationNumber{77},
          .bytes = 1u << 30,
          .times = {.since_offered = 4s, .since_matched = 3ms, .since_first_post = 2us, .since_last_post = -1ns}};
}

std::vector<std::byte> frame_of(const Message& message) {
  std::vector<std::byte> frame;
  const auto encoded = encode(message, frame);
  EXPECT_TRUE(encoded.has_value()) << message_name(message) << ": " << encoded.error().what;
  return frame;
}

std::vector<std::byte> body_of(const Message& message) {
  std::vector<std::byte> frame = frame_of(message);
  frame.erase(frame.begin(), frame.begin() + 4);
  return frame;
}

// For messages that encode() refuses: what a hostile peer could make.
class HostilePeer {
 public:
  template <class T>
  std::vector<std::byte> frame(flatbuffers::Offset<T> body) {
    flat::FinishFrameBuffer(
        builder, flat::CreateFrame(builder, flat::BodyTraits<T>::enum_value, flatbuffers::Offset<void>(body.o)));
    return bytes();
  }

  std::vector<std::byte> bytes() const {
    const auto all = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
    return {all.begin(), all.end()};
  }

  flatbuffers::Offset<flat::RankName> rank_name(std::uint32_t rank, std::uint32_t rank_count) {
    return flat::CreateRankName(builder, builder.CreateString("decode"), 1, rank, rank_count);
  }

  flatbuffers::FlatBufferBuilder builder;
};

void expect_bad(const Result<Message>& decoded, const char* reason) {
  ASSERT_FALSE(decoded.has_value()) << "decoded although " << reason;
  EXPECT_EQ(decoded.error().code, ErrorCode::kBadMessage);
  EXPECT_THAT(decoded.error().what, HasSubstr(reason));
}

class EachMessage : public testing::TestWithParam<Message> {};

TEST_P(EachMessage, IsDecodedToWhatWasEncoded) {
  const Result<Message> decoded = decode(body_of(GetParam()));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what;
  EXPECT_EQ(*decoded, GetParam());
}

TEST_P(EachMessage, FollowsItsLengthInLittleEndian) {
  const std::vector<std::byte> frame = frame_of(GetParam());
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < 4; ++i) length |= std::to_integer<std::uint32_t>(frame[i]) << (8 * i);
  EXPECT_EQ(length, frame.size() - 4);
}

TEST_P(EachMessage, IsDecodedFromAnyAlignment) {
  const std::vector<std::byte> body = body_of(GetParam());
  for (std::size_t offset = 0; offset < 8; ++offset) {
    std::vector<std::byte> moved(offset);
    moved.insert(moved.end(), body.begin(), body.end());
    EXPECT_EQ(decode(std::span(moved).subspan(offset)).value(), GetParam()) << "at offset " << offset;
  }
}

// Shows E3.
TEST_P(EachMessage, IsRefusedWhenTruncated) {
  const std::vector<std::byte> body = body_of(GetParam());
  for (std::size_t size = 0; size < body.size(); ++size) {
    // Only padding may be missing.
    const Result<Message> decoded = decode(std::span(body).first(size));
    if (!decoded.has_value()) continue;
    EXPECT_EQ(*decoded, GetParam()) << "cut to " << size << " bytes";
  }
  expect_bad(decode(std::span(body).first(body.size() / 2)), "no message");
}

INSTANTIATE_TEST_SUITE_P(Examples, EachMessage,
                         testing::Values(hello(), welcome(),
                                         Assign{{{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}}, "cma", {std::byte{9}}}, Assigned{},
                                         Refused{ErrorCode::kLayoutMismatch, "layer 3: 8 heads here, 4 there"},
                                         registration(), Writing{RegistrationNumber{1}}, delivered(),
                                         Failed{RegistrationNumber{2}, ErrorCode::kPeerLost, false},
                                         Quiet{RegistrationNumber{3}}, Revoke{RegistrationNumber{4}},
                                         Revoked{RegistrationNumber{~0ull}}, Unwanted{"cmpl-1"},
                                         Done{RegistrationNumber{6}}, Goodbye{}, Renew{Instant{-1ns}},
                                         Renewed{Instant::max()}, Expect{"cmpl-1"}, Admitted{"cmpl-1"}),
                         [](const auto& test) { return std::string(message_name(test.param)); });

TEST(Encode, AppendsAfterWhatIsThere) {
  std::vector<std::byte> frames = frame_of(Writing{RegistrationNumber{1}});
  const std::vector<std::byte> first = frames;

  ASSERT_TRUE(encode(Goodbye{}, frames).has_value());

  EXPECT_TRUE(std::equal(first.begin(), first.end(), frames.begin()));
  EXPECT_EQ(decode(std::span(frames).subspan(first.size() + 4)).value(), Message(Goodbye{}));
}

TEST(Encode, AppendsNothingWhenItRefuses) {
  std::vector<std::byte> frames(3);
  EXPECT_EQ(encode(Unwanted{text(kTransferIdBytesMax + 1)}, frames).error().code, ErrorCode::kBadMessage);
  EXPECT_EQ(frames.size(), 3u);
}

// Shows C10.
TEST(Encode, MakesALongPromptInOneRunOfBlocksSmall) {
  const std::uint32_t tokens = 128 * 1024;
  const Register message{RegistrationNumber{1}, text(64), {0, tokens}, {{{{BlockId{1000}, tokens / 16}}}}};
  EXPECT_LT(frame_of(message).size(), 256u);
}

// A value at its bound, and one past it. Both sides ask the same check, so encode() stands for decode() here.
struct LimitCase {
  const char* name;
  std::function<Message(std::size_t)> make;
  std::size_t limit;
};

class EachLimit : public testing::TestWithParam<LimitCase> {};

TEST_P(EachLimit, AllowsTheLimitAndRefusesOneMore) {
  const Message largest = GetParam().make(GetParam().limit);
  EXPECT_EQ(decode(body_of(largest)).value(), largest);

  std::vector<std::byte> frame;
  const auto beyond = encode(GetParam().make(GetParam().limit + 1), frame);
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().code, ErrorCode::kBadMessage);
}

Message hello_with(const std::function<void(Hello&)>& change) {
  Hello message = hello();
  change(message);
  return message;
}

Message register_with(BlockTables tables) {
  return Register{.registration = {}, .transfer_id = "t", .tokens = {}, .tables = std::move(tables)};
}

// `count` spans no two of which are neighbours.
std::vector<BlockSpan> spans(std::size_t count) {
  std::vector<BlockSpan> made;
  for (std::size_t i = 0; i < count; ++i) made.push_back({BlockId{static_cast<std::uint32_t>(2 * i)}, 1});
  return made;
}

const LimitCase kLimitCases[] = {
    {"EngineId", [](auto n) { return hello_with([n](Hello& m) { m.from.engine_id = text(n); }); }, kEngineIdBytesMax},
    {"RankCount",
     [](auto n) { return hello_with([n](Hello& m) { m.from.rank_count = static_cast<std::uint32_t>(n); }); },
     kRanksMax},
    {"Rank", [](auto n) { return hello_with([n](Hello& m) { m.from = {"e", {}, static_cast<std::uint32_t>(n), 8}; }); },
     7},
    {"Planes", [](auto n) { return hello_with([n](Hello& m) { m.layout.planes.assign(n, plane()); }); }, kPlanesMax},
    {"LayerName", [](auto n) { return hello_with([n](Hello& m) { m.layout.planes[0].layer = text(n); }); },
     kLayerNameBytesMax},
    {"Dtype", [](auto n) { return hello_with([n](Hello& m) { m.layout.planes[1].dtype = text(n); }); }, kDtypeBytesMax},
    {"Group",
     [](auto n) { return hello_with([n](Hello& m) { m.layout.planes[0].group = static_cast<std::uint16_t>(n); }); },
     kGroupsMax - 1},
    {"Component",
     [](auto n) { return hello_with([n](Hello& m) { m.layout.planes[0].component = static_cast<Component>(n); }); },
     static_cast<std::size_t>(Component::kState)},
    {"Transports", [](auto n) { return hello_with([n](Hello& m) { m.transports.assign(n, {"cma", {}}); }); },
     kTransportsMax},
    {"TransportName", [](auto n) { return hello_with([n](Hello& m) { m.transports[0].name = text(n); }); },
     kTransportNameBytesMax},
    {"TransportAddress", [](auto n) { return hello_with([n](Hello& m) { m.transports[0].address.resize(n); }); },
     kTransportAddressBytesMax},
    {"Shares", [](auto n) { return Assign{Assignment(n), "cma"}; }, kSharesMax},
    {"ChosenTransport", [](auto n) { return Assign{{}, text(n)}; }, kTransportNameBytesMax},
    {"ChosenAddress", [](auto n) { return Assign{{}, "cma", std::vector<std::byte>(n)}; }, kTransportAddressBytesMax},
    {"RefusalText", [](auto n) { return Refused{ErrorCode::kBusy, text(n)}; }, kRefusalBytesMax},
    {"FailureCode", [](auto n) { return Failed{{}, static_cast<ErrorCode>(n), true}; },
     static_cast<std::size_t>(ErrorCode::kUnauthenticated)},
    {"UnwantedTransferId", [](auto n) { return Unwanted{text(n)}; }, kTransferIdBytesMax},
    {"ExpectedTransferId", [](auto n) { return Expect{text(n)}; }, kTransferIdBytesMax},
    {"AdmittedTransferId", [](auto n) { return Admitted{text(n)}; }, kTransferIdBytesMax},
    {"RegisteredTransferId", [](auto n) { return Register{{}, text(n), {}, {}}; }, kTransferIdBytesMax},
    {"FirstToken", [](auto n) { return Register{{}, "t", {static_cast<std::uint32_t>(n), 40}, {}}; }, 40},
    {"Groups", [](auto n) { return register_with(BlockTables(n)); }, kGroupsMax},
    {"BlocksOfATable",
     [](auto n) { return register_with({{{{BlockId{9}, static_cast<std::uint32_t>(n - 1)}, {kAbsentBlock, 1}}}}); },
     kBlocksPerTableMax},
    {"LastBlockOfASpan", [](auto n) { return register_with({{{{BlockId{static_cast<std::uint32_t>(n)}, 5}}}}); },
     kAbsentBlock.value - 5},
    {"SpansOfAllTables", [](auto n) { return register_with({{spans(n - 8)}, {spans(8)}}); }, kSpansMax},
    {"SendTime", [](auto n) { return Delivered{{}, 0, {.since_offered = Duration(static_cast<Duration::rep>(n))}}; },
     static_cast<std::size_t>(Duration(kSendTimeMax).count())},
};

INSTANTIATE_TEST_SUITE_P(Messages, EachLimit, testing::ValuesIn(kLimitCases),
                         [](const auto& test) { return std::string(test.param.name); });

// Shows C10.
TEST(Encode, FitsTheLargestMessagesIntoAFrame) {
  Plane largest = plane();
  largest.layer = text(kLayerNameBytesMax);
  largest.dtype = text(kDtypeBytesMax);
  const TransportOffer offer{text(kTransportNameBytesMax), std::vector<std::byte>(kTransportAddressBytesMax)};
  const Hello message{.from = {text(kEngineIdBytesMax), Incarnation{1}, 63, 64},
                      .session = SessionNumber{1},
                      .layout = {std::vector<Plane>(kPlanesMax, largest)},
                      .transports = std::vector<TransportOffer>(kTransportsMax, offer)};
  EXPECT_LT(frame_of(message).size(), kFrameBytesMax);
  EXPECT_LT(frame_of(register_with({{spans(kSpansMax)}})).size(), kFrameBytesMax);
  EXPECT_LT(frame_of(Assign{Assignment(kSharesMax), text(kTransportNameBytesMax)}).size(), kFrameBytesMax);
}

TEST(Encode, RefusesASpanWithoutBlocks) {
  std::vector<std::byte> frame;
  EXPECT_FALSE(encode(register_with({{{{BlockId{4}, 0}}}}), frame).has_value());
}

TEST(Decode, RefusesBytesOfAnotherKind) {
  std::vector<std::byte> body = body_of(Goodbye{});
  body[4] = std::byte{'X'};  // the file identifier
  expect_bad(decode(body), "no message");
}

TEST(Decode, RefusesMoreThanAFrame) {
  expect_bad(decode(std::vector<std::byte>(kFrameBytesMax + 1)), "too large");
}

TEST(Decode, RefusesAKindItDoesNotKnow) {
  HostilePeer peer;
  const auto body = flat::CreateGoodbye(peer.builder);
  const auto kind = static_cast<flat::Body>(flat::Body_MAX + 1);
  flat::FinishFrameBuffer(peer.builder, flat::CreateFrame(peer.builder, kind, flatbuffers::Offset<void>(body.o)));
  expect_bad(decode(peer.bytes()), "kind is unknown");
}

TEST(Decode, RefusesAMissingField) {
  HostilePeer peer;
  const auto start = peer.builder.StartTable();
  const flatbuffers::Offset<flat::Unwanted> no_transfer_id(peer.builder.EndTable(start));
  expect_bad(decode(peer.frame(no_transfer_id)), "no message");
}

TEST(Decode, RefusesALongText) {
  HostilePeer peer;
  const auto message = flat::CreateUnwanted(peer.builder, peer.builder.CreateString(text(kTransferIdBytesMax + 1)));
  expect_bad(decode(peer.frame(message)), "transfer id is too long");
}

TEST(Decode, RefusesAnUnknownErrorCode) {
  for (const ErrorCode code : {ErrorCode{0}, ErrorCode{19}, ErrorCode{255}}) {
    HostilePeer peer;
    expect_bad(decode(peer.frame(flat::CreateFailed(peer.builder, 1, static_cast<std::uint8_t>(code), true))),
               "error code is unknown");
  }
}

// Shows C7.
TEST(Decode, ReadsWhoGreetsInAnotherVersionWhateverItSaysOfItsLayout) {
  const std::uint32_t other = kProtocolVersion + 1;
  HostilePeer peer;
  const auto from = peer.rank_name(0, 1);
  const auto text_of = [&](const char* value) { return peer.builder.CreateString(value); };
  const flat::HeadRange heads(0, 1, 1);
  const auto plane = flat::CreatePlane(peer.builder, text_of("layers.0"), 99, 999, text_of("float9"), 1, 1, 1, &heads);
  const auto planes = peer.builder.CreateVector(std::vector{plane});
  const auto transports = peer.builder.CreateVector<flatbuffers::Offset<flat::TransportOffer>>({});

  const auto decoded = decode(peer.frame(flat::CreateHello(peer.builder, other, from, 1, planes, transports)));

  ASSERT_TRUE(decoded) << decoded.error().what;
  EXPECT_EQ(*decoded, Message(Hello{other, {"decode", {1}, 0, 1}, {1}, {}, {}}));
}

TEST(Decode, ReadsARefusalForAReasonItDoesNotKnow) {
  HostilePeer peer;
  const auto decoded = decode(peer.frame(flat::CreateRefused(peer.builder, 200, peer.builder.CreateString("moved"))));

  ASSERT_TRUE(decoded) << decoded.error().what;
  EXPECT_EQ(*decoded, Message(Refused{ErrorCode::kUnavailable, "moved"}));
}

TEST(Decode, RefusesARankOutsideItsEngine) {
  HostilePeer peer;
  const auto from = peer.rank_name(4, 4);
  const auto planes = peer.builder.CreateVector<flatbuffers::Offset<flat::Plane>>({});
  const auto transports = peer.builder.CreateVector<flatbuffers::Offset<flat::TransportOffer>>({});
  const auto message = flat::CreateWelcome(peer.builder, kProtocolVersion, from, planes, transports);
  expect_bad(decode(peer.frame(message)), "outside its engine");
}

// A few bytes that stand for many: tables and planes may point to the same bytes.
TEST(Decode, RefusesTablesThatShareTheirSpansToSeemLarge) {
  HostilePeer peer;
  const std::vector<flat::BlockSpan> many(kSpansMax / 2, flat::BlockSpan(1, 1));
  const auto shared = peer.builder.CreateVectorOfStructs(many);
  std::vector<flatbuffers::Offset<flat::BlockTable>> tables;
  for (int i = 0; i < 3; ++i) tables.push_back(flat::CreateBlockTable(peer.builder, shared));
  const flat::TokenRange tokens(0, 16);
  const auto transfer_id = peer.builder.CreateString("t");
  const auto message = flat::CreateRegister(peer.builder, 1, transfer_id, &tokens, peer.builder.CreateVector(tables));
  expect_bad(decode(peer.frame(message)), "too many spans");
}

TEST(Decode, RefusesMoreTablesThanAnyMessageHas) {
  HostilePeer peer;
  const auto name = peer.builder.CreateString("cma");
  const auto address = peer.builder.CreateVector(std::vector<std::uint8_t>{});
  const auto offer = flat::CreateTransportOffer(peer.builder, name, address);
  const auto transports = peer.builder.CreateVector(std::vector(100'000, offer));
  const auto planes = peer.builder.CreateVector<flatbuffers::Offset<flat::Plane>>({});
  const auto message = flat::CreateWelcome(peer.builder, kProtocolVersion, peer.rank_name(0, 1), planes, transports);
  expect_bad(decode(peer.frame(message)), "no message");
}

}  // namespace
}  // namespace kvpush
