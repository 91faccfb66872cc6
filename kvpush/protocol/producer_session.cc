// Producer: what peers say.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kvpush/base/limits.h"
#include "kvpush/protocol/producer.h"

namespace kvpush {

namespace {

std::string describe(const RankName& name) {
  if (name == RankName{}) return "that has not said Hello";
  return fmt::format("{} (incarnation {:016x}, rank {})", name.engine_id, name.incarnation.value, name.rank);
}

std::size_t span_count(const BlockTables& tables) {
  std::size_t count = 0;
  for (const BlockTable& table : tables) count += table.spans.size();
  return count;
}

}  // namespace

void Producer::forget_tables(Registration& registration) {
  spans_waiting_ -= span_count(registration.tables);
  registration.tables = {};
}

void Producer::on(ConnectionId connection, Session& session, const Hello& hello, Instant now, Actions& out) {
  if (session.state != SessionState::kNew) {
    return refuse(connection, ErrorCode::kBadMessage, "Hello came twice", now, out);
  }
  session.hello.from = hello.from;
  if (hello.version != kProtocolVersion) {
    return refuse(
        connection, ErrorCode::kVersionMismatch,
        fmt::format("the consumer speaks protocol version {}, the producer {}", hello.version, kProtocolVersion), now,
        out);
  }
  if (const Result<void> valid = validate(hello.layout); !valid) {
    return refuse(connection, valid.error().code, valid.error().what, now, out);
  }
  const ConsumerKey key{hello.from.incarnation, hello.from.rank};
  const auto known = consumers_.find(key);
  if (draining_ && known == consumers_.end()) {  // one that lost its session may still ask for what became of things
    return refuse(connection, ErrorCode::kStopped, "the producer is draining", now, out);
  }
  if (known == consumers_.end() && consumers_.size() >= kSessionsMax) {
    return refuse(connection, ErrorCode::kFull, "the producer knows too many consumers", now, out);
  }
  if (known != consumers_.end() && hello.session <= known->second.session) {
    return refuse(connection, ErrorCode::kStaleSession,
                  fmt::format("session {} is not newer than {}", hello.session.value, known->second.session.value), now,
                  out);
  }
  if (known != consumers_.end() && known->second.connection) {
    const ConnectionId older = *known->second.connection;
    out.push_back(CloseConnection{older});
    end_session(older, now, out);
  }
  ConsumerRank& consumer = consumers_[key];
  consumer.session = hello.session;
  consumer.connection = connection;
  deadlines_.clear({.kind = Kind::kOutcomes, .registration = {key, {}}});

  session.hello = hello;
  session.state = SessionState::kWelcomed;
  out.push_back(SendMessage{connection, Welcome{kProtocolVersion, self_, layout_, offers(transports_)}});
}

void Producer::on(ConnectionId connection, Session& session, const Assign& assign, Instant now, Actions& out) {
  if (session.state != SessionState::kWelcomed) {
    return refuse(connection, ErrorCode::kBadMessage, "Assign came without Welcome before it", now, out);
  }
  const auto by_name = [&](const auto& transport) { return transport.name == assign.transport; };
  const auto ours = std::ranges::find_if(transports_, by_name);
  const auto theirs = std::ranges::find_if(session.hello.transports, by_name);
  if (ours == transports_.end() || theirs == session.hello.transports.end()) {
    out.push_back(SendMessage{connection, Refused{ErrorCode::kUnavailable, "both sides need " + assign.transport}});
    return;
  }
  if (const Result<void> valid = validate(assign.shares, layout_, session.hello.layout); !valid) {
    return refuse(connection, valid.error().code, valid.error().what, now, out);
  }
  session.plan = PairPlan::make(layout_, session.hello.layout, assign.shares);
  session.transport = static_cast<std::uint32_t>(ours - transports_.begin());
  session.state = SessionState::kConnecting;
  out.push_back(ConnectPeer{connection, session.transport, assign.address.empty() ? theirs->address : assign.address});
}

void Producer::on_peer(ConnectionId connection, Result<Peer> peer, Instant now, Actions& out) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end() || found->second.state != SessionState::kConnecting) {
    if (peer) out.push_back(DisconnectPeer{*peer});
    return;
  }
  Session& session = found->second;
  if (!peer && peer.error().code == ErrorCode::kUnavailable) {
    session.state = SessionState::kWelcomed;  // the consumer may name another transport
    out.push_back(SendMessage{connection, Refused{peer.error().code, peer.error().what}});
    return;
  }
  if (!peer) return refuse(connection, peer.error().code, peer.error().what, now, out);
  session.peer = *peer;
  session.state = SessionState::kReady;
  turns_.open(*peer);
  ++counters_.sessions_started;
  deadlines_.clear({.kind = Kind::kSessionStart, .connection = connection});
  out.push_back(SendMessage{connection, Assigned{}});
  if (draining_) out.push_back(SendMessage{connection, Goodbye{}});
  // At once, so that the first registration does not wait for it.
  session.lease = Lease(options_.lease, options_.lease_margin);
  ask_for_renewal(connection, session, now, out);
  if (needs_lease({session.hello.from.incarnation, session.hello.from.rank})) {
    need_lease(connection, session, now, out);
  }
  out.push_back(Note{fmt::format("consumer {} has a session over {}", describe(session.hello.from),
                                 transports_[session.transport].name)});
}

void Producer::on(ConnectionId connection, Session& session, const Register& message, Instant now, Actions& out) {
  const RegistrationKey key{{session.hello.from.incarnation, session.hello.from.rank}, message.registration};
  ConsumerRank& consumer = consumers_.at(key.consumer);
  if (key.number <= consumer.registration_last) {
    return refuse(connection, ErrorCode::kBadMessage, "a registration number was used again", now, out);
  }
  if (consumer.outcomes.size() >= kOutcomesMax) {
    return refuse(connection, ErrorCode::kFull, "outcomes pile up: the consumer does not send Done", now, out);
  }
  consumer.registration_last = key.number;
  ++counters_.registrations;
  forget_expectation(key.consumer, message.transfer_id, now, out);

  const auto refuse_registration = [&](ErrorCode code) {
    ++counters_.registrations_failed;
    keep(key, Failed{key.number, code, true});
    answer(key, Failed{key.number, code, true}, out);
    rest_lease(key.consumer);
  };
  if (draining_) return refuse_registration(ErrorCode::kStopped);
  if (registrations_.size() >= kRegistrationsMax) return refuse_registration(ErrorCode::kFull);
  const Result<std::uint64_t> bytes = session.plan->bytes_expected(message.tokens, message.tables);
  if (!bytes) return refuse_registration(bytes.error().code);
  forget_declines(key.consumer, message.transfer_id);
  const std::size_t spans = span_count(message.tables);
  const auto known = transfers_.find(message.transfer_id);
  const bool must_wait = known == transfers_.end() || !known->second.send;
  if (must_wait && spans_waiting_ + spans > kSpansWaitingMax) return refuse_registration(ErrorCode::kFull);
  const Result<Transfer*> transfer = bind(message.transfer_id, session.hello.from);
  if (!transfer) return refuse_registration(transfer.error().code);

  Registration& registration = registrations_[key];
  registration.connection = connection;
  registration.peer = *session.peer;
  registration.transfer_id = message.transfer_id;
  registration.tokens = message.tokens;
  registration.tables = message.tables;
  spans_waiting_ += spans;
  (*transfer)->registrations.insert(key);
  (*transfer)->ranks_ended.erase(key.consumer.rank);
  deadlines_.set({.kind = Kind::kMatch, .registration = key}, now + options_.match_timeout);
  need_lease(connection, session, now, out);
  if ((*transfer)->send) start(key, registration, **transfer, now, out);
  settle_transfer(message.transfer_id, now, out);
}

void Producer::on(ConnectionId connection, const Session& session, const Revoke& message, Instant now, Actions& out) {
  const RegistrationKey key{{session.hello.from.incarnation, session.hello.from.rank}, message.registration};
  const auto live = registrations_.find(key);
  if (live != registrations_.end()) {
    live->second.revoked = true;
    stop_posting(key, live->second, now);
    return settle(key, now, out);
  }
  const ConsumerRank& consumer = consumers_.at(key.consumer);
  const auto outcome = consumer.outcomes.find(key.number);
  if (outcome != consumer.outcomes.end()) out.push_back(SendMessage{connection, outcome->second});
  out.push_back(SendMessage{connection, Revoked{key.number}});
}

void Producer::on(const Session& session, const Unwanted& message, Instant now, Actions& out) {
  ++counters_.unwanted;
  const ConsumerKey consumer{session.hello.from.incarnation, session.hello.from.rank};
  forget_expectation(consumer, message.transfer_id, now, out);
  rest_lease(consumer);
  const auto known = transfers_.find(message.transfer_id);
  const bool is_bound_here = known != transfers_.end() && known->second.consumer == consumer.incarnation;
  if (!is_bound_here && is_expected_elsewhere(consumer.incarnation, message.transfer_id)) return;
  const Result<Transfer*> transfer = bind(message.transfer_id, session.hello.from);
  if (!transfer) return;  // over, or another engine's: then this rank has no say in it
  rank_ended(message.transfer_id, session.hello.from.rank, now, out);
}

void Producer::on(ConnectionId connection, Session& session, const Expect& message, Instant now, Actions& out) {
  ++counters_.expects;
  const ConsumerKey key{session.hello.from.incarnation, session.hello.from.rank};
  std::set<TransferId>& expected = consumers_.at(key).expected;
  const TransferId& id = message.transfer_id;
  const bool has_room = expected_.contains(id) ? expected.size() < kRequestsMax : expected_.size() < kRegistrationsMax;
  if (!has_room) ++counters_.expects_refused;
  if (!has_room || draining_ || closed_.contains(id)) {
    out.push_back(SendMessage{connection, Admitted{id}});
    return;
  }
  expected.insert(id);
  expected_[id].insert(key);
  forget_loss(id);
  need_lease(connection, session, now, out);
  forget_declines(key, id);
  const auto found = transfers_.find(id);
  const bool is_sent = found != transfers_.end() && found->second.send;
  if (is_sent || admitted_.contains(id)) out.push_back(SendMessage{connection, Admitted{id}});
  if (is_sent) {
    found->second.left.reset();
    settle_transfer(id, now, out);
  }
}

void Producer::on(const Session& session, const Done& message) {
  ConsumerRank& consumer = consumers_.at({session.hello.from.incarnation, session.hello.from.rank});
  consumer.done = std::max(consumer.done, message.up_to);
  consumer.outcomes.erase(consumer.outcomes.begin(), consumer.outcomes.upper_bound(message.up_to));
}

void Producer::on(ConnectionId connection, Session& session, const Renewed& message, Instant now, Actions& out) {
  if (!session.lease.answer(message.stamp)) {
    return refuse(connection, ErrorCode::kBadMessage, "Renewed answers no Renew", now, out);
  }
  if (!session.lease.is_live(now)) return;
  if (std::exchange(session.has_lapsed, false)) {
    out.push_back(Note{fmt::format("consumer {} renews its lease late: {} registrations have waited for it",
                                   describe(session.hello.from), session.unleased.size())});
  }
  for (const RegistrationKey& key : std::exchange(session.unleased, {})) turns_.add(*session.peer, key);
}

void Producer::ask_for_renewal(ConnectionId connection, Session& session, Instant now, Actions& out) {
  session.lease.ask(now);
  out.push_back(SendMessage{connection, Renew{now}});
}

void Producer::need_lease(ConnectionId connection, Session& session, Instant now, Actions& out) {
  if (session.lease.is_needed()) return;
  session.lease.need(now);
  keep_lease(connection, session, now, out);
}

void Producer::keep_lease(ConnectionId connection, Session& session, Instant now, Actions& out) {
  if (session.lease.is_silent(now)) {
    ++counters_.sessions_silent;
    count_end(session);
    out.push_back(Note{fmt::format("consumer {} has been silent for a lease", describe(session.hello.from))});
    out.push_back(CloseConnection{connection});
    return end_session(connection, now, out);
  }
  if (session.lease.wants_renewal(now)) ask_for_renewal(connection, session, now, out);
  deadlines_.set({.kind = Kind::kRenew, .connection = connection}, session.lease.due());
}

bool Producer::needs_lease(const ConsumerKey& consumer) const {
  const auto known = consumers_.find(consumer);
  if (known != consumers_.end() && !known->second.expected.empty()) return true;
  const auto first = registrations_.lower_bound({consumer, {}});
  return first != registrations_.end() && first->first.consumer == consumer;
}

void Producer::release_lease(const RegistrationKey& key) {
  const auto consumer = consumers_.find(key.consumer);
  if (consumer == consumers_.end() || !consumer->second.connection) return;
  sessions_.at(*consumer->second.connection).unleased.erase(key);
  rest_lease(key.consumer);
}

void Producer::rest_lease(const ConsumerKey& consumer) {
  const auto known = consumers_.find(consumer);
  if (known == consumers_.end() || !known->second.connection || needs_lease(consumer)) return;
  sessions_.at(*known->second.connection).lease.rest();
  deadlines_.clear({.kind = Kind::kRenew, .connection = *known->second.connection});
}

void Producer::refuse(ConnectionId connection, ErrorCode code, std::string text, Instant now, Actions& out) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  count_end(found->second);
  if (code == ErrorCode::kBadMessage) ++counters_.bad_messages;
  out.push_back(Note{fmt::format("consumer {} refused: {}", describe(found->second.hello.from), text)});
  out.push_back(SendMessage{connection, Refused{code, std::move(text)}});
  out.push_back(CloseConnection{connection});
  end_session(connection, now, out);
}

void Producer::count_end(const Session& session) {
  ++(session.state == SessionState::kReady ? counters_.sessions_lost : counters_.sessions_refused);
}

void Producer::note_loss(const Session& session, std::string_view why, Actions& out) {
  ++counters_.sessions_lost;
  out.push_back(Note{fmt::format("consumer {} is lost: {}", describe(session.hello.from), why)});
}

void Producer::lose_peer(Peer peer, std::string_view why, Instant now, Actions& out) {
  for (const auto& [connection, session] : sessions_) {
    if (session.peer != peer) continue;
    note_loss(session, why, out);
    out.push_back(CloseConnection{connection});
    return end_session(ConnectionId{connection}, now, out);
  }
}

void Producer::end_session(ConnectionId connection, Instant now, Actions& out) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  const Session session = std::move(found->second);
  sessions_.erase(found);
  deadlines_.clear({.kind = Kind::kSessionStart, .connection = connection});
  deadlines_.clear({.kind = Kind::kRenew, .connection = connection});
  const ConsumerKey key{session.hello.from.incarnation, session.hello.from.rank};
  const auto consumer = consumers_.find(key);
  std::set<TransferId> expected;
  if (consumer != consumers_.end() && consumer->second.connection == connection) {
    expected = consumer->second.expected;
    consumer->second.connection.reset();
    deadlines_.set({.kind = Kind::kOutcomes, .registration = {key, {}}}, now + options_.outcome_timeout);
  }
  if (!session.peer) return;

  turns_.close(*session.peer);
  std::vector<RegistrationKey> ours;
  for (auto it = registrations_.lower_bound({key, {}}); it != registrations_.end() && it->first.consumer == key; ++it) {
    if (it->second.connection == connection) ours.push_back(it->first);
  }
  const Instant last_heard = session.lease.is_silent(now) ? now - options_.lease : now;
  for (const TransferId& transfer_id : expected) {
    const auto transfer = transfers_.find(transfer_id);
    if (transfer != transfers_.end() && transfer->second.consumer == key.incarnation) {
      transfer->second.ranks_left.insert(key.rank);
      if (transfer->second.send) note_left(transfer->second, last_heard);
    }
    forget_expectation(key, transfer_id, now, out);
    note_loss(transfer_id, last_heard, now, out);
  }
  for (const RegistrationKey& registration : ours) {
    const TransferId transfer_id = registrations_.at(registration).transfer_id;
    const auto transfer = transfers_.find(transfer_id);
    if (transfer != transfers_.end() && transfer->second.send) note_left(transfer->second, last_heard);
    fail_registration(registration, ErrorCode::kPeerLost, now, out);
    note_loss(transfer_id, last_heard, now, out);
  }
  if (turns_.knows(*session.peer)) {
    closing_.insert(*session.peer);
  } else {
    out.push_back(DisconnectPeer{*session.peer});
  }
}

}  // namespace kvpush
