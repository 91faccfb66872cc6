// Consumer: requests and their registrations.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/protocol/consumer.h"

namespace kvpush {

void Consumer::register_request(Link& link, const RequestId& id, Instant now, Actions& out) {
  Request& request = requests_.at(id);
  const Receive& receive = request.receive;
  deadlines_.clear({.kind = Kind::kPending, .request = id});
  deadlines_.clear({.kind = Kind::kProof, .request = id});  // all that was asked for has come
  request.loss.reset();
  request.incarnation = link.engine.incarnation;
  request.times.registered = now;
  request.parts.resize(link.sessions.size());
  for (std::uint32_t rank = 0; rank < link.sessions.size(); ++rank) {
    if (request.parts[rank].state == PartState::kDelivered) continue;
    Session& session = link.sessions[rank];
    const Result<std::uint64_t> bytes = session.plan->bytes_expected(receive.tokens, receive.tables);
    KVPUSH_CHECK(bytes.has_value(), "tables that fit all planes fit those of one producer rank");
    ++registration_last_.value;
    ++counters_.registrations;
    registrations_.emplace(registration_last_, id);
    link.unproven[rank].insert(registration_last_);
    request.parts[rank] = {PartState::kRegistered, registration_last_, *session.peer, *bytes};
    await_rank({receive.producer, rank}, session, now);
    out.push_back(SendMessage{*session.connection,
                              Register{registration_last_, receive.transfer_id, receive.tokens, receive.tables}});
  }
}

void Consumer::fail_request(const RequestId& id, ErrorCode code, Instant now, Actions& out) {
  Request& request = requests_.at(id);
  if (!request.failure) request.failure = code;
  Link& link = links_.at(request.receive.producer);
  const auto parts = static_cast<std::uint32_t>(request.parts.size());
  for (std::uint32_t rank = 0; rank < parts && requests_.contains(id); ++rank) {
    const Part& part = request.parts[rank];
    if (part.is_fenced && registrations_.contains(part.number)) settle(id, rank, PartState::kQuiescent, now, out);
  }
  if (!requests_.contains(id)) return;
  revoke(link, id, now, out);
  end_if_settled(id, now, out);
}

void Consumer::on_loss(const RequestId& id, ErrorCode code, bool may_return, Instant now, Actions& out) {
  Request& request = requests_.at(id);
  deadlines_.clear({.kind = Kind::kProof, .request = id});
  for (Part& part : request.parts) {
    if (!registrations_.contains(part.number)) continue;
    part.state = PartState::kOpen;
    if (!fences(part.peer) || std::exchange(part.is_fenced, true)) continue;
    ++counters_.fences;
  }
  if (!may_return || request.failure || ++request.losses == kSessionsOfRequestMax) {
    return fail_request(id, request.loss.value_or(code), now, out);
  }
  request.loss = code;
  request.writing = false;
  deadlines_.set({.kind = Kind::kPending, .request = id}, now + options_.drain_limit);
}

void Consumer::end_part(const RequestId& id, std::uint32_t rank, ErrorCode code, Instant now, Actions& out) {
  Request& request = requests_.at(id);
  if (!request.failure) request.failure = code;
  settle(id, rank, PartState::kQuiescent, now, out);
  if (requests_.contains(id)) fail_request(id, code, now, out);
}

void Consumer::revoke(Link& link, const RequestId& id, Instant now, Actions& out) {
  Request& request = requests_.at(id);
  if (link.state != LinkState::kReady || link.engine.incarnation != request.incarnation) return;
  for (std::uint32_t rank = 0; rank < request.parts.size(); ++rank) {
    Part& part = request.parts[rank];
    if (part.state != PartState::kRegistered && part.state != PartState::kOpen) continue;
    part.state = PartState::kRevoking;
    ++counters_.revokes;
    out.push_back(SendMessage{*link.sessions[rank].connection, Revoke{part.number}});
    expect_proof(id, now);
  }
}

void Consumer::expect_proof(const RequestId& id, Instant now) {
  // The producer needs drain_limit at most; as much again for the way.
  deadlines_.set({.kind = Kind::kProof, .request = id}, now + 2 * options_.drain_limit);
}

void Consumer::on(const RankOfLink& at, const Writing& message) {
  if (const std::optional<RequestId> id = find(at, message.registration)) requests_.at(*id).writing = true;
}

void Consumer::on(const RankOfLink& at, const Delivered& message, Instant now, Actions& out) {
  const std::optional<RequestId> id = find(at, message.registration);
  if (!id) return;
  Request& request = requests_.at(*id);
  const std::uint64_t expected = request.parts[at.rank].bytes;
  if (message.bytes != expected) {
    refuse(at, ErrorCode::kBadMessage,
           fmt::format("transfer {}: {} bytes were delivered instead of {}", request.receive.transfer_id, message.bytes,
                       expected),
           false, now, out);
    // Where nothing could be fenced: its writes have ended all the same, and asking again would end as this did.
    if (registrations_.contains(message.registration)) settle(*id, at.rank, PartState::kQuiescent, now, out);
    return;
  }
  request.times.producer = message.times;
  counters_.bytes_received += message.bytes;
  settle(*id, at.rank, PartState::kDelivered, now, out);
}

void Consumer::on(const RankOfLink& at, const Failed& message, Instant now, Actions& out) {
  const std::optional<RequestId> id = find(at, message.registration);
  if (!id) return;
  Request& request = requests_.at(*id);
  if (request.failure == ErrorCode::kPeerLost) request.failure = message.code;  // kept for us: it knows better
  Part& part = request.parts[at.rank];
  const bool may_be_fence = part.is_fenced && message.code == ErrorCode::kTransportFailed;
  const bool is_of_loss = message.code == ErrorCode::kPeerLost || may_be_fence;
  if (request.loss && is_of_loss) {  // it is registered again; but what fails by itself would fail again: once
    if (may_be_fence) request.losses = kSessionsOfRequestMax - 1;
    if (message.quiescent) settle(*id, at.rank, PartState::kQuiescent, now, out);
    return;
  }
  if (message.quiescent) return end_part(*id, at.rank, message.code, now, out);
  part.state = PartState::kRevoking;
  expect_proof(*id, now);
  fail_request(*id, message.code, now, out);
}

void Consumer::on(const RankOfLink& at, const Quiet& message, Instant now, Actions& out) {
  on_quiet(at, message.registration, now, out);
}

void Consumer::on(const RankOfLink& at, const Revoked& message, Instant now, Actions& out) {
  on_quiet(at, message.registration, now, out);
}

void Consumer::on_quiet(const RankOfLink& at, RegistrationNumber number, Instant now, Actions& out) {
  const std::optional<RequestId> id = find(at, number);
  if (!id) return;
  if (!requests_.at(*id).failure && !requests_.at(*id).loss) {
    return refuse(at, ErrorCode::kBadMessage, "a registration ended without Revoke or Failed before", false, now, out);
  }
  settle(*id, at.rank, PartState::kQuiescent, now, out);
}

void Consumer::settle(const RequestId& id, std::uint32_t rank, PartState state, Instant now, Actions& out) {
  Request& request = requests_.at(id);
  Part& part = request.parts[rank];
  part.state = state;
  registrations_.erase(part.number);
  Link& link = links_.at(request.receive.producer);
  if (link.engine.incarnation == request.incarnation) {
    link.unproven[rank].erase(part.number);
    if (link.state == LinkState::kReady) {
      tell_done(link, rank, out);
      rest_rank({request.receive.producer, rank}, link);
    }
  }
  if (watched_.contains(part.peer) && !is_needed(part.peer)) {
    watched_.erase(part.peer);
    out.push_back(DisconnectPeer{part.peer});
  }
  end_if_settled(id, now, out);
}

void Consumer::tell_done(Link& link, std::uint32_t rank, Actions& out) {
  const std::set<RegistrationNumber>& unproven = link.unproven[rank];
  const RegistrationNumber up_to =
      unproven.empty() ? registration_last_ : RegistrationNumber{unproven.begin()->value - 1};
  Session& session = link.sessions[rank];
  if (session.done >= up_to) return;
  session.done = up_to;
  out.push_back(SendMessage{*session.connection, Done{up_to}});
}

bool Consumer::has_proof(const Request& request) const {
  return std::ranges::none_of(request.parts, [&](const Part& part) { return registrations_.contains(part.number); });
}

void Consumer::end_if_settled(const RequestId& id, Instant now, Actions& out) {
  Request& request = requests_.at(id);
  if (!has_proof(request)) return;
  std::uint64_t bytes = 0;
  bool is_delivered = !request.parts.empty();
  for (const Part& part : request.parts) {
    is_delivered = is_delivered && part.state == PartState::kDelivered;
    if (part.state == PartState::kDelivered) bytes += part.bytes;
  }
  if (!is_delivered && !request.failure) {
    KVPUSH_CHECK(request.loss, "a request that is not delivered has a reason");
    Link& link = links_.at(request.receive.producer);
    if (link.state == LinkState::kReady) register_request(link, id, now, out);
    return;
  }
  if (!is_delivered) ++counters_.receives_failed;
  request.times.ended = now;
  const Receive& receive = request.receive;
  out.push_back(TellEngine{ReceiveEnded{id, receive.transfer_id, is_delivered ? std::nullopt : request.failure, bytes,
                                        receive.tokens.end - receive.tokens.first, receive.producer, request.times}});
  for (const Kind kind : {Kind::kPending, Kind::kReceive, Kind::kProof}) {
    deadlines_.clear({.kind = kind, .request = id});
  }
  links_.at(receive.producer).requests.erase(id);
  requests_.erase(id);
}

std::optional<RequestId> Consumer::find(const RankOfLink& at, RegistrationNumber number) {
  const auto found = registrations_.find(number);
  if (found != registrations_.end()) {
    const Request& request = requests_.at(found->second);
    const bool is_of_rank = request.receive.producer == at.directory && at.rank < request.parts.size() &&
                            request.parts[at.rank].number == number;
    if (is_of_rank) return found->second;
  }
  ++counters_.late_messages;
  return std::nullopt;
}

}  // namespace kvpush
