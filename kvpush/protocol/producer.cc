#include "kvpush/protocol/producer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/overloaded.h"

namespace kvpush {

namespace {

bool is_about_transfers(const Message& message) {
  return std::holds_alternative<Register>(message) || std::holds_alternative<Revoke>(message) ||
         std::holds_alternative<Unwanted>(message) || std::holds_alternative<Done>(message) ||
         std::holds_alternative<Renewed>(message) || std::holds_alternative<Expect>(message);
}

}  // namespace

Producer::Producer(RankName self, RankLayout layout, std::vector<TransportView> transports, ProtocolOptions options)
    : self_(std::move(self)), layout_(std::move(layout)), transports_(std::move(transports)), options_(options) {}

void Producer::on_accepted(ConnectionId connection, Instant now) {
  sessions_.try_emplace(connection);
  deadlines_.set({.kind = Kind::kSessionStart, .connection = connection}, now + options_.session_limit);
}

void Producer::on(ConnectionId connection, const Message& message, Instant now, Actions& out) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  if (session.state != SessionState::kReady && is_about_transfers(message)) {
    return refuse(connection, ErrorCode::kBadMessage,
                  std::string(message_name(message)) + " came before the session was ready", now, out);
  }
  std::visit(
      Overloaded{[&](const Hello& m) { on(connection, session, m, now, out); },
                 [&](const Assign& m) { on(connection, session, m, now, out); },
                 [&](const Register& m) { on(connection, session, m, now, out); },
                 [&](const Revoke& m) { on(connection, session, m, now, out); },
                 [&](const Unwanted& m) { on(session, m, now, out); },
                 [&](const Expect& m) { on(connection, session, m, now, out); }, [&](const Done& m) { on(session, m); },
                 [&](const Renewed& m) { on(connection, session, m, now, out); },
                 [&](const Goodbye&) {},  // it registers nothing new: nothing to do about it
                 [&](const Refused& m) {
                   count_end(session);
                   out.push_back(Note{"consumer " + session.hello.from.engine_id + " refused us: " + m.text});
                   out.push_back(CloseConnection{connection});
                   end_session(connection, now, out);
                 },
                 [&](const auto&) {
                   refuse(connection, ErrorCode::kBadMessage, "a message that only producers send", now, out);
                 }},
      message);
}

void Producer::on_closed(ConnectionId connection, Instant now, Actions& out, const Error& why) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  if (why.code == ErrorCode::kBadMessage) ++counters_.bad_messages;
  if (found->second.state == SessionState::kReady) note_loss(found->second, why.what, out);
  end_session(connection, now, out);
}

void Producer::on_peer_lost(Peer peer, Instant now, Actions& out) {
  lose_peer(peer, "the data endpoint failed", now, out);
}

Result<void> Producer::on(const Send& command, Instant now, Actions& out) {
  if (admitted_.erase(command.transfer_id) == 0) tell_admitted(command.transfer_id, out);
  if (draining_) return fail(ErrorCode::kStopped, "the agent is draining");
  if (requests_.size() >= kRequestsMax) return fail(ErrorCode::kFull, "too many requests hold their blocks");
  if (requests_.contains(command.request)) return fail(ErrorCode::kBusy, "a request of that name is held already");
  if (!is_transfer_id(command.transfer_id)) {
    return fail(ErrorCode::kBadParams, "a transfer id has 1 to 128 bytes");
  }
  Transfer& transfer = transfers_[command.transfer_id];
  if (transfer.send) return fail(ErrorCode::kBusy, "another request has this transfer id");

  closed_.erase(command.transfer_id);
  ++counters_.sends;
  requests_.emplace(command.request, command.transfer_id);
  transfer.send = command;
  transfer.left.reset();
  if (forget_loss(command.transfer_id) || !transfer.ranks_left.empty()) transfer.left = now;
  transfer.times.offered = now;
  const std::set<RegistrationKey> waiting = transfer.registrations;
  for (const RegistrationKey& key : waiting) {
    start(key, registrations_.at(key), transfers_.at(command.transfer_id), now, out);
  }
  settle_transfer(command.transfer_id, now, out);
  return {};
}

void Producer::on(const Admit& command, Actions& out) {
  const auto found = transfers_.find(command.transfer_id);
  if (found != transfers_.end() && found->second.send) return;
  if (!is_transfer_id(command.transfer_id) || admitted_.size() >= kRequestsMax) return;
  if (!admitted_.insert(command.transfer_id).second) return;
  tell_admitted(command.transfer_id, out);
}

void Producer::on(const Cancel& command, Instant now, Actions& out) {
  const auto found = requests_.find(command.request);
  if (found == requests_.end()) return;
  end_request(TransferId(found->second), ErrorCode::kAborted, now, out);
}

void Producer::on(const Withdraw& command, Instant now, Actions& out) {
  const auto found = transfers_.find(command.transfer_id);
  if (found != transfers_.end() && found->second.send) return;  // that request goes on; Cancel is the word for it
  if (admitted_.erase(command.transfer_id) == 0) tell_admitted(command.transfer_id, out);
  forget_loss(command.transfer_id);
  close_transfer(command.transfer_id, ErrorCode::kAborted, now);
  if (found == transfers_.end()) return;
  const std::set<RegistrationKey> waiting = found->second.registrations;
  for (const RegistrationKey& key : waiting) fail_registration(key, ErrorCode::kAborted, now, out);
  deadlines_.clear({.kind = Kind::kHold, .transfer_id = command.transfer_id});
  transfers_.erase(command.transfer_id);
}

std::optional<Batch> Producer::next_batch(Instant now) {
  while (const std::optional<Turn> turn = turns_.take()) {
    const auto found = registrations_.find(turn->registration);
    if (found == registrations_.end() || found->second.state != RegistrationState::kWriting) {
      turns_.ended(turn->peer);
      continue;
    }
    Registration& registration = found->second;
    // Its blocks are held: who gives them back stops the registration first.
    Session& session = sessions_.at(registration.connection);
    if (!session.lease.is_live(now)) {
      turns_.ended(turn->peer);
      session.unleased.insert(turn->registration);
      if (session.lease.has_lapsed(now) && !std::exchange(session.has_lapsed, true)) ++counters_.leases_expired;
      continue;
    }
    ++token_last_.value;
    posted_.emplace(token_last_, PostedBatch{turn->registration, turn->peer, registration.cursor});
    batch_.clear();
    registration.cursor.take(registration.runs, kBatchDescriptorsMax, kBatchBytesMax, batch_);
    ++registration.in_flight;
    if (!registration.times.first_post) registration.times.first_post = now;
    registration.times.last_post = now;
    if (!registration.cursor.at_end(registration.runs)) turns_.add(turn->peer, turn->registration);
    return Batch{turn->peer, token_last_, batch_};
  }
  return std::nullopt;
}

void Producer::put_back(WriteToken token) {
  const auto posted = posted_.find(token);
  KVPUSH_CHECK(posted != posted_.end(), "a batch is put back once, right after it was given out");
  const PostedBatch batch = posted->second;
  posted_.erase(posted);
  Registration& registration = registrations_.at(batch.registration);
  const bool stands_in_line = !registration.cursor.at_end(registration.runs);
  registration.cursor = batch.before;
  --registration.in_flight;
  turns_.ended(batch.peer);
  if (!stands_in_line) turns_.add(batch.peer, batch.registration);
}

void Producer::on_written(WriteToken token, std::optional<Error> error, Instant now, Actions& out) {
  const auto posted = posted_.find(token);
  KVPUSH_CHECK(posted != posted_.end(), "a posted batch ends once");
  const PostedBatch batch = posted->second;
  posted_.erase(posted);
  turns_.ended(batch.peer);
  Registration& registration = registrations_.at(batch.registration);
  if (error) {
    ++counters_.writes_failed;
    const bool is_cause = !registration.failure && !registration.revoked;
    // Whether the bytes land yet may be unknown, so nothing is answered in this session: it ends, which makes the
    // consumer fence where that is needed, and ask again where the failure itself is proof.
    on_peer_lost(batch.peer, now, out);
    // The consumer may register the others again; this one would fail again.
    if (is_cause) registration.failure = ErrorCode::kTransportFailed;
  }
  --registration.in_flight;
  if (!turns_.knows(batch.peer)) cut(batch.peer, out);
  settle(batch.registration, now, out);
}

void Producer::tick(Instant now, Actions& out) {
  for (const DeadlineKey& due : deadlines_.take_due(now)) {
    switch (due.kind) {
      case Kind::kSessionStart:
        refuse(due.connection, ErrorCode::kTimeout, "the session was not ready in time", now, out);
        break;
      case Kind::kRenew:
        // What was due before it may have ended the session, or the last registration that needs its lease.
        if (const auto found = sessions_.find(due.connection);
            found != sessions_.end() && found->second.lease.is_needed()) {
          keep_lease(due.connection, found->second, now, out);
        }
        break;
      case Kind::kMatch:
        if (registrations_.contains(due.registration)) {
          fail_registration(due.registration, ErrorCode::kUnknownTransfer, now, out);
        }
        break;
      case Kind::kDrain: {
        const Peer peer = registrations_.at(due.registration).peer;
        const double limit_s = std::chrono::duration<double>(options_.drain_limit).count();
        lose_peer(peer, fmt::format("writes to it did not end within drain_limit ({} s)", limit_s), now, out);
        cut(peer, out);
        break;
      }
      case Kind::kHold: end_request(due.transfer_id, ErrorCode::kTimeout, now, out); break;
      case Kind::kLoss: lost_.erase(due.transfer_id); break;
      case Kind::kForget: closed_.erase(due.transfer_id); break;
      case Kind::kOutcomes: consumers_.erase(due.registration.consumer); break;
    }
  }
}

void Producer::drain(Instant now, Actions& out) {
  draining_ = true;
  for (const auto& [connection, session] : sessions_) {
    if (session.state == SessionState::kReady) out.push_back(SendMessage{connection, Goodbye{}});
  }
  std::vector<RegistrationKey> waiting;
  for (const auto& [key, registration] : registrations_) {
    if (registration.state == RegistrationState::kWaiting) waiting.push_back(key);
  }
  for (const RegistrationKey& key : waiting) fail_registration(key, ErrorCode::kStopped, now, out);
  for (const Held& request : held()) {
    if (request.registrations == 0) end_request(request.transfer_id, ErrorCode::kStopped, now, out);
  }
}

bool Producer::idle() const {
  return registrations_.empty() && requests_.empty();
}

bool Producer::is_heard() const {
  return std::ranges::all_of(consumers_, [](const auto& known) {
    const ConsumerRank& consumer = known.second;
    return !consumer.connection || consumer.outcomes.empty();
  });
}

ProducerGauges Producer::gauges() const {
  return {.sessions = sessions_.size(),
          .registrations = registrations_.size(),
          .requests = requests_.size(),
          .transfers = transfers_.size(),
          .expected = expected_.size(),
          .admitted = admitted_.size(),
          .writes_in_flight = posted_.size()};
}

std::vector<Producer::Held> Producer::held() const {
  std::vector<Held> held;
  held.reserve(requests_.size());
  for (const auto& [request, transfer_id] : requests_) {
    const Transfer& transfer = transfers_.at(transfer_id);
    held.push_back({request, transfer_id, transfer.send->token_count, transfer.consumer_id, transfer.times.offered,
                    transfer.registrations.size()});
  }
  return held;
}

}  // namespace kvpush
