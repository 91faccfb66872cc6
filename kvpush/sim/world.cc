#include "kvpush/sim/world.h"

#include <algorithm>
#include <ranges>

#include <fmt/format.h>

#include "kvpush/base/check.h"
#include "kvpush/base/overloaded.h"
#include "kvpush/sim/text.h"

namespace kvpush::sim {

namespace {

constexpr std::uint16_t kDirectoryPort = 80;
constexpr std::uint16_t kControlPort = 1;

std::vector<std::byte> address_of(const std::string& name) {
  const auto bytes = std::as_bytes(std::span(name));
  return {bytes.begin(), bytes.end()};
}

bool is_renewal(const Message& message) {
  return std::holds_alternative<Renew>(message) || std::holds_alternative<Renewed>(message);
}

}  // namespace

World::World(WorldOptions options, std::uint64_t seed, Schedule* schedule)
    : options_(std::move(options)), schedule_(schedule), seed_(seed) {
  for (const std::string& transport : options_.transports) {
    views_.push_back({.name = transport,
                      .address = {},
                      .disconnect_fences = transport == kFencing,
                      .writes_die_with_writer = transport == kPlain});
    can_always_fence_ = can_always_fence_ && transport == kFencing;
  }
}

void World::add(const Engine& engine) {
  engines_.push_back(engine);
  const std::uint64_t incarnation = ++incarnation_last_;
  for (std::uint32_t index = 0; index < engine.rank_count; ++index) {
    const auto place = static_cast<std::uint32_t>(ranks_.size());
    ranks_.push_back({.name = engine.rank_count == 1 ? engine.name : engine.name + std::to_string(index),
                      .engine = engine.name,
                      .place = place,
                      .id = {engine.id.empty() ? engine.name : engine.id, {}, index, engine.rank_count},
                      .blocks = Blocks(place + 1, index, engine.rank_count, engine.dtype, options_.size)});
    start_machine(ranks_.back(), incarnation);
  }
}

void World::start_machine(Rank& rank, std::uint64_t incarnation) {
  rank.id.incarnation = Incarnation{incarnation};
  rank.is_alive = true;
  rank.is_stopped = false;
  rank.book = ProducerBook(options_.protocol.outcome_timeout);
  std::vector<TransportView> views = views_;
  for (TransportView& view : views) view.address = address_of(rank.name);
  const auto engine = std::ranges::find(engines_, rank.engine, &Engine::name);
  if (engine->role == Role::kProducer) {
    rank.producer.emplace(rank.id, rank.blocks.layout(), views, options_.protocol);
  } else {
    rank.consumer.emplace(rank.id, rank.blocks.layout(), views, options_.protocol, Random(seed_ + incarnation));
  }
}

std::vector<Rank*> World::ranks_of(const std::string& name) {
  std::vector<Rank*> found;
  for (Rank& rank : ranks_) {
    if (rank.engine == name || rank.name == name) found.push_back(&rank);
  }
  return found;
}

std::vector<Rank*> World::ranks() {
  std::vector<Rank*> all;
  for (Rank& rank : ranks_) all.push_back(&rank);
  return all;
}

// Asking.

bool World::receive(Rank& consumer, const Ask& ask, const std::string& producer) {
  const auto held = consumer.blocks.hold(ask.tokens.end, ask.choice, ask.from);
  if (!held) return false;
  const bool is_new = consumer.requests.try_emplace(ask.request, ask.transfer_id, ask.tokens, *held, now_).second;
  KVPUSH_CHECK(is_new, "tests give each request a name of its own");
  Result<void> taken;
  step(consumer, [&](Actions& out) {
    taken = consumer.consumer->on(
        Receive{ask.request, ask.transfer_id, {producer, kDirectoryPort}, ask.tokens, held->tables}, clock(consumer),
        out);
  });
  if (taken) return true;
  trace([&] { return fmt::format("{}: {} refused: {}", consumer.name, ask.request, error_name(taken.error().code)); });
  consumer.requests.erase(ask.request);
  consumer.blocks.give_back(*held);
  return false;
}

bool World::send(Rank& producer, const Ask& ask) {
  const auto held = producer.blocks.hold(ask.tokens.end, ask.choice, ask.from);
  if (!held) return false;
  producer.blocks.fill(*held, ask.transfer_id, ask.tokens);
  const bool is_new = producer.requests.try_emplace(ask.request, ask.transfer_id, ask.tokens, *held, now_).second;
  KVPUSH_CHECK(is_new, "tests give each request a name of its own");
  Result<void> taken;
  step(producer, [&](Actions& out) {
    taken =
        producer.producer->on(Send{ask.request, ask.transfer_id, ask.tokens.end, held->tables}, clock(producer), out);
  });
  if (taken) return true;
  trace([&] { return fmt::format("{}: {} refused: {}", producer.name, ask.request, error_name(taken.error().code)); });
  producer.requests.erase(ask.request);
  producer.blocks.give_back(*held);
  return false;
}

void World::abandon(Rank& consumer, const RequestId& request) {
  step(consumer, [&](Actions& out) { consumer.consumer->on(Abandon{request}, clock(consumer), out); });
}

void World::decline(Rank& consumer, const TransferId& transfer_id, const std::string& producer) {
  step(consumer, [&](Actions& out) {
    consumer.consumer->on(Decline{transfer_id, {producer, kDirectoryPort}}, clock(consumer), out);
  });
}

void World::await(Rank& consumer, const TransferId& transfer_id, const std::string& producer) {
  const bool is_new = consumer.awaited.insert(transfer_id).second;
  KVPUSH_CHECK(is_new, "tests await a transfer once");
  step(consumer, [&](Actions& out) {
    consumer.consumer->on(Await{transfer_id, {producer, kDirectoryPort}}, clock(consumer), out);
  });
}

void World::admit(Rank& producer, const TransferId& transfer_id) {
  step(producer, [&](Actions& out) { producer.producer->on(Admit{transfer_id}, out); });
}

void World::cancel(Rank& producer, const RequestId& request) {
  step(producer, [&](Actions& out) { producer.producer->on(Cancel{request}, clock(producer), out); });
}

void World::withdraw(Rank& producer, const TransferId& transfer_id) {
  step(producer, [&](Actions& out) { producer.producer->on(Withdraw{transfer_id}, clock(producer), out); });
}

void World::drain(Rank& rank) {
  step(rank, [&](Actions& out) {
    if (rank.producer) rank.producer->drain(clock(rank), out);
    if (rank.consumer) rank.consumer->drain(clock(rank), out);
  });
}

// Time.

std::optional<Instant> World::deadline_of(const Rank& rank) const {
  if (!rank.is_alive || rank.is_stopped) return std::nullopt;
  const auto deadline = rank.producer ? rank.producer->deadline() : rank.consumer->deadline();
  if (!deadline) return std::nullopt;
  return rank.clock.when(*deadline);
}

std::optional<Instant> World::deadline() const {
  std::optional<Instant> earliest;
  for (const Rank& rank : ranks_) {
    const auto deadline = deadline_of(rank);
    if (deadline && (!earliest || *deadline < *earliest)) earliest = deadline;
  }
  return earliest;
}

void World::tick(Rank& rank) {
  if (!rank.is_alive || rank.is_stopped) return;
  step(rank, [&](Actions& out) {
    if (rank.producer) rank.producer->tick(clock(rank), out);
    if (rank.consumer) rank.consumer->tick(clock(rank), out);
  });
}

void World::advance_to(Instant then) {
  for (auto due = deadline(); due && *due <= then; due = deadline()) {
    now_ = std::max(now_, *due);
    for (Rank& rank : ranks_) tick(rank);
    if (options_.renews_quietly) renew_quietly();
  }
  now_ = std::max(now_, then);
}

void World::renew_quietly() {
  const auto deliver_renewals = [this](Connection& connection, Side side) {
    const Connection::End& end = connection.end(side);
    while (!end.arriving.empty() && !end.rank->is_stopped) {
      const auto* said = std::get_if<Connection::Said>(&end.arriving.front());
      if (said == nullptr || !is_renewal(said->message)) return;
      deliver(connection, side);
    }
  };
  for (Connection& connection : connections_) {
    deliver_renewals(connection, Side::kConsumer);
    deliver_renewals(connection, Side::kProducer);
  }
}

// Messages.

std::vector<std::pair<Connection*, Side>> World::arrivals() {
  std::vector<std::pair<Connection*, Side>> waiting;
  for (Connection& connection : connections_) {
    for (const Side side : {Side::kConsumer, Side::kProducer}) {
      const Connection::End& end = connection.end(side);
      if (!end.arriving.empty() && !end.rank->is_stopped) waiting.emplace_back(&connection, side);
    }
  }
  return waiting;
}

void World::deliver(Connection& connection, Side side) {
  Connection::End& end = connection.end(side);
  const Connection::Arrival arrival = std::move(end.arriving.front());
  end.arriving.pop_front();
  Rank& rank = *end.rank;
  if (side == Side::kConsumer) check_silence(connection);
  if (std::holds_alternative<Connection::Closed>(arrival)) {
    end.is_closed = true;
    end.arriving.clear();
  }
  if (const auto* said = std::get_if<Connection::Said>(&arrival)) {
    end.heard = std::max(end.heard, said->heard);
    if (side == Side::kProducer) rank.book.heard(connection.talk, said->message, clock(rank));
    if (side == Side::kConsumer) note_outcome(connection, said->message);
    if (const auto* renewed = std::get_if<Renewed>(&said->message)) connection.renewed = renewed->stamp;
  }
  end.last_arrival = now_;
  step(rank, [&](Actions& out) {
    const auto on = [&](auto& machine) {
      std::visit(
          Overloaded{[&](const Connection::Said& said) { machine.on(connection.id, said.message, clock(rank), out); },
                     [&](Connection::Closed) { machine.on_closed(connection.id, clock(rank), out); },
                     [&](Connection::Opened) {
                       if constexpr (requires { machine.on_accepted(connection.id, now_); }) {
                         machine.on_accepted(connection.id, clock(rank));
                       } else {
                         machine.on_connected(connection.id, clock(rank), out);
                       }
                     }},
          arrival);
    };
    if (rank.producer) on(*rank.producer);
    if (rank.consumer) on(*rank.consumer);
  });
}

void World::resolve() {
  const auto [rank, directory] = resolving_.front();
  resolving_.pop_front();
  answer(*rank, directory);
}

void World::resolve(Rank& rank) {
  const auto asked = std::ranges::find(resolving_, &rank, &std::pair<Rank*, Endpoint>::first);
  if (asked == resolving_.end()) return;
  const Endpoint directory = asked->second;
  resolving_.erase(asked);
  answer(rank, directory);
}

void World::answer(Rank& rank, const Endpoint& directory) {
  const std::string name = directory.host.substr(0, directory.host.find('.'));  // "P.local" is another name of P
  step(rank, [&](Actions& out) {
    ProducerEngine engine;
    for (const Rank* producer : ranks_of(name)) {
      if (!producer->is_alive || directories_down_.contains(name)) continue;
      engine.engine_id = producer->id.engine_id;
      engine.incarnation = producer->id.incarnation;
      engine.ranks.push_back({producer->name, kControlPort});
    }
    Result<ProducerEngine> answer = engine;
    if (engine.ranks.empty()) answer = kvpush::fail(ErrorCode::kUnavailable, "the directory does not answer");
    rank.consumer->on_resolved(directory, answer, clock(rank), out);
  });
}

void World::deliver_all(const std::string& only_to) {
  for (bool is_busy = true; is_busy;) {
    is_busy = false;
    while (resolves() > 0 && (only_to.empty() || resolving_.front().first->engine == only_to)) resolve();
    for (const auto& [connection, side] : arrivals()) {
      const Rank& rank = *connection->end(side).rank;
      if (!only_to.empty() && rank.name != only_to && rank.engine != only_to) continue;
      if (connection->end(side).arriving.empty()) continue;  // a delivery before it closed this end
      deliver(*connection, side);
      is_busy = true;
    }
  }
}

void World::open(Rank& consumer, Rank& producer) {
  Connection& connection = add_connection(consumer, producer);
  connection.producer.arriving.emplace_back(Connection::Opened{});
  deliver(connection, Side::kProducer);
}

Connection& World::add_connection(Rank& consumer, Rank& producer) {
  Connection& connection = connections_.emplace_back();
  connection.id = ConnectionId{++connection_last_};
  connection.consumer.rank = &consumer;
  connection.producer.rank = &producer;
  connection.talk = {{consumer.id.incarnation, consumer.id.rank}, consumer.id.rank_count, connection.id};
  connections_by_id_.emplace(connection.id, &connection);
  return connection;
}

void World::say(const std::string& from, const std::string& to, const Message& message) {
  for (Connection& connection : std::views::reverse(connections_)) {
    for (const Side side : {Side::kConsumer, Side::kProducer}) {
      const Rank& speaker = *connection.other(side).rank;
      if (speaker.name != from || connection.end(side).rank->name != to) continue;
      Message said = message;
      if (Hello* hello = std::get_if<Hello>(&said)) {
        hello->from = speaker.id;
        hello->layout = speaker.blocks.layout();
        for (const TransportView& view : views_) hello->transports.push_back({view.name, address_of(speaker.name)});
      }
      connection.end(side).arriving.emplace_front(Connection::Said{said});
      return deliver(connection, side);
    }
  }
  fault(fmt::format("{} has no connection to {} to speak on", from, to));
}

// Writes.

void World::post(Rank& producer) {
  while (!producer.is_stopped) {
    const std::optional<Batch> batch = producer.producer->next_batch(clock(producer));
    if (!batch) return;
    if (producer.is_full) return producer.producer->put_back(batch->token);
    Connection* connection = find(producer, batch->peer);
    if (connection == nullptr) return fault(producer.name + " posts to a peer that it has disconnected");
    if (!has_live_lease(*connection)) fault(producer.name + " posts without a live lease");
    check_not_stopped(producer, *connection, batch->descriptors);
    Write write{.number = ++write_last_, .connection = connection, .token = batch->token};
    write.pieces.reserve(batch->descriptors.size());
    std::uint64_t bytes = 0;
    for (const Descriptor& copy : batch->descriptors) {
      const Holder source = producer.blocks.holder_of(copy.local, copy.length_bytes);
      const Holder target = owner_of(copy.remote).blocks.holder_of(copy.remote, copy.length_bytes);
      if (source == kNobody) fault(producer.name + " posts from a block that was given back");
      if (target == kNobody && !connection->is_fenced) fault(producer.name + " posts into a free block");
      write.pieces.push_back({.copy = copy, .source = source, .target = target});
      bytes += copy.length_bytes;
    }
    trace([&] {
      return fmt::format("{} posts batch {}: {} bytes to {}", producer.name, write.number, bytes,
                         connection->consumer.rank->name);
    });
    ++connection->write_count;
    write.is_posted = !std::exchange(producer.stops_at_post, false);
    Write& added = add_write(std::move(write));
    if (added.is_posted) {
      if (schedule_ != nullptr) schedule_->on_write(added);
    } else {
      set_stopped(producer, true);
      if (schedule_ != nullptr) schedule_->on_stopped(producer);
    }
  }
}

Write& World::add_write(Write write) {
  writes_.push_back(std::move(write));
  writes_by_number_.emplace(writes_.back().number, std::prev(writes_.end()));
  return writes_.back();
}

Write* World::find_write(std::uint64_t number) {
  const auto found = writes_by_number_.find(number);
  return found == writes_by_number_.end() ? nullptr : &*found->second;
}

void World::set_full(Rank& producer, bool is_full) {
  producer.is_full = is_full;
  if (producer.is_alive && !producer.is_stopped) post(producer);
}

// What a lease means, whatever messages make it: the consumer lived, by the producer's clock, less than that ago.
bool World::has_live_lease(const Connection& connection) const {
  return clock(*connection.producer.rank) - connection.producer.heard <
         options_.protocol.lease - options_.protocol.lease_margin;
}

void World::land(Write& write, std::size_t pieces) {
  if (write.connection->is_fenced || !write.is_posted || (write.is_cut && !write.is_astray)) return;
  for (; pieces > 0 && write.pieces_left() > 0; --pieces, ++write.landed) {
    const Write::Piece& piece = write.pieces[write.landed];
    Blocks& target = owner_of(piece.copy.remote).blocks;
    Blocks& source = write.connection->producer.rank->blocks;
    if (target.holder_of(piece.copy.remote, piece.copy.length_bytes) != piece.target) {
      fault(fmt::format("batch {} lands in a block that was given back", write.number));
    }
    std::span<const std::byte> bytes = piece.bytes;
    if (bytes.empty()) {
      if (source.holder_of(piece.copy.local, piece.copy.length_bytes) != piece.source) {
        fault(fmt::format("batch {} reads a block that was given back", write.number));
      }
      bytes = source.at(piece.copy.local, piece.copy.length_bytes);
    }
    std::ranges::copy(bytes, target.at(piece.copy.remote, piece.copy.length_bytes).begin());
  }
}

void World::complete(Write& write) {
  if (write.connection->is_fenced || write.is_cut) return fail(write);
  land(write, write.pieces.size());
  trace([&] { return fmt::format("batch {} is written", write.number); });
  end_write(write, std::nullopt);
}

void World::fail(Write& write) {
  trace([&] { return fmt::format("batch {} fails", write.number); });
  if (is_plain(*write.connection) || write.connection->is_fenced || write.pieces_left() == 0) {
    return end_write(write, Error{ErrorCode::kPeerLost, "the write failed"});
  }
  leave_memory(write);
  if (schedule_ != nullptr) schedule_->on_write(write);
  tell_end(*write.connection->producer.rank, write.token, Error{ErrorCode::kPeerLost, "the write failed"});
}

void World::leave_memory(Write& write) {
  write.is_astray = true;
  for (std::size_t index = write.landed; index < write.pieces.size(); ++index) {
    Write::Piece& piece = write.pieces[index];
    const auto bytes = write.connection->producer.rank->blocks.at(piece.copy.local, piece.copy.length_bytes);
    if (piece.bytes.empty()) piece.bytes.assign(bytes.begin(), bytes.end());
  }
}

void World::forget(Write& write) {
  const auto found = writes_by_number_.find(write.number);
  --write.connection->write_count;
  writes_.erase(found->second);
  writes_by_number_.erase(found);
}

template <class Matches>
void World::forget_writes(Matches matches) {
  for (auto write = writes_.begin(); write != writes_.end();) {
    Write& one = *write++;
    if (matches(one)) forget(one);
  }
}

void World::end_write(Write& write, std::optional<Error> error) {
  Rank& producer = *write.connection->producer.rank;
  const WriteToken token = write.token;
  forget(write);
  tell_end(producer, token, error);
}

void World::tell_end(Rank& producer, WriteToken token, std::optional<Error> error) {
  step(producer, [&](Actions& out) { producer.producer->on_written(token, error, clock(producer), out); });
}

// Trouble.

void World::cut(Connection& connection, bool is_all_lost) {
  for (const Side side : {Side::kConsumer, Side::kProducer}) {
    Connection::End& end = connection.end(side);
    if (is_all_lost) end.arriving.clear();
    if (!end.is_closed) arrive(connection, side, Connection::Closed{});
  }
}

void World::lose_peer(Connection& connection, Side side) {
  Rank& rank = *connection.end(side).rank;
  const std::optional<Peer> peer = connection.end(side).peer;
  if (!peer || rank.is_stopped) return;
  step(rank, [&](Actions& out) {
    if (rank.producer) rank.producer->on_peer_lost(*peer, clock(rank), out);
    if (rank.consumer) rank.consumer->on_peer_lost(*peer, false, clock(rank), out);
  });
}

void World::kill(const std::string& engine) {
  for (Rank* rank : ranks_of(engine)) {
    if (!rank->is_alive) continue;
    trace([&] { return rank->name + " dies"; });
    check_counters(*rank);
    rank->is_alive = false;
    rank->is_stopped = false;
    rank->stops_at_post = false;
    rank->is_full = false;
    rank->troubled = std::max(rank->troubled, now_);
    lose_connections(*rank);
    lose_writes(*rank);
    for (const auto& [id, request] : rank->requests) rank->blocks.give_back(request.held);
    rank->requests.clear();
    rank->awaited.clear();
    rank->producer.reset();
    rank->consumer.reset();
    std::erase_if(resolving_, [&](const auto& asked) { return asked.first == rank; });
    std::erase_if(gone_, [&](const auto& gone) { return gone.first == rank; });
  }
}

void World::lose_connections(Rank& rank) {
  for (Connection& connection : connections_) {
    for (const Side side : {Side::kConsumer, Side::kProducer}) {
      Connection::End& end = connection.end(side);
      if (end.rank != &rank) continue;
      if (!end.is_closed && !connection.other(side).is_closed) {
        arrive(connection, side == Side::kConsumer ? Side::kProducer : Side::kConsumer, Connection::Closed{});
      }
      end.is_closed = true;
      end.arriving.clear();
      if (end.peer) forget_peer(end);
      if (side == Side::kConsumer) connection.is_fenced = true;  // nothing lands in a process that is not there
      const bool is_watched = side == Side::kProducer && connection.consumer.peer && is_plain(connection);
      if (!is_watched) continue;
      gone_.emplace_back(connection.consumer.rank, *connection.consumer.peer);
      if (schedule_ != nullptr) schedule_->on_gone(*connection.consumer.rank);
    }
  }
}

void World::lose_writes(const Rank& rank) {
  forget_writes([&](Write& write) {
    const Connection& connection = *write.connection;
    if (connection.consumer.rank == &rank && connection.is_fenced) return write.is_astray;
    if (connection.producer.rank != &rank || write.is_astray) return false;
    if (is_plain(connection) || connection.is_fenced || !write.is_posted) return true;
    leave_memory(write);
    if (schedule_ != nullptr) schedule_->on_write(write);
    return false;
  });
}

void World::restart(const std::string& engine) {
  const std::uint64_t incarnation = ++incarnation_last_;
  for (Rank* rank : ranks_of(engine)) {
    trace([&] { return rank->name + " starts again"; });
    start_machine(*rank, incarnation);
    rank->resumed = now_;
    rank->troubled = std::max(rank->troubled, now_);
  }
}

void World::set_stopped(Rank& rank, bool is_stopped) {
  trace([&] { return rank.name + (is_stopped ? " is stopped" : " goes on"); });
  rank.is_stopped = is_stopped;
  rank.resumed = now_;
  rank.troubled = std::max(rank.troubled, now_);
  if (is_stopped || !rank.is_alive) return;
  for (Write& write : writes_) {
    if (write.is_posted || write.connection->producer.rank != &rank) continue;
    write.is_posted = true;
    trace([&] { return fmt::format("batch {}, checked before that, is posted now", write.number); });
    if (schedule_ != nullptr) schedule_->on_write(write);
  }
  step(rank, [](Actions&) {});
}

void World::notice_gone(std::size_t index) {
  const auto [rank, peer] = gone_[index];
  gone_.erase(gone_.begin() + static_cast<std::ptrdiff_t>(index));
  trace([&] { return rank->name + " sees that the writer is gone"; });
  if (Connection* connection = find(*rank, peer)) connection->open.clear();
  step(*rank, [&](Actions& out) { rank->consumer->on_peer_lost(peer, true, clock(*rank), out); });
}

void World::notice_gone(Rank& rank) {
  const auto found = std::ranges::find(gone_, &rank, &std::pair<Rank*, Peer>::first);
  if (found != gone_.end()) notice_gone(static_cast<std::size_t>(found - gone_.begin()));
}

void World::set_directory(const std::string& engine, bool is_up) {
  if (is_up) {
    directories_down_.erase(engine);
  } else {
    directories_down_.insert(engine);
  }
}

void World::set_reachable(const std::string& rank, const std::string& transport, bool is_reachable) {
  if (is_reachable) {
    unreachable_.erase({rank, transport});
  } else {
    unreachable_.insert({rank, transport});
  }
}

std::vector<std::string> World::take_lines() {
  return std::exchange(lines_, {});
}

// Actions.

template <class Step>
void World::step(Rank& rank, Step on) {
  Actions actions;
  const std::uint64_t silent_before = times_silent(rank);
  const std::uint64_t overdue_before = times_overdue(rank);
  on(actions);
  accusation_ = {.is_made = times_silent(rank) > silent_before};
  for (std::size_t next = 0; next < actions.size(); ++next) {
    const Action action = std::move(actions[next]);  // carrying one out may append others
    perform(rank, action, actions);
  }
  if (accusation_.is_made && !accusation_.is_excused && schedule_ != nullptr) {
    fault(rank.name + " calls a peer silent that answered in time");
  }
  if (times_overdue(rank) > overdue_before && !accusation_.is_owed) {
    fault(rank.name + " ends a link for an answer that it has");
  }
  if (rank.producer) post(rank);
  if (schedule_ != nullptr) schedule_->on_stepped(rank);
}

void World::perform(Rank& rank, const Action& action, Actions& more) {
  std::visit(
      Overloaded{[&](const SendMessage& a) { send(rank, a); },  //
                 [&](const CloseConnection& a) { close(rank, a.connection); },
                 [&](const ResolveEngine& a) {
                   trace([&] { return fmt::format("{} asks the directory of {}", rank.name, a.directory.host); });
                   resolving_.emplace_back(&rank, a.directory);
                   if (schedule_ != nullptr) schedule_->on_asked(rank);
                 },
                 [&](const Dial& a) { dial(rank, a); },                  //
                 [&](const ConnectPeer& a) { connect(rank, a, more); },  //
                 [&](const DisconnectPeer& a) { disconnect(rank, a.peer); },
                 [&](const TellEngine& a) { tell(rank, a.event); },  //
                 [&](const Note& a) { trace([&] { return fmt::format("{} notes: {}", rank.name, a.text); }); }},
      action);
}

void World::dial(Rank& rank, const Dial& action) {
  Connection& connection = add_connection(rank, *ranks_of(action.control.host).front());
  trace([&] { return fmt::format("{} dials {}", rank.name, connection.producer.rank->name); });
  rank.consumer->on_dialled(action.directory, action.rank, connection.id);
  if (connection.producer.rank->is_alive) {
    arrive(connection, Side::kConsumer, Connection::Opened{});
    arrive(connection, Side::kProducer, Connection::Opened{});
  } else {
    connection.producer.is_closed = true;
    arrive(connection, Side::kConsumer, Connection::Closed{});
  }
}

void World::send(Rank& rank, const SendMessage& action) {
  Connection* connection = find(action.connection);
  const Side side = rank.producer ? Side::kProducer : Side::kConsumer;
  const Side other = rank.producer ? Side::kConsumer : Side::kProducer;
  const Connection::End& to = connection->end(other);
  if (!options_.renews_quietly || !is_renewal(action.message)) {
    trace([&] { return fmt::format("{} -> {}: {}", rank.name, to.rank->name, text(action.message)); });
  }
  check_message(rank, *connection, action.message);
  const bool is_over = !to.arriving.empty() && std::holds_alternative<Connection::Closed>(to.arriving.back());
  const Instant heard = side == Side::kProducer ? clock(rank) : connection->consumer.heard;
  if (!to.is_closed && !is_over) arrive(*connection, other, Connection::Said{action.message, heard});
}

void World::arrive(Connection& connection, Side to, Connection::Arrival arrival) {
  connection.end(to).arriving.push_back(std::move(arrival));
  if (schedule_ != nullptr) schedule_->on_sent(connection, to);
}

void World::close(Rank& rank, ConnectionId id) {
  Connection& connection = *find(id);
  const Side side = rank.producer ? Side::kProducer : Side::kConsumer;
  const Side other = rank.producer ? Side::kConsumer : Side::kProducer;
  trace([&] { return fmt::format("{} closes the connection to {}", rank.name, connection.end(other).rank->name); });
  if (side == Side::kConsumer) check_silence(connection);
  accusation_.is_excused = accusation_.is_excused || !is_calm(connection, side);
  accusation_.is_owed = accusation_.is_owed || !connection.owed.empty();
  connection.end(side).is_closed = true;
  connection.end(side).arriving.clear();
  if (!connection.end(other).is_closed) arrive(connection, other, Connection::Closed{});
}

void World::connect(Rank& rank, const ConnectPeer& action, Actions& more) {
  Connection* connection = find(action.connection);
  const Side side = rank.producer ? Side::kProducer : Side::kConsumer;
  const Rank& to = *connection->other(side).rank;
  const std::string& transport = views_[action.transport].name;
  if (action.address != address_of(to.name)) fault(rank.name + " connects to the wrong address");
  Result<Peer> peer = Peer{action.transport, PeerId{++peer_last_}};
  const bool is_there = to.is_alive && !connection->other(side).is_closed;
  if (!is_there || unreachable_.contains({rank.name, transport})) {
    peer = kvpush::fail(ErrorCode::kUnavailable, "not on this host");
  } else {
    trace([&] { return fmt::format("{} connects to {} over {}", rank.name, to.name, transport); });
    connection->end(side).peer = *peer;
    connection->transport = action.transport;
    connection->is_fenced = false;
    connections_by_peer_.emplace(peer->id, connection);
  }
  if (rank.producer) rank.producer->on_peer(action.connection, peer, clock(rank), more);
  if (rank.consumer) rank.consumer->on_peer(action.connection, peer, clock(rank), more);
}

void World::disconnect(Rank& rank, Peer peer) {
  Connection* connection = find(rank, peer);
  if (connection == nullptr) return fault(rank.name + " disconnects a peer twice");
  trace([&] {
    return fmt::format("{} disconnects {}", rank.name,
                       rank.producer ? connection->consumer.rank->name : connection->producer.rank->name);
  });
  if (rank.producer) {
    forget_peer(connection->producer);
    for (Write& write : writes_) {
      if (write.connection != connection || write.is_astray) continue;
      write.is_cut = true;
      if (schedule_ != nullptr) schedule_->on_write(write);
    }
    return;
  }
  forget_peer(connection->consumer);
  std::erase(gone_, std::pair(&rank, peer));
  if (is_plain(*connection)) return;
  connection->is_fenced = true;
  forget_writes([&](const Write& write) { return write.connection == connection && write.is_astray; });
}

void World::forget_peer(Connection::End& end) {
  connections_by_peer_.erase(end.peer->id);
  end.peer.reset();
}

void World::tell(Rank& rank, const EngineEvent& event) {
  trace([&] { return fmt::format("{}: {}", rank.name, text(event)); });
  if (const auto* await = std::get_if<AwaitEnded>(&event)) {
    if (rank.awaited.erase(await->transfer_id) == 0) {
      fault(fmt::format("{}: waiting for {} ended twice", rank.name, await->transfer_id));
    }
    return;
  }
  const auto on = [&](const auto& ended) {
    const auto found = rank.requests.find(ended.request);
    if (found == rank.requests.end()) return fault(fmt::format("{}: {} ended twice", rank.name, ended.request));
    const LocalRequest request = std::move(found->second);
    rank.requests.erase(found);
    ++(ended.error ? rank.failed_count : rank.complete_count);
    check_ended(rank, request, ended);
    rank.blocks.give_back(request.held);
    if (schedule_ != nullptr) schedule_->on_ended(rank, ended.request, !ended.error);
  };
  if (const auto* received = std::get_if<ReceiveEnded>(&event)) return on(*received);
  on(std::get<SendEnded>(event));
}

Connection* World::find(ConnectionId id) {
  const auto found = connections_by_id_.find(id);
  return found == connections_by_id_.end() ? nullptr : found->second;
}

Connection* World::find(const Rank& rank, Peer peer) {
  const auto found = connections_by_peer_.find(peer.id);
  if (found == connections_by_peer_.end()) return nullptr;
  const Connection::End& end = rank.producer ? found->second->producer : found->second->consumer;
  return end.rank == &rank && end.peer == peer ? found->second : nullptr;
}

void World::forget_ended_connections() {
  std::erase_if(connections_, [&](const Connection& connection) {
    const auto is_over = [](const Connection::End& end) { return end.is_closed && !end.peer; };
    if (!is_over(connection.consumer) || !is_over(connection.producer) || connection.write_count > 0) return false;
    connections_by_id_.erase(connection.id);
    return true;
  });
}

Rank& World::owner_of(std::uint64_t address) {
  const std::uint32_t place = Blocks::place_of(address);
  KVPUSH_CHECK(place > 0 && place <= ranks_.size(), "every address belongs to a rank");
  return ranks_[place - 1];
}

}  // namespace kvpush::sim
