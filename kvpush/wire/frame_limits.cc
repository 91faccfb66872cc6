#include "kvpush/wire/frame_limits.h"

#include <algorithm>
#include <cstdint>

#include "kvpush/base/ids.h"
#include "kvpush/layout/layout.h"
#include "kvpush/wire/limits.h"
#include "message_generated.h"

namespace kvpush {
namespace {

std::unexpected<Error> bad(const char* what) {
  return fail(ErrorCode::kBadMessage, what);
}

Result<void> check(const flat::RankName& name) {
  if (name.engine_id()->size() > kEngineIdBytesMax) return bad("an engine id is too long");
  if (name.rank_count() > kRanksMax) return bad("an engine has too many ranks");
  if (name.rank() >= name.rank_count()) return bad("a rank is outside its engine's rank count");
  return {};
}

Result<void> check(const flat::Plane& plane) {
  if (plane.layer()->size() > kLayerNameBytesMax) return bad("a layer name is too long");
  if (plane.dtype()->size() > kDtypeBytesMax) return bad("a dtype is too long");
  if (plane.group() >= kGroupsMax) return bad("a plane's group is out of range");
  switch (static_cast<Component>(plane.component())) {
    case Component::kKey:
    case Component::kValue:
    case Component::kLatent:
    case Component::kState: return {};
  }
  return bad("a plane's component is unknown");
}

Result<void> check(const flat::TransportOffer& offer) {
  if (offer.name()->size() > kTransportNameBytesMax) return bad("a transport's name is too long");
  if (offer.address()->size() > kTransportAddressBytesMax) return bad("a transport's address is too long");
  return {};
}

// What Hello and Welcome have in common.
template <class Greeting>
Result<void> check_greeting(const Greeting& greeting) {
  if (const auto ok = check(*greeting.from()); !ok) return ok;
  if (greeting.version() != kProtocolVersion) return {};
  if (greeting.planes()->size() > kPlanesMax) return bad("a layout has too many planes");
  for (const flat::Plane* plane : *greeting.planes()) {
    if (const auto ok = check(*plane); !ok) return ok;
  }
  if (greeting.transports()->size() > kTransportsMax) return bad("a rank offers too many transports");
  for (const flat::TransportOffer* offer : *greeting.transports()) {
    if (const auto ok = check(*offer); !ok) return ok;
  }
  return {};
}

Result<void> check(const flat::Assign& assign) {
  if (assign.shares()->size() > kSharesMax) return bad("an assignment has too many shares");
  if (assign.transport()->size() > kTransportNameBytesMax) return bad("a transport's name is too long");
  if (assign.address() != nullptr && assign.address()->size() > kTransportAddressBytesMax) {
    return bad("a transport's address is too long");
  }
  return {};
}

Result<void> check(const flat::Refused& refused) {
  if (refused.text()->size() > kRefusalBytesMax) return bad("a refusal's text is too long");
  return {};
}

Result<void> check(const flat::BlockTable& table) {
  std::uint64_t blocks = 0;
  for (const flat::BlockSpan* span : *table.spans()) {
    if (span->count() == 0) return bad("a span of blocks is empty");
    const bool absent = span->first() == kAbsentBlock.value;
    if (!absent && span->count() > kAbsentBlock.value - span->first()) {
      return bad("a span of blocks passes the last id");
    }
    blocks += span->count();
  }
  if (blocks > kBlocksPerTableMax) return bad("a block table has too many blocks");
  return {};
}

Result<void> check_transfer_id(const flatbuffers::String& transfer_id) {
  if (transfer_id.size() > kTransferIdBytesMax) return bad("a transfer id is too long");
  return {};
}

Result<void> check(const flat::Register& message) {
  if (const auto ok = check_transfer_id(*message.transfer_id()); !ok) return ok;
  if (message.tokens()->first() > message.tokens()->end()) return bad("a token range ends before it begins");
  if (message.tables()->size() > kGroupsMax) return bad("a registration has too many block tables");
  std::size_t spans = 0;
  for (const flat::BlockTable* table : *message.tables()) {
    spans += table->spans()->size();
    if (spans > kSpansMax) return bad("a registration has too many spans of blocks");
    if (const auto ok = check(*table); !ok) return ok;
  }
  return {};
}

Result<void> check(const flat::Delivered& delivered) {
  const flat::SendTimes& times = *delivered.times();
  for (const std::int64_t time :
       {times.since_offered(), times.since_matched(), times.since_first_post(), times.since_last_post()}) {
    if (time > Duration(kSendTimeMax).count() || time < -Duration(kSendTimeMax).count()) {
      return bad("a time is out of range");
    }
  }
  return {};
}

Result<void> check(const flat::Failed& failed) {
  if (!is_error_code(failed.code())) return bad("an error code is unknown");
  return {};
}

}  // namespace

bool is_error_code(std::uint8_t code) {
  return std::ranges::any_of(kErrorCodes, [code](ErrorCode known) { return static_cast<std::uint8_t>(known) == code; });
}

Result<void> check_limits(const flat::Frame& frame) {
  switch (frame.body_type()) {
    case flat::Body_Hello: return check_greeting(*frame.body_as_Hello());
    case flat::Body_Welcome: return check_greeting(*frame.body_as_Welcome());
    case flat::Body_Assign: return check(*frame.body_as_Assign());
    case flat::Body_Refused: return check(*frame.body_as_Refused());
    case flat::Body_Register: return check(*frame.body_as_Register());
    case flat::Body_Delivered: return check(*frame.body_as_Delivered());
    case flat::Body_Failed: return check(*frame.body_as_Failed());
    case flat::Body_Unwanted: return check_transfer_id(*frame.body_as_Unwanted()->transfer_id());
    case flat::Body_Expect: return check_transfer_id(*frame.body_as_Expect()->transfer_id());
    case flat::Body_Admitted: return check_transfer_id(*frame.body_as_Admitted()->transfer_id());
    case flat::Body_Assigned:
    case flat::Body_Writing:
    case flat::Body_Quiet:
    case flat::Body_Revoke:
    case flat::Body_Revoked:
    case flat::Body_Done:
    case flat::Body_Goodbye:
    case flat::Body_Renew:
    case flat::Body_Renewed: return {};
    case flat::Body_NONE: break;
  }
  return bad("a message's kind is unknown");
}

}  // namespace kvpush
