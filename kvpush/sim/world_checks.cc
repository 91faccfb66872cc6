// World: what must never be.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "kvpush/base/overloaded.h"
#include "kvpush/sim/world.h"

namespace kvpush::sim {

namespace {

// Clocks drift apart by less than that, and so do limits.
Duration with_drift(Duration limit) {
  return limit + limit / 1000;
}

}  // namespace

void World::check_message(Rank& rank, Connection& connection, const Message& message) {
  const bool is_closed = rank.producer ? connection.producer.is_closed : connection.consumer.is_closed;
  if (is_closed) fault(rank.name + " sends on a connection that has ended");
  if (rank.producer) {
    if (const auto wrong = rank.book.said(connection.talk, message)) {
      fault(fmt::format("{}: {}", rank.name, *wrong));
    }
  } else if (const auto* registered = std::get_if<Register>(&message)) {
    if (connection.open.empty()) connection.open_since = now_;
    connection.open.insert(registered->registration);
  } else if (const auto* revoke = std::get_if<Revoke>(&message)) {
    connection.owed.insert(revoke->registration);
  }
}

// A batch is one registration's.
void World::check_not_stopped(const Rank& producer, const Connection& connection, std::span<const Descriptor> batch) {
  const std::uint64_t address = batch.front().remote;
  const auto stopped = producer.book.stopped_at(connection.talk, owner_of(address).blocks.block_of(address));
  if (stopped) fault(fmt::format("{} posts for registration {}, which it has stopped", producer.name, stopped->value));
}

void World::note_outcome(Connection& connection, const Message& message) {
  const auto end = [&](RegistrationNumber registration) {
    connection.open.erase(registration);
    connection.owed.erase(registration);
  };
  std::visit(Overloaded{[&](const Delivered& m) { end(m.registration); },  //
                        [&](const Quiet& m) { end(m.registration); }, [&](const Revoked& m) { end(m.registration); },
                        [&](const Failed& m) {
                          if (m.quiescent) return end(m.registration);
                          connection.owed.insert(m.registration);
                        },
                        [](const auto&) {}},
             message);
}

void World::check_silence(const Connection& connection) {
  const Connection::End& end = connection.consumer;
  if (schedule_ == nullptr || connection.open.empty()) return;
  const Instant since = std::max({end.last_arrival, connection.open_since, end.rank->resumed});
  if (now_ - since <= with_drift(options_.protocol.lease) + options_.lateness) return;
  fault(fmt::format("{} has heard nothing of {} for {:.3f} s and waits for it", end.rank->name,
                    connection.producer.rank->name, std::chrono::duration<double>(now_ - since).count()));
}

std::uint64_t World::times_silent(const Rank& rank) {
  return rank.producer ? rank.producer->counters().sessions_silent : rank.consumer->counters().sessions_silent;
}

std::uint64_t World::times_overdue(const Rank& rank) {
  return rank.consumer ? rank.consumer->counters().links_overdue : 0;
}

// A term for an answer that was on its way when the trouble ended, and a term in which there was none.
bool World::is_calm(const Connection& connection, Side side) const {
  const Duration term = options_.protocol.lease;
  const Connection::End& far = side == Side::kConsumer ? connection.producer : connection.consumer;
  if (side == Side::kProducer && clock(*connection.producer.rank) - connection.renewed < term) return true;
  if (!far.rank->is_alive || far.rank->is_stopped || far.is_closed) return false;
  const Instant troubled =
      std::max({connection.troubled, connection.consumer.rank->troubled, connection.producer.rank->troubled});
  return now_ - troubled > 2 * term;
}

void World::check_ended(Rank& rank, const LocalRequest& request, const ReceiveEnded& ended) {
  check_writes(rank, request);
  if (!ended.error) {
    const auto slots = static_cast<std::uint32_t>(request.held.blocks.size()) * Blocks::kBlockTokens;
    if (!rank.blocks.equals(request.held, request.transfer_id, request.tokens)) {
      fault(fmt::format("{}: {} is said to be complete and is not", rank.name, request.transfer_id));
    }
    if (!rank.blocks.is_untouched(request.held, {0, request.tokens.first}) ||
        !rank.blocks.is_untouched(request.held, {request.tokens.end, slots})) {
      fault(fmt::format("{}: {} was written outside its tokens", rank.name, request.transfer_id));
    }
  }
  if (schedule_ == nullptr) return;
  // The consumer gives up, is answered or fences; where it cannot fence, trouble with the producer must be over first.
  const ProtocolOptions& times = options_.protocol;
  Instant due = std::max(request.asked + with_drift(times.receive_timeout), rank.resumed);
  Duration proof = 2 * times.drain_limit;
  if (!can_always_fence_) {
    due = std::max(due, rank.troubled);
    for (const Rank* producer : ranks_of(ended.producer.host)) {
      if (!producer->is_alive || producer->is_stopped) return;
      due = std::max(due, producer->troubled);
    }
    proof = 2 * proof + times.backoff_longest + 2 * times.session_limit;
  }
  check_time(rank, request, due + with_drift(proof) + 4 * options_.lateness);
}

void World::check_ended(Rank& rank, const LocalRequest& request, const SendEnded& ended) {
  check_writes(rank, request);
  if (!ended.error && !rank.book.is_complete(request.transfer_id)) {
    fault(fmt::format("{}: {} is over although some rank has neither its part nor declined it", rank.name,
                      request.transfer_id));
  }
  const auto is_open = [&](ConnectionId id) {
    const Connection* connection = find(id);
    return connection != nullptr && !connection->producer.is_closed;
  };
  const bool is_expected = rank.book.is_expected(request.transfer_id, is_open);
  const Duration hold_limit = options_.protocol.hold_limit;
  if (is_expected && ended.error == ErrorCode::kTimeout && with_drift(now_ - request.asked) < hold_limit) {
    fault(fmt::format("{}: {} was given up although it is expected", rank.name, request.transfer_id));
  }
  const bool was_expected = rank.book.was_expected(request.transfer_id);
  const std::optional<Instant> asked = rank.book.last_asked(request.transfer_id);
  rank.book.close(request.transfer_id);
  if (schedule_ == nullptr) return;
  // Its last registration ends, at the longest when its consumer gives up or is silent; then somebody else may come.
  const ProtocolOptions& times = options_.protocol;
  Instant due = std::max(request.asked, rank.troubled);
  if (was_expected) due = std::max(due, request.asked + with_drift(hold_limit));
  if (asked) due = std::max(due, rank.clock.when(*asked) + with_drift(times.receive_timeout));
  const Duration rest = times.lease + 3 * times.drain_limit + times.hold_timeout;
  check_time(rank, request, due + with_drift(rest) + 4 * options_.lateness);
}

// Giving blocks back while a write is under way is wrong even if it happens to end in time.
void World::check_writes(const Rank& rank, const LocalRequest& request) {
  for (const Write& write : writes_) {
    const Connection& connection = *write.connection;
    if (rank.producer && (connection.producer.rank != &rank || write.is_astray)) continue;
    if (rank.consumer && (connection.consumer.rank != &rank || connection.is_fenced)) continue;
    if (rank.consumer && write.is_cut && !write.is_astray && is_plain(connection)) continue;
    const auto concerns = [&](const Write::Piece& piece) {
      return (rank.producer ? piece.source : piece.target) == request.held.holder;
    };
    if (std::none_of(write.pieces.begin() + static_cast<std::ptrdiff_t>(write.landed), write.pieces.end(), concerns)) {
      continue;
    }
    fault(fmt::format("{}: {} ended while batch {} is under way", rank.name, request.transfer_id, write.number));
  }
}

void World::check_time(const Rank& rank, const LocalRequest& request, Instant limit) {
  if (now_ <= limit) return;
  fault(fmt::format("{}: {} ended {:.3f} s after the last moment for it", rank.name, request.transfer_id,
                    std::chrono::duration<double>(now_ - limit).count()));
}

void World::check_counters(const Rank& rank) {
  const std::uint64_t bad =
      rank.producer ? rank.producer->counters().bad_messages : rank.consumer->counters().bad_messages;
  if (bad > 0) fault(rank.name + " heard a bad message");
}

std::vector<std::string> World::remains() const {
  std::vector<std::string> found;
  for (const Rank& rank : ranks_) {
    for (const auto& [id, request] : rank.requests) found.push_back(rank.name + ": " + id + " has not ended");
    if (rank.producer) {
      const ProducerGauges gauges = rank.producer->gauges();
      if (rank.producer->counters().bad_messages > 0) found.push_back(rank.name + " heard a bad message");
      if (gauges.registrations + gauges.requests + gauges.transfers + gauges.expected + gauges.admitted +
              gauges.writes_in_flight >
          0) {
        found.push_back(rank.name + " still knows registrations, requests or transfers");
      }
    } else if (rank.consumer) {
      const ConsumerGauges gauges = rank.consumer->gauges();
      if (rank.consumer->counters().bad_messages > 0) found.push_back(rank.name + " heard a bad message");
      if (gauges.requests + gauges.awaited + gauges.quarantined > 0 || !rank.awaited.empty() ||
          rank.consumer->expects_writes()) {
        found.push_back(rank.name + " still knows requests or registrations");
      }
    }
  }
  return found;
}

}  // namespace kvpush::sim
