#include "kvpush/protocol/consumer.h"

#include <algorithm>
#include <utility>

#include "kvpush/base/limits.h"
#include "kvpush/base/overloaded.h"
#include "kvpush/wire/codec.h"

namespace kvpush {

namespace {

PairPlan plan_onto_itself(const RankLayout& layout) {
  Assignment shares;
  for (std::uint32_t plane = 0; plane < layout.planes.size(); ++plane) {
    shares.push_back(
        {.producer_plane = plane, .consumer_plane = plane, .head_count = layout.planes[plane].heads.count});
  }
  return PairPlan::make(layout, layout, shares);
}

}  // namespace

Consumer::Consumer(RankName self, RankLayout layout, std::vector<TransportView> transports, ProtocolOptions options,
                   Random random)
    : self_(std::move(self)),
      layout_(std::move(layout)),
      transports_(std::move(transports)),
      options_(options),
      own_plan_(plan_onto_itself(layout_)),
      random_(random) {}

Result<void> Consumer::on(const Receive& command, Instant now, Actions& out) {
  if (draining_) return fail(ErrorCode::kStopped, "the agent is draining");
  if (requests_.size() >= kRequestsMax) return fail(ErrorCode::kFull, "too many requests wait for their KV");
  if (requests_.contains(command.request)) return fail(ErrorCode::kBusy, "a request of that name waits already");
  if (!is_transfer_id(command.transfer_id)) {
    return fail(ErrorCode::kBadParams, "a transfer id has 1 to 128 bytes");
  }
  if (const auto bytes = own_plan_.bytes_expected(command.tokens, command.tables); !bytes) {
    return std::unexpected(bytes.error());
  }
  // The plan looks only at what its tokens and planes need; a Register that cannot be sent would end its session.
  std::vector<std::byte> frame;
  const Register message{{}, command.transfer_id, command.tokens, command.tables};
  if (const auto encoded = encode(message, frame); !encoded) return encoded;
  if (!links_.contains(command.producer) && links_.size() >= kSessionsMax) {
    return fail(ErrorCode::kFull, "links to too many producer engines");
  }
  ++counters_.receives;
  forget_await(command.producer, command.transfer_id, out);
  Request& request = requests_[command.request];
  request.receive = command;
  request.times.received = now;
  Link& link = open_link(command.producer, now, out);
  link.declines.erase(command.transfer_id);
  link.requests.insert(command.request);
  if (link.refused || link.draining) {
    fail_request(command.request, link.refused.value_or(ErrorCode::kStopped), now, out);
    return {};
  }
  deadlines_.set({.kind = Kind::kReceive, .request = command.request}, now + options_.receive_timeout);
  if (link.state == LinkState::kReady) {
    register_request(link, command.request, now, out);
  } else {
    deadlines_.set({.kind = Kind::kPending, .request = command.request}, now + options_.session_limit);
  }
  return {};
}

void Consumer::on(const Abandon& command, Instant now, Actions& out) {
  if (requests_.contains(command.request)) fail_request(command.request, ErrorCode::kAborted, now, out);
}

void Consumer::on(const Decline& command, Instant now, Actions& out) {
  if (!is_transfer_id(command.transfer_id)) return;  // nobody has such a one
  if (draining_ || (!links_.contains(command.producer) && links_.size() >= kSessionsMax)) return;
  ++counters_.declines;
  forget_await(command.producer, command.transfer_id, out);
  decline(open_link(command.producer, now, out), command.transfer_id, out);
}

void Consumer::on(const Await& command, Instant now, Actions& out) {
  const std::pair key(command.producer, command.transfer_id);
  const bool is_possible = !draining_ && is_transfer_id(command.transfer_id) && awaited_.size() < kRequestsMax &&
                           !awaited_.contains(key) &&
                           (links_.contains(command.producer) || links_.size() < kSessionsMax);
  if (is_possible) {
    ++counters_.awaits;
    Link& link = open_link(command.producer, now, out);
    link.declines.erase(command.transfer_id);
    if (!link.refused && !link.draining) {
      awaited_.emplace(key, false);
      ++link.awaits;
      deadlines_.set({.kind = Kind::kAwait, .directory = command.producer, .transfer_id = command.transfer_id},
                     now + options_.match_timeout);
      if (link.state == LinkState::kReady) expect(command.producer, link, command.transfer_id, now, out);
      return;
    }
  }
  out.push_back(TellEngine{AwaitEnded{command.transfer_id, command.producer}});
}

void Consumer::on(ConnectionId connection, const Message& message, Instant now, Actions& out) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  const RankOfLink at = found->second;
  Session& session = links_.at(at.directory).sessions[at.rank];
  session.heard = now;
  if (session.state <= SessionState::kGreeting && !std::holds_alternative<Welcome>(message) &&
      !std::holds_alternative<Refused>(message)) {
    return refuse(at, ErrorCode::kBadMessage, "a message came before Welcome", false, now, out);
  }
  std::visit(Overloaded{[&](const Welcome& m) { on(at, m, now, out); },    //
                        [&](const Assigned& m) { on(at, m, now, out); },   //
                        [&](const Refused& m) { on(at, m, now, out); },    //
                        [&](const Writing& m) { on(at, m); },              //
                        [&](const Delivered& m) { on(at, m, now, out); },  //
                        [&](const Failed& m) { on(at, m, now, out); },     //
                        [&](const Quiet& m) { on(at, m, now, out); },      //
                        [&](const Revoked& m) { on(at, m, now, out); },    //
                        [&](const Renew& m) { out.push_back(SendMessage{connection, Renewed{m.stamp}}); },
                        [&](const Admitted& m) { on(at, m, out); },
                        [&](const Goodbye&) {
                          links_.at(at.directory).draining = true;
                          end_awaits(at.directory, out);
                        },
                        [&](const auto&) {
                          refuse(at, ErrorCode::kBadMessage, "a message that only consumers send", false, now, out);
                        }},
             message);
}

void Consumer::on_closed(ConnectionId connection, Instant now, Actions& out, const Error& why) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  const RankOfLink at = found->second;
  connections_.erase(found);
  links_.at(at.directory).sessions[at.rank].connection.reset();
  if (why.code == ErrorCode::kBadMessage) ++counters_.bad_messages;
  const ErrorCode code = why.code == ErrorCode::kBadMessage ? why.code : ErrorCode::kPeerLost;
  end_link(at.directory, code, why.what, false, now, out);
}

void Consumer::on_peer_lost(Peer peer, bool writer_gone, Instant now, Actions& out) {
  if (writer_gone) {
    std::vector<std::pair<RequestId, std::uint32_t>> ended;
    for (const auto& [id, request] : requests_) {
      for (std::uint32_t rank = 0; rank < request.parts.size(); ++rank) {
        const Part& part = request.parts[rank];
        if (part.peer == peer && registrations_.contains(part.number)) ended.emplace_back(id, rank);
      }
    }
    for (const auto& [id, rank] : ended) end_part(id, rank, ErrorCode::kPeerLost, now, out);
  }
  for (const auto& [directory, link] : links_) {
    const auto uses = [&](const Session& session) { return session.peer == peer; };
    if (std::ranges::none_of(link.sessions, uses)) continue;
    end_link(Endpoint(directory), ErrorCode::kPeerLost, "the data endpoint failed", false, now, out);
    return;
  }
}

void Consumer::tick(Instant now, Actions& out) {
  for (const DeadlineKey& due : deadlines_.take_due(now)) {
    switch (due.kind) {
      case Kind::kStart:
        end_link(due.directory, ErrorCode::kTimeout, "the sessions were not ready in time", false, now, out);
        break;
      case Kind::kRetry: {
        const auto link = links_.find(due.directory);
        if (link == links_.end()) break;
        if (link->second.requests.empty() && link->second.declines.empty() && !is_awaited(due.directory)) {
          links_.erase(link);
        } else {
          resolve(due.directory, link->second, now, out);
        }
        break;
      }
      case Kind::kSilence: on_silence({due.directory, due.rank}, now, out); break;
      case Kind::kPending:
      case Kind::kReceive:
        if (const auto found = requests_.find(due.request); found != requests_.end()) {
          fail_request(due.request, found->second.loss.value_or(ErrorCode::kTimeout), now, out);
        }
        break;
      case Kind::kAwait:
        // The prefill leg may never have come; only the producer's answer to a registration tells.
        if (const auto found = awaited_.find({due.directory, due.transfer_id}); found != awaited_.end()) {
          end_await(due.directory, due.transfer_id, found->second, out);
        }
        break;
      case Kind::kProof: {
        const auto request = requests_.find(due.request);
        if (request == requests_.end()) break;
        const Endpoint directory = request->second.receive.producer;
        if (links_.at(directory).state != LinkState::kReady) break;  // one that was due before it has ended the link
        ++counters_.links_overdue;
        end_link(directory, ErrorCode::kTimeout, "the producer does not say that its writes have ended", false, now,
                 out);
        break;
      }
    }
  }
}

void Consumer::drain(Instant now, Actions& out) {
  draining_ = true;
  for (const auto& [connection, at] : connections_) {
    if (links_.at(at.directory).state == LinkState::kReady) out.push_back(SendMessage{connection, Goodbye{}});
  }
  std::vector<RequestId> waiting;
  for (const auto& [id, request] : requests_) waiting.push_back(id);
  for (const RequestId& id : waiting) fail_request(id, ErrorCode::kStopped, now, out);
  for (auto& [key, is_told] : awaited_) end_await(key.first, key.second, is_told, out);
  awaited_.clear();
}

ConsumerGauges Consumer::gauges() const {
  ConsumerGauges gauges{.engines = links_.size(), .requests = requests_.size(), .awaited = awaited_.size()};
  for (const auto& [directory, link] : links_) {
    if (link.state == LinkState::kReady) gauges.sessions_ready += link.sessions.size();
  }
  for (const Waiting& request : waiting()) gauges.quarantined += request.quarantined ? 1 : 0;
  return gauges;
}

std::vector<Consumer::Waiting> Consumer::waiting() const {
  std::vector<Waiting> waiting;
  waiting.reserve(requests_.size());
  for (const auto& [id, request] : requests_) {
    const Receive& receive = request.receive;
    const auto is_open = [](const Part& part) { return part.state == PartState::kOpen && !part.is_fenced; };
    waiting.push_back({id, receive.transfer_id, receive.producer, receive.tokens.end - receive.tokens.first,
                       request.times.received, !request.parts.empty(), request.writing,
                       request.failure && std::ranges::any_of(request.parts, is_open)});
  }
  return waiting;
}

}  // namespace kvpush
