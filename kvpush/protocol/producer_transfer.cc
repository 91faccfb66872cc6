// Producer: registrations and the requests they are matched with.
#include <algorithm>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/protocol/producer.h"

namespace kvpush {

namespace {

// Requests and registrations each have one; as many again may stand for Unwanted that came before its request.
constexpr std::size_t kTransfersMax = kRequestsMax + 2 * kRegistrationsMax;

// The earlier or later of two points of which either may be missing.
void keep_first(std::optional<Instant>& kept, std::optional<Instant> other) {
  if (other && (!kept || *other < *kept)) kept = other;
}
void keep_last(std::optional<Instant>& kept, std::optional<Instant> other) {
  if (other && (!kept || *other > *kept)) kept = other;
}

Duration since(std::optional<Instant> then, Instant now) {
  return then ? now - *then : Duration{};
}

}  // namespace

Result<Producer::Transfer*> Producer::bind(const TransferId& transfer_id, const RankName& consumer) {
  if (const auto closed = closed_.find(transfer_id); closed != closed_.end()) {
    return fail(closed->second, "the transfer is over");
  }
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end() && transfers_.size() >= kTransfersMax) {
    return fail(ErrorCode::kFull, "too many transfers");
  }
  Transfer& transfer = found == transfers_.end() ? transfers_[transfer_id] : found->second;
  if (transfer.ending) return fail(*transfer.ending, "the request is ending");
  if (transfer.consumer != consumer.incarnation) {
    if (!is_free(transfer)) return fail(ErrorCode::kBusy, "bound to another consumer engine");
    transfer.consumer = consumer.incarnation;
    transfer.consumer_id = consumer.engine_id;
    transfer.rank_count = consumer.rank_count;
    transfer.ranks_ended.clear();
    transfer.ranks_left.clear();
  }
  if (transfer.rank_count != consumer.rank_count) {
    return fail(ErrorCode::kBadMessage, "ranks of one engine disagree about its rank count");
  }
  transfer.ranks_left.erase(consumer.rank);
  if (transfer.ranks_left.empty()) transfer.left.reset();
  forget_loss(transfer_id);
  return &transfer;
}

bool Producer::is_free(const Transfer& transfer) const {
  if (!transfer.consumer) return true;
  if (!transfer.registrations.empty()) return false;
  if (!transfer.ranks_left.empty()) return true;
  std::size_t accounted_for = transfer.ranks_ended.size();
  for (auto it = consumers_.lower_bound({*transfer.consumer, 0});
       it != consumers_.end() && it->first.incarnation == *transfer.consumer; ++it) {
    if (it->second.connection && !transfer.ranks_ended.contains(it->first.rank)) ++accounted_for;
  }
  return accounted_for < transfer.rank_count;
}

void Producer::note_left(Transfer& transfer, Instant at) {
  transfer.left = std::max(transfer.left.value_or(at), at);
}

void Producer::start(const RegistrationKey& key, Registration& registration, Transfer& transfer, Instant now,
                     Actions& out) {
  deadlines_.clear({.kind = Kind::kMatch, .registration = key});
  registration.times.offered = transfer.times.offered;
  registration.times.matched = now;
  keep_first(transfer.times.matched, now);
  if (registration.tokens.end > transfer.send->token_count) {
    return fail_registration(key, ErrorCode::kBadMessage, now, out);
  }
  const Session& session = sessions_.at(registration.connection);
  const Result<void> planned =
      session.plan->plan(registration.tokens, transfer.send->tables, registration.tables, registration.runs);
  forget_tables(registration);
  if (!planned) return fail_registration(key, planned.error().code, now, out);
  registration.state = RegistrationState::kWriting;
  registration.bytes = bytes(registration.runs);
  answer(key, Writing{key.number}, out);
  if (registration.runs.empty()) return settle(key, now, out);
  turns_.add(registration.peer, key);
}

void Producer::fail_registration(const RegistrationKey& key, ErrorCode code, Instant now, Actions& out) {
  const auto found = registrations_.find(key);
  KVPUSH_CHECK(found != registrations_.end(), "only live registrations fail");
  Registration& registration = found->second;
  if (registration.failure || registration.revoked) return;
  registration.failure = code;
  stop_posting(key, registration, now);
  if (registration.in_flight > 0) {
    registration.failure_told = answer(key, Failed{key.number, code, false}, out);
  }
  settle(key, now, out);
}

void Producer::stop_posting(const RegistrationKey& key, Registration& registration, Instant now) {
  if (registration.state == RegistrationState::kStopping) return;
  registration.state = RegistrationState::kStopping;
  deadlines_.clear({.kind = Kind::kMatch, .registration = key});
  if (registration.in_flight > 0) {
    deadlines_.set({.kind = Kind::kDrain, .registration = key}, now + options_.drain_limit);
  }
}

void Producer::settle(const RegistrationKey& key, Instant now, Actions& out) {
  const auto found = registrations_.find(key);
  if (found == registrations_.end() || found->second.in_flight > 0) return;
  const Registration& registration = found->second;
  switch (registration.state) {
    case RegistrationState::kWaiting: return;
    case RegistrationState::kWriting: {
      if (!registration.cursor.at_end(registration.runs)) return;
      const SendingTimes& times = registration.times;
      ++counters_.registrations_delivered;
      counters_.bytes_delivered += registration.bytes;
      const Delivered delivered{key.number,
                                registration.bytes,
                                {since(times.offered, now), since(times.matched, now), since(times.first_post, now),
                                 since(times.last_post, now)}};
      keep(key, delivered);
      answer(key, delivered, out);
      return end_registration(key, true, now, out);
    }
    case RegistrationState::kStopping: break;
  }
  if (registration.failure) {
    ++counters_.registrations_failed;
    const Failed failed{key.number, *registration.failure, true};
    keep(key, failed);
    answer(key, registration.failure_told ? Message{Quiet{key.number}} : Message{failed}, out);
  }
  if (registration.revoked) {
    ++counters_.registrations_revoked;
    answer(key, Revoked{key.number}, out);
  }
  end_registration(key, false, now, out);
}

void Producer::end_registration(const RegistrationKey& key, bool delivered, Instant now, Actions& out) {
  const auto found = registrations_.find(key);
  forget_tables(found->second);
  const Registration registration = std::move(found->second);
  registrations_.erase(found);
  deadlines_.clear({.kind = Kind::kMatch, .registration = key});
  deadlines_.clear({.kind = Kind::kDrain, .registration = key});
  release_lease(key);
  const auto found_transfer = transfers_.find(registration.transfer_id);
  if (found_transfer == transfers_.end()) return;
  Transfer& transfer = found_transfer->second;
  transfer.registrations.erase(key);
  keep_first(transfer.times.first_post, registration.times.first_post);
  keep_last(transfer.times.last_post, registration.times.last_post);
  if (delivered) {
    transfer.bytes += registration.bytes;
    transfer.ranks_left.erase(key.consumer.rank);
    if (transfer.ranks_left.empty()) transfer.left.reset();
    if (transfer.left && is_free(transfer)) transfer.left = now;  // nobody could take over before
    return rank_ended(registration.transfer_id, key.consumer.rank, now, out);
  }
  const auto is_of_rank = [&](const RegistrationKey& other) { return other.consumer == key.consumer; };
  const bool has_come_again =
      transfer.ranks_ended.contains(key.consumer.rank) || std::ranges::any_of(transfer.registrations, is_of_rank);
  if (has_come_again) return settle_transfer(registration.transfer_id, now, out);
  transfer.ranks_left.insert(key.consumer.rank);
  if (registration.revoked && transfer.send) note_left(transfer, now);
  settle_transfer(registration.transfer_id, now, out);
  if (registration.revoked) note_loss(registration.transfer_id, now, now, out);
}

void Producer::rank_ended(const TransferId& transfer_id, std::uint32_t rank, Instant now, Actions& out) {
  transfers_.at(transfer_id).ranks_ended.insert(rank);
  settle_transfer(transfer_id, now, out);
}

void Producer::end_request(const TransferId& transfer_id, ErrorCode code, Instant now, Actions& out) {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end()) return;
  if (!found->second.send) {  // only Unwanted was heard of it
    transfers_.erase(found);
    return;
  }
  if (found->second.ending) return;
  found->second.ending = code;
  const std::set<RegistrationKey> live = found->second.registrations;
  for (const RegistrationKey& key : live) fail_registration(key, code, now, out);
  settle_transfer(transfer_id, now, out);
}

void Producer::settle_transfer(const TransferId& transfer_id, Instant now, Actions& out) {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end()) return;
  Transfer& transfer = found->second;
  const DeadlineKey hold{.kind = Kind::kHold, .transfer_id = transfer_id};
  if (!transfer.registrations.empty()) return deadlines_.clear(hold);
  const bool all_ended = transfer.consumer && transfer.ranks_ended.size() == transfer.rank_count;
  if (!transfer.send) {
    if (transfer.ranks_ended.empty()) {
      deadlines_.clear(hold);
      transfers_.erase(found);
    } else {
      deadlines_.set(hold, now + options_.match_timeout);
    }
    return;
  }
  if (draining_ && !transfer.ending && !all_ended) transfer.ending = ErrorCode::kStopped;  // nobody can come for it
  if (!transfer.ending && !all_ended) {
    const Instant limit = transfer.times.offered + options_.hold_limit;
    if (expected_.contains(transfer_id)) return deadlines_.set(hold, limit);
    // A consumer that was lost or gave up, or another in its place, comes within a lease or not at all.
    const Instant until =
        transfer.left ? *transfer.left + std::min(options_.lease, options_.hold_timeout) : now + options_.hold_timeout;
    return deadlines_.set(hold, std::min(until, limit));
  }

  if (transfer.ending) ++counters_.sends_failed;
  transfer.times.completed = now;
  out.push_back(TellEngine{SendEnded{transfer.send->request, transfer_id, transfer.ending, transfer.bytes,
                                     transfer.send->token_count, transfer.consumer_id, transfer.times}});
  const ErrorCode told = transfer.ending.value_or(ErrorCode::kUnknownTransfer);
  deadlines_.clear(hold);
  requests_.erase(transfer.send->request);
  transfers_.erase(found);
  close_transfer(transfer_id, told, now);
}

void Producer::close_transfer(const TransferId& transfer_id, ErrorCode told, Instant now) {
  if (closed_.size() >= kRequestsMax && !closed_.contains(transfer_id)) {
    deadlines_.clear({.kind = Kind::kForget, .transfer_id = closed_.begin()->first});
    closed_.erase(closed_.begin());
  }
  closed_[transfer_id] = told;
  deadlines_.set({.kind = Kind::kForget, .transfer_id = transfer_id}, now + options_.outcome_timeout);
}

void Producer::forget_declines(const ConsumerKey& consumer, const TransferId& transfer_id) {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end() || found->second.send || !found->second.registrations.empty()) return;
  if (found->second.consumer == consumer.incarnation) {
    found->second.ranks_ended.erase(consumer.rank);
    if (!found->second.ranks_ended.empty()) return;
  }
  deadlines_.clear({.kind = Kind::kHold, .transfer_id = transfer_id});
  transfers_.erase(found);
}

void Producer::forget_expectation(const ConsumerKey& consumer, const TransferId& transfer_id, Instant now,
                                  Actions& out) {
  if (consumers_.at(consumer).expected.erase(transfer_id) == 0) return;
  const auto found = expected_.find(transfer_id);
  found->second.erase(consumer);
  if (!found->second.empty()) return;
  expected_.erase(found);
  settle_transfer(transfer_id, now, out);
}

bool Producer::is_expected_elsewhere(Incarnation consumer, const TransferId& transfer_id) const {
  const auto found = expected_.find(transfer_id);
  if (found == expected_.end()) return false;
  return std::ranges::any_of(found->second, [consumer](const ConsumerKey& key) { return key.incarnation != consumer; });
}

void Producer::tell_admitted(const TransferId& transfer_id, Actions& out) {
  const auto found = expected_.find(transfer_id);
  if (found == expected_.end()) return;
  for (const ConsumerKey& consumer : found->second) {
    out.push_back(SendMessage{*consumers_.at(consumer).connection, Admitted{transfer_id}});
  }
}

void Producer::note_loss(const TransferId& transfer_id, Instant last_heard, Instant now, Actions& out) {
  if (expected_.contains(transfer_id) || closed_.contains(transfer_id)) return;
  const auto found = transfers_.find(transfer_id);
  if (found != transfers_.end() && !found->second.registrations.empty()) return;
  if (found != transfers_.end() && found->second.send) {
    note_left(found->second, last_heard);
    return settle_transfer(transfer_id, now, out);
  }
  if (lost_.size() >= kRequestsMax && !lost_.contains(transfer_id)) forget_loss(TransferId(*lost_.begin()));
  lost_.insert(transfer_id);
  deadlines_.set({.kind = Kind::kLoss, .transfer_id = transfer_id}, now + options_.match_timeout);
}

bool Producer::forget_loss(const TransferId& transfer_id) {
  deadlines_.clear({.kind = Kind::kLoss, .transfer_id = transfer_id});
  return lost_.erase(transfer_id) > 0;
}

void Producer::keep(const RegistrationKey& key, const Message& outcome) {
  const auto consumer = consumers_.find(key.consumer);
  if (consumer == consumers_.end() || key.number <= consumer->second.done) return;
  consumer->second.outcomes.insert_or_assign(key.number, outcome);
}

bool Producer::answer(const RegistrationKey& key, const Message& message, Actions& out) {
  const auto consumer = consumers_.find(key.consumer);
  if (consumer == consumers_.end() || !consumer->second.connection) return false;
  out.push_back(SendMessage{*consumer->second.connection, message});
  return true;
}

void Producer::cut(Peer peer, Actions& out) {
  if (closing_.erase(peer) > 0) out.push_back(DisconnectPeer{peer});
}

}  // namespace kvpush
