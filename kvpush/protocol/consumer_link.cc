// Consumer: sessions to the ranks of a producer engine.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kvpush/base/limits.h"
#include "kvpush/protocol/consumer.h"

namespace kvpush {

namespace {

// Whether trying again soon would end the same way.
bool is_lasting(ErrorCode code) {
  return code == ErrorCode::kVersionMismatch || code == ErrorCode::kLayoutMismatch || code == ErrorCode::kUnavailable ||
         code == ErrorCode::kStopped || code == ErrorCode::kUnauthenticated;
}

}  // namespace

Consumer::Link& Consumer::open_link(const Endpoint& directory, Instant now, Actions& out) {
  const auto [link, is_new] = links_.try_emplace(directory);
  if (is_new) resolve(directory, link->second, now, out);
  return link->second;
}

void Consumer::resolve(const Endpoint& directory, Link& link, Instant now, Actions& out) {
  link.state = LinkState::kResolving;
  link.refused.reset();
  deadlines_.set({.kind = Kind::kStart, .directory = directory}, now + options_.session_limit);
  out.push_back(ResolveEngine{directory});
}

void Consumer::on_resolved(const Endpoint& directory, const Result<ProducerEngine>& engine, Instant now, Actions& out) {
  const auto found = links_.find(directory);
  if (found == links_.end() || found->second.state != LinkState::kResolving) return;
  Link& link = found->second;
  if (!engine) {
    ++counters_.resolves_failed;
    return end_link(directory, engine.error().code, engine.error().what, false, now, out);
  }
  if (engine->ranks.empty() || engine->ranks.size() > kRanksMax) {
    return end_link(directory, ErrorCode::kBadMessage, "its directory names no ranks, or too many", true, now, out);
  }
  for (const auto& [other_name, other] : links_) {
    const bool is_there = other.state == LinkState::kStarting || other.state == LinkState::kReady;
    if (!is_there || other.engine.incarnation != engine->incarnation) continue;
    // Its ranks would end the sessions of that name for those of this one, and so on for ever.
    return end_link(directory, ErrorCode::kBadParams,
                    fmt::format("this engine is already known as {}", to_string(other_name)), true, now, out);
  }
  if (engine->incarnation == link.engine.incarnation && engine->ranks.size() != link.unproven.size()) {
    return end_link(directory, ErrorCode::kBadMessage, "its directory changed the number of ranks", true, now, out);
  }
  if (engine->incarnation != link.engine.incarnation) {
    const std::set<RequestId> requests = link.requests;
    for (const RequestId& id : requests) {
      Request& request = requests_.at(id);
      if (request.failure == ErrorCode::kPeerLost) request.failure = ErrorCode::kPeerRestarted;
      if (request.loss) fail_request(id, ErrorCode::kPeerRestarted, now, out);
    }
    link.unproven.clear();
  }
  link.engine = *engine;
  link.state = LinkState::kStarting;
  link.unproven.resize(engine->ranks.size());
  link.sessions = std::vector<Session>(engine->ranks.size());
  for (std::uint32_t rank = 0; rank < engine->ranks.size(); ++rank) {
    out.push_back(Dial{directory, rank, engine->ranks[rank]});
  }
}

void Consumer::on_dialled(const Endpoint& directory, std::uint32_t rank, ConnectionId connection) {
  links_.at(directory).sessions[rank].connection = connection;
  connections_.emplace(connection, RankOfLink{directory, rank});
}

void Consumer::on_connected(ConnectionId connection, Instant, Actions& out) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  links_.at(found->second.directory).sessions[found->second.rank].state = SessionState::kGreeting;
  ++session_last_.value;
  out.push_back(SendMessage{connection, Hello{kProtocolVersion, self_, session_last_, layout_, offers(transports_)}});
}

void Consumer::on(const RankOfLink& at, const Welcome& message, Instant now, Actions& out) {
  Link& link = links_.at(at.directory);
  Session& session = link.sessions[at.rank];
  if (session.state != SessionState::kGreeting) {
    return refuse(at, ErrorCode::kBadMessage, "Welcome came without Hello before it", false, now, out);
  }
  if (message.version != kProtocolVersion) {
    return refuse(
        at, ErrorCode::kVersionMismatch,
        fmt::format("the producer speaks protocol version {}, the consumer {}", message.version, kProtocolVersion),
        true, now, out);
  }
  if (message.from.incarnation != link.engine.incarnation || message.from.rank != at.rank ||
      message.from.rank_count != link.sessions.size()) {
    return refuse(at, ErrorCode::kUnavailable, "the directory names another engine or rank at this address", false, now,
                  out);
  }
  if (const Result<void> valid = validate(message.layout); !valid) {
    return refuse(at, valid.error().code, valid.error().what, true, now, out);
  }
  session.welcome = message;
  session.state = SessionState::kWelcomed;
  const auto is_welcomed = [](const Session& other) { return other.state == SessionState::kWelcomed; };
  if (std::ranges::all_of(link.sessions, is_welcomed)) assign_ranks(at.directory, link, now, out);
}

void Consumer::assign_ranks(const Endpoint& directory, Link& link, Instant now, Actions& out) {
  std::vector<RankLayout> layouts;
  for (const Session& session : link.sessions) layouts.push_back(session.welcome.layout);
  const auto assignments = assign(layout_, self_.rank, layouts);
  if (!assignments) {
    return refuse({directory, 0}, ErrorCode::kLayoutMismatch, assignments.error().text, true, now, out);
  }
  const auto ranks = static_cast<std::uint32_t>(link.sessions.size());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Session& session = link.sessions[rank];
    session.shares = (*assignments)[rank];
    session.plan = PairPlan::make(layouts[rank], layout_, session.shares);
    session.state = SessionState::kAssigning;
  }
  for (std::uint32_t rank = 0; rank < ranks && link.state == LinkState::kStarting; ++rank) {
    connect_peer({directory, rank}, 0, now, out);
  }
}

void Consumer::connect_peer(const RankOfLink& at, std::uint32_t first, Instant now, Actions& out) {
  Session& session = links_.at(at.directory).sessions[at.rank];
  for (std::uint32_t transport = first; transport < transports_.size(); ++transport) {
    const auto by_name = [&](const TransportOffer& offer) { return offer.name == transports_[transport].name; };
    const auto offer = std::ranges::find_if(session.welcome.transports, by_name);
    if (offer == session.welcome.transports.end()) continue;
    session.transport = transport;
    out.push_back(ConnectPeer{*session.connection, transport, offer->address});
    return;
  }
  std::vector<std::string_view> ours;
  std::vector<std::string_view> theirs;
  for (const TransportView& transport : transports_) ours.push_back(transport.name);
  for (const TransportOffer& offer : session.welcome.transports) theirs.push_back(offer.name);
  refuse(at, ErrorCode::kUnavailable,
         fmt::format("no transport reaches the other side: the consumer has [{}], the producer [{}]",
                     fmt::join(ours, " "), fmt::join(theirs, " ")),
         true, now, out);
}

void Consumer::on_peer(ConnectionId connection, Result<Peer> peer, Instant now, Actions& out,
                       std::vector<std::byte> address) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) {
    if (peer) out.push_back(DisconnectPeer{*peer});
    return;
  }
  const RankOfLink at = found->second;
  Session& session = links_.at(at.directory).sessions[at.rank];
  if (!peer && peer.error().code == ErrorCode::kFull) {  // of us, and for now
    return refuse(at, ErrorCode::kFull, fmt::format("the consumer has no room for a peer: {}", peer.error().what),
                  false, now, out);
  }
  if (!peer) {
    out.push_back(Note{fmt::format("producer {} cannot be reached over {}: {}", session.welcome.from.engine_id,
                                   transports_[session.transport].name, peer.error().what)});
    return connect_peer(at, session.transport + 1, now, out);
  }
  session.peer = *peer;
  const TransportView& transport = transports_[session.transport];
  if (address == transport.address) address.clear();
  out.push_back(SendMessage{connection, Assign{session.shares, transport.name, std::move(address)}});
}

void Consumer::on(const RankOfLink& at, const Refused& message, Instant now, Actions& out) {
  Session& session = links_.at(at.directory).sessions[at.rank];
  if (session.state == SessionState::kAssigning && session.peer && message.code == ErrorCode::kUnavailable) {
    out.push_back(Note{fmt::format("producer {} cannot use {}: {}", session.welcome.from.engine_id,
                                   transports_[session.transport].name, message.text)});
    out.push_back(DisconnectPeer{*std::exchange(session.peer, std::nullopt)});
    return connect_peer(at, session.transport + 1, now, out);
  }
  end_link(at.directory, message.code, fmt::format("rank {} refused: {}", at.rank, message.text),
           is_lasting(message.code), now, out);
}

void Consumer::on(const RankOfLink& at, const Assigned&, Instant now, Actions& out) {
  Link& link = links_.at(at.directory);
  Session& session = link.sessions[at.rank];
  if (session.state != SessionState::kAssigning || !session.peer) {
    return refuse(at, ErrorCode::kBadMessage, "Assigned came without Assign before it", false, now, out);
  }
  session.state = SessionState::kReady;
  ++counters_.sessions_started;
  const auto is_ready = [](const Session& other) { return other.state == SessionState::kReady; };
  if (std::ranges::all_of(link.sessions, is_ready)) on_link_ready(at.directory, link, now, out);
}

void Consumer::on_link_ready(const Endpoint& directory, Link& link, Instant now, Actions& out) {
  link.state = LinkState::kReady;
  link.backoff = {};
  link.trouble.clear();
  deadlines_.clear({.kind = Kind::kStart, .directory = directory});
  out.push_back(
      Note{fmt::format("producer {} at {}: {} session(s) ready over {}", link.engine.engine_id, to_string(directory),
                       link.sessions.size(), transports_[link.sessions.front().transport].name)});
  for (auto it = awaited_.lower_bound({directory, {}}); it != awaited_.end() && it->first.first == directory; ++it) {
    expect(directory, link, it->first.second, now, out);
  }
  for (const TransferId& transfer_id : std::exchange(link.declines, {})) tell_all(link, Unwanted{transfer_id}, out);
  // Outcomes of an earlier session that a fence has made needless.
  for (std::uint32_t rank = 0; rank < link.sessions.size(); ++rank) tell_done(link, rank, out);
  const std::set<RequestId> requests = link.requests;
  for (const RequestId& id : requests) {
    const Request& request = requests_.at(id);
    if (!request.failure && has_proof(request)) {
      register_request(link, id, now, out);
    } else {
      revoke(link, id, now, out);
    }
  }
}

void Consumer::tell_all(const Link& link, const Message& message, Actions& out) {
  for (const Session& session : link.sessions) out.push_back(SendMessage{*session.connection, message});
}

void Consumer::decline(Link& link, const TransferId& transfer_id, Actions& out) {
  if (link.state == LinkState::kReady) {
    tell_all(link, Unwanted{transfer_id}, out);
  } else if (!link.refused && link.declines.size() < kRequestsMax) {
    link.declines.insert(transfer_id);
  }
}

void Consumer::on(const RankOfLink& at, const Admitted& message, Actions& out) {
  const auto found = awaited_.find({at.directory, message.transfer_id});
  if (found == awaited_.end()) {
    ++counters_.late_messages;
  } else {
    end_await(at.directory, message.transfer_id, found->second, out);
  }
}

void Consumer::end_await(const Endpoint& directory, const TransferId& transfer_id, bool& is_told, Actions& out) {
  if (std::exchange(is_told, true)) return;
  Link& link = links_.at(directory);
  --link.awaits;
  for (std::uint32_t rank = 0; rank < link.sessions.size(); ++rank) rest_rank({directory, rank}, link);
  deadlines_.clear({.kind = Kind::kAwait, .directory = directory, .transfer_id = transfer_id});
  out.push_back(TellEngine{AwaitEnded{transfer_id, directory}});
}

void Consumer::end_awaits(const Endpoint& directory, Actions& out) {
  for (auto it = awaited_.lower_bound({directory, {}}); it != awaited_.end() && it->first.first == directory; ++it) {
    end_await(directory, it->first.second, it->second, out);
  }
}

void Consumer::forget_await(const Endpoint& directory, const TransferId& transfer_id, Actions& out) {
  const auto found = awaited_.find({directory, transfer_id});
  if (found == awaited_.end()) return;
  end_await(directory, transfer_id, found->second, out);
  awaited_.erase(found);
}

bool Consumer::is_awaited(const Endpoint& directory) const {
  const auto first = awaited_.lower_bound({directory, {}});
  return first != awaited_.end() && first->first.first == directory;
}

void Consumer::await_rank(const RankOfLink& at, Session& session, Instant now) {
  if (std::exchange(session.is_awaited, true)) return;
  session.heard = now;
  deadlines_.set({.kind = Kind::kSilence, .directory = at.directory, .rank = at.rank}, now + options_.lease);
}

void Consumer::rest_rank(const RankOfLink& at, Link& link) {
  if (link.awaits > 0 || !link.unproven[at.rank].empty()) return;
  if (!std::exchange(link.sessions[at.rank].is_awaited, false)) return;
  deadlines_.clear({.kind = Kind::kSilence, .directory = at.directory, .rank = at.rank});
}

void Consumer::expect(const Endpoint& directory, Link& link, const TransferId& transfer_id, Instant now, Actions& out) {
  tell_all(link, Expect{transfer_id}, out);
  if (link.awaits == 0) return;
  for (std::uint32_t rank = 0; rank < link.sessions.size(); ++rank) {
    await_rank({directory, rank}, link.sessions[rank], now);
  }
}

void Consumer::on_silence(const RankOfLink& at, Instant now, Actions& out) {
  const auto found = links_.find(at.directory);
  if (found == links_.end() || at.rank >= found->second.sessions.size()) return;
  const Session& session = found->second.sessions[at.rank];
  if (!session.is_awaited) return;
  if (now < session.heard + options_.lease) {
    deadlines_.set({.kind = Kind::kSilence, .directory = at.directory, .rank = at.rank},
                   session.heard + options_.lease);
    return;
  }
  ++counters_.sessions_silent;
  end_link(at.directory, ErrorCode::kPeerLost, fmt::format("rank {} has been silent for a lease", at.rank), false, now,
           out);
}

void Consumer::refuse(const RankOfLink& at, ErrorCode code, const std::string& text, bool lasting, Instant now,
                      Actions& out) {
  if (code == ErrorCode::kBadMessage) ++counters_.bad_messages;
  for (const Session& session : links_.at(at.directory).sessions) {
    if (session.connection) out.push_back(SendMessage{*session.connection, Refused{code, text}});
  }
  end_link(at.directory, code, fmt::format("rank {}: {}", at.rank, text), lasting, now, out);
}

void Consumer::end_link(const Endpoint& directory, ErrorCode code, const std::string& text, bool lasting, Instant now,
                        Actions& out) {
  Link& link = links_.at(directory);
  if (link.state == LinkState::kWaiting) return;
  const bool was_ready = link.state == LinkState::kReady;
  if (was_ready) {
    ++counters_.sessions_lost;
  } else {
    ++(code == ErrorCode::kUnauthenticated ? counters_.sessions_unauthenticated : counters_.sessions_refused);
  }
  if (link.trouble != text) {
    out.push_back(Note{fmt::format("producer engine at {}: {} ({})", to_string(directory), text, error_name(code))});
    link.trouble = text;
  }
  const std::vector<Session> sessions = std::exchange(link.sessions, {});
  link.state = LinkState::kWaiting;
  link.draining = false;
  link.declines.clear();
  if (lasting) link.refused = code;
  end_awaits(directory, out);
  deadlines_.clear({.kind = Kind::kStart, .directory = directory});
  link.backoff = std::clamp(link.backoff * 2, options_.backoff_first, options_.backoff_longest);
  const auto jitter = static_cast<std::uint64_t>(link.backoff.count() / 2);
  deadlines_.set({.kind = Kind::kRetry, .directory = directory},
                 now + link.backoff - Duration{random_.below(jitter + 1)});

  for (std::uint32_t rank = 0; rank < sessions.size(); ++rank) {
    deadlines_.clear({.kind = Kind::kSilence, .directory = directory, .rank = rank});
  }
  for (const Session& session : sessions) {
    if (session.connection) {
      connections_.erase(*session.connection);
      out.push_back(CloseConnection{*session.connection});
    }
    if (session.peer && fences(*session.peer)) out.push_back(DisconnectPeer{*session.peer});
  }
  // One attempt to come back is made for what a lost session had registered; a peer that breaks rules gets none.
  const bool may_return = was_ready && !lasting && code != ErrorCode::kBadMessage;
  const std::set<RequestId> requests = link.requests;
  for (const RequestId& id : requests) {
    if (!requests_.at(id).parts.empty()) {
      on_loss(id, code, may_return, now, out);
    } else if (lasting) {
      fail_request(id, code, now, out);
    }
  }
  for (const Session& session : sessions) {
    if (!session.peer || fences(*session.peer)) continue;
    if (is_needed(*session.peer)) {
      watched_.insert(*session.peer);
    } else {
      out.push_back(DisconnectPeer{*session.peer});
    }
  }
}

bool Consumer::is_needed(Peer peer) const {
  return std::ranges::any_of(registrations_, [&](const auto& entry) {
    const std::vector<Part>& parts = requests_.at(entry.second).parts;
    return std::ranges::any_of(parts,
                               [&](const Part& part) { return part.number == entry.first && part.peer == peer; });
  });
}

}  // namespace kvpush
