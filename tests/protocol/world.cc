#include "tests/protocol/world.h"

#include <algorithm>
#include <ranges>

#include <fmt/format.h>

#include "kvpush/base/check.h"
#include "kvpush/base/overloaded.h"
#include "tests/protocol/text.h"

namespace kvpush::testing {

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

World::World(WorldOptions options, std::uint64_t seed) : options_(std::move(options)), seed_(seed) {
  for (const std::string& transport : options_.transports) {
    views_.push_back({.name = transport,
                      .address = {},
                      .disconnect_fences = transport == kFencing,
                      .writes_die_with_writer = transport == kPlain});
  }
}

void World::add(const Engine& engine) {
  engines_.push_back(engine);
  const std::uint64_t incarnation = ++incarnation_last_;
  for (std::uint32_t index = 0; index < engine.rank_count; ++index) {
    const std::string name = engine.rank_count == 1 ? engine.name : engine.name + std::to_string(index);
    const auto place = static_cast<std::uint32_t>(ranks_.size() + 1);
    ranks_.push_back({.name = name,
                      .engine = engine.name,
                      .id = {engine.name, {}, index, engine.rank_count},
                      .blocks = Blocks(place, index, engine.rank_count, engine.dtype)});
    start_machine(ranks_.back(), incarnation);
  }
}

void World::start_machine(Rank& rank, std::uint64_t incarnation) {
  rank.id.incarnation = Incarnation{incarnation};
  rank.is_alive = true;
  rank.is_stopped = false;
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
  const bool is_new = consumer.requests.try_emplace(ask.request, ask.transfer_id, ask.tokens, *held).second;
  KVPUSH_CHECK(is_new, "tests give each request a name of its own");
  Result<void> taken;
  step(consumer, [&](Actions& out) {
    taken = consumer.consumer->on(
        Receive{ask.request, ask.transfer_id, {producer, kDirectoryPort}, ask.tokens, held->tables}, now_, out);
  });
  if (taken) return true;
  note(fmt::format("{}: {} refused: {}", consumer.name, ask.request, error_name(taken.error().code)));
  consumer.requests.erase(ask.request);
  consumer.blocks.give_back(*held);
  return false;
}

bool World::send(Rank& producer, const Ask& ask) {
  const auto held = producer.blocks.hold(ask.tokens.end, ask.choice, ask.from);
  if (!held) return false;
  producer.blocks.fill(*held, ask.transfer_id, ask.tokens);
  const bool is_new = producer.requests.try_emplace(ask.request, ask.transfer_id, ask.tokens, *held).second;
  KVPUSH_CHECK(is_new, "tests give each request a name of its own");
  Result<void> taken;
  step(producer, [&](Actions& out) {
    taken = producer.producer->on(Send{ask.request, ask.transfer_id, ask.tokens.end, held->tables}, now_, out);
  });
  if (taken) return true;
  note(fmt::format("{}: {} refused: {}", producer.name, ask.request, error_name(taken.error().code)));
  producer.requests.erase(ask.request);
  producer.blocks.give_back(*held);
  return false;
}

void World::abandon(Rank& consumer, const RequestId& request) {
  step(consumer, [&](Actions& out) { consumer.consumer->on(Abandon{request}, now_, out); });
}

void World::decline(Rank& consumer, const TransferId& transfer_id, const std::string& producer) {
  step(consumer,
       [&](Actions& out) { consumer.consumer->on(Decline{transfer_id, {producer, kDirectoryPort}}, now_, out); });
}

void World::cancel(Rank& producer, const RequestId& request) {
  step(producer, [&](Actions& out) { producer.producer->on(Cancel{request}, now_, out); });
}

void World::withdraw(Rank& producer, const TransferId& transfer_id) {
  step(producer, [&](Actions& out) { producer.producer->on(Withdraw{transfer_id}, now_, out); });
}

void World::drain(Rank& rank) {
  step(rank, [&](Actions& out) {
    if (rank.producer) rank.producer->drain(now_, out);
    if (rank.consumer) rank.consumer->drain(now_, out);
  });
}

// Time.

std::optional<Instant> World::deadline() const {
  std::optional<Instant> earliest;
  for (const Rank& rank : ranks_) {
    if (!rank.is_alive || rank.is_stopped) continue;
    const auto deadline = rank.producer ? rank.producer->deadline() : rank.consumer->deadline();
    if (deadline && (!earliest || *deadline < *earliest)) earliest = deadline;
  }
  return earliest;
}

void World::advance_to(Instant then) {
  for (auto due = deadline(); due && *due <= then; due = deadline()) {
    now_ = std::max(now_, *due);
    for (Rank& rank : ranks_) {
      if (!rank.is_alive || rank.is_stopped) continue;
      step(rank, [&](Actions& out) {
        if (rank.producer) rank.producer->tick(now_, out);
        if (rank.consumer) rank.consumer->tick(now_, out);
      });
    }
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
  if (std::holds_alternative<Connection::Closed>(arrival)) {
    end.is_closed = true;
    end.arriving.clear();
  }
  if (const auto* said = std::get_if<Connection::Said>(&arrival)) end.heard = std::max(end.heard, said->heard);
  step(rank, [&](Actions& out) {
    const auto on = [&](auto& machine) {
      std::visit(Overloaded{[&](const Connection::Said& said) { machine.on(connection.id, said.message, now_, out); },
                            [&](Connection::Closed) { machine.on_closed(connection.id, now_, out); },
                            [&](Connection::Opened) {
                              if constexpr (requires { machine.on_accepted(connection.id, now_); }) {
                                machine.on_accepted(connection.id, now_);
                              } else {
                                machine.on_connected(connection.id, now_, out);
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
  const std::string name = directory.host.substr(0, directory.host.find('.'));  // "P.local" is another name of P
  step(*rank, [&](Actions& out) {
    ProducerEngine engine;
    for (const Rank* producer : ranks_of(name)) {
      if (!producer->is_alive || directories_down_.contains(name)) continue;
      engine.engine_id = producer->id.engine_id;
      engine.incarnation = producer->id.incarnation;
      engine.ranks.push_back({producer->name, kControlPort});
    }
    Result<ProducerEngine> answer = engine;
    if (engine.ranks.empty()) answer = kvpush::fail(ErrorCode::kUnavailable, "the directory does not answer");
    rank->consumer->on_resolved(directory, answer, now_, out);
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
  Connection& connection = connections_.emplace_back();
  connection.id = ConnectionId{++connection_last_};
  connection.consumer.rank = &consumer;
  connection.producer.rank = &producer;
  connection.producer.arriving.emplace_back(Connection::Opened{});
  deliver(connection, Side::kProducer);
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
  faults_.push_back(fmt::format("{} has no connection to {} to speak on", from, to));
}

// Writes.

void World::post(Rank& producer) {
  while (const std::optional<Batch> batch = producer.producer->next_batch(now_)) {
    if (producer.is_full) return producer.producer->put_back(batch->token);
    Connection* connection = find(producer, batch->peer);
    if (connection == nullptr) {
      faults_.push_back(producer.name + " posts to a peer that it has disconnected");
      return;
    }
    if (!has_live_lease(*connection)) faults_.push_back(producer.name + " posts without a live lease");
    Write write{.number = ++write_last_, .connection = connection, .token = batch->token};
    std::uint64_t bytes = 0;
    for (const Descriptor& copy : batch->descriptors) {
      const Holder source = producer.blocks.holder_at(copy.local);
      const Holder target = owner_of(copy.remote).blocks.holder_at(copy.remote);
      if (source == kNobody) faults_.push_back(producer.name + " posts from a block that was given back");
      if (target == kNobody && !connection->is_fenced) faults_.push_back(producer.name + " posts into a free block");
      write.pieces.push_back({.copy = copy, .source = source, .target = target});
      bytes += copy.length_bytes;
    }
    note(fmt::format("{} posts batch {}: {} bytes to {}", producer.name, write.number, bytes,
                     connection->consumer.rank->name));
    writes_.push_back(std::move(write));
  }
}

void World::set_full(Rank& producer, bool is_full) {
  producer.is_full = is_full;
  if (producer.is_alive && !producer.is_stopped) post(producer);
}

// What a lease means, whatever messages make it: the consumer lived, by the producer's clock, less than that ago.
bool World::has_live_lease(const Connection& connection) const {
  return now_ - connection.producer.heard < options_.protocol.lease - options_.protocol.lease_margin;
}

void World::land(Write& write, std::size_t pieces) {
  if (write.connection->is_fenced || (write.is_cut && !write.is_astray)) return;
  for (; pieces > 0 && !write.pieces.empty(); --pieces, write.pieces.pop_front()) {
    const Write::Piece& piece = write.pieces.front();
    Blocks& target = owner_of(piece.copy.remote).blocks;
    Blocks& source = write.connection->producer.rank->blocks;
    if (target.holder_at(piece.copy.remote) != piece.target) {
      faults_.push_back(fmt::format("batch {} lands in a block that was given back", write.number));
    }
    std::span<const std::byte> bytes = piece.bytes;
    if (bytes.empty()) {
      if (source.holder_at(piece.copy.local) != piece.source) {
        faults_.push_back(fmt::format("batch {} reads a block that was given back", write.number));
      }
      bytes = source.at(piece.copy.local, piece.copy.length_bytes);
    }
    std::ranges::copy(bytes, target.at(piece.copy.remote, piece.copy.length_bytes).begin());
  }
}

void World::complete(Write& write) {
  if (write.connection->is_fenced || write.is_cut) return fail(write);
  land(write, write.pieces.size());
  note(fmt::format("batch {} is written", write.number));
  end_write(write, std::nullopt);
}

void World::fail(Write& write) {
  note(fmt::format("batch {} fails", write.number));
  if (!is_plain(*write.connection) && !write.connection->is_fenced) {
    Write astray = write;
    leave_memory(astray);
    writes_.push_back(std::move(astray));
  }
  end_write(write, Error{ErrorCode::kPeerLost, "the write failed"});
}

void World::leave_memory(Write& write) {
  write.is_astray = true;
  for (Write::Piece& piece : write.pieces) {
    const auto bytes = write.connection->producer.rank->blocks.at(piece.copy.local, piece.copy.length_bytes);
    if (piece.bytes.empty()) piece.bytes.assign(bytes.begin(), bytes.end());
  }
}

void World::forget(Write& write) {
  writes_.remove_if([&](const Write& other) { return &other == &write; });
}

void World::end_write(Write& write, std::optional<Error> error) {
  Rank& producer = *write.connection->producer.rank;
  const WriteToken token = write.token;
  forget(write);
  step(producer, [&](Actions& out) { producer.producer->on_written(token, error, now_, out); });
}

// Trouble.

void World::cut(Connection& connection, bool is_all_lost) {
  for (const Side side : {Side::kConsumer, Side::kProducer}) {
    Connection::End& end = connection.end(side);
    if (is_all_lost) end.arriving.clear();
    if (!end.is_closed) end.arriving.emplace_back(Connection::Closed{});
  }
}

void World::lose_peer(Connection& connection, Side side) {
  Rank& rank = *connection.end(side).rank;
  const std::optional<Peer> peer = connection.end(side).peer;
  if (!peer || rank.is_stopped) return;
  step(rank, [&](Actions& out) {
    if (rank.producer) rank.producer->on_peer_lost(*peer, now_, out);
    if (rank.consumer) rank.consumer->on_peer_lost(*peer, false, now_, out);
  });
}

void World::kill(const std::string& engine) {
  for (Rank* rank : ranks_of(engine)) {
    note(rank->name + " dies");
    rank->is_alive = false;
    for (Connection& connection : connections_) {
      if (connection.producer.rank != rank || connection.producer.is_closed) continue;
      connection.producer.is_closed = true;
      connection.producer.arriving.clear();
      connection.producer.peer.reset();
      if (!connection.consumer.is_closed) connection.consumer.arriving.emplace_back(Connection::Closed{});
    }
    for (Connection& connection : connections_) {
      if (connection.producer.rank != rank || !connection.consumer.peer || !is_plain(connection)) continue;
      gone_.emplace_back(connection.consumer.rank, *connection.consumer.peer);
    }
    for (Write& write : writes_) {
      if (write.connection->producer.rank == rank && !is_plain(*write.connection)) leave_memory(write);
    }
    writes_.remove_if([&](const Write& write) { return write.connection->producer.rank == rank && !write.is_astray; });
    for (const auto& [id, request] : rank->requests) rank->blocks.give_back(request.held);
    rank->requests.clear();
    rank->producer.reset();
  }
}

void World::restart(const std::string& engine) {
  const std::uint64_t incarnation = ++incarnation_last_;
  for (Rank* rank : ranks_of(engine)) {
    note(rank->name + " starts again");
    start_machine(*rank, incarnation);
  }
}

void World::set_stopped(Rank& rank, bool is_stopped) {
  note(rank.name + (is_stopped ? " is stopped" : " goes on"));
  rank.is_stopped = is_stopped;
  if (!is_stopped && rank.is_alive) step(rank, [](Actions&) {});
}

void World::notice_gone(std::size_t index) {
  const auto [rank, peer] = gone_[index];
  gone_.erase(gone_.begin() + static_cast<std::ptrdiff_t>(index));
  note(rank->name + " sees that the writer is gone");
  step(*rank, [&](Actions& out) { rank->consumer->on_peer_lost(peer, true, now_, out); });
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
  on(actions);
  for (std::size_t next = 0; next < actions.size(); ++next) {
    const Action action = std::move(actions[next]);  // carrying one out may append others
    perform(rank, action, actions);
  }
  if (rank.producer) post(rank);
}

void World::perform(Rank& rank, const Action& action, Actions& more) {
  std::visit(Overloaded{[&](const SendMessage& a) { send(rank, a); },  //
                        [&](const CloseConnection& a) { close(rank, a.connection); },
                        [&](const ResolveEngine& a) {
                          note(fmt::format("{} asks the directory of {}", rank.name, a.directory.host));
                          resolving_.emplace_back(&rank, a.directory);
                        },
                        [&](const Dial& a) { dial(rank, a); },                  //
                        [&](const ConnectPeer& a) { connect(rank, a, more); },  //
                        [&](const DisconnectPeer& a) { disconnect(rank, a.peer); },
                        [&](const TellEngine& a) { tell(rank, a.event); },  //
                        [&](const Note& a) { note(fmt::format("{} notes: {}", rank.name, a.text)); }},
             action);
}

void World::dial(Rank& rank, const Dial& action) {
  Connection& connection = connections_.emplace_back();
  connection.id = ConnectionId{++connection_last_};
  connection.consumer.rank = &rank;
  connection.producer.rank = ranks_of(action.control.host).front();
  note(fmt::format("{} dials {}", rank.name, connection.producer.rank->name));
  if (connection.producer.rank->is_alive) {
    connection.consumer.arriving.emplace_back(Connection::Opened{});
    connection.producer.arriving.emplace_back(Connection::Opened{});
  } else {
    connection.producer.is_closed = true;
    connection.consumer.arriving.emplace_back(Connection::Closed{});
  }
  rank.consumer->on_dialled(action.directory, action.rank, connection.id);
}

void World::send(Rank& rank, const SendMessage& action) {
  Connection* connection = find(action.connection);
  const Side side = rank.producer ? Side::kProducer : Side::kConsumer;
  Connection::End& to = connection->other(side);
  if (!options_.renews_quietly || !is_renewal(action.message)) {
    note(fmt::format("{} -> {}: {}", rank.name, to.rank->name, text(action.message)));
  }
  if (connection->end(side).is_closed) {
    faults_.push_back(rank.name + " sends on a connection that has ended");
  }
  const bool is_over = !to.arriving.empty() && std::holds_alternative<Connection::Closed>(to.arriving.back());
  const Instant heard = side == Side::kProducer ? now_ : connection->consumer.heard;
  if (!to.is_closed && !is_over) to.arriving.emplace_back(Connection::Said{action.message, heard});
}

void World::close(Rank& rank, ConnectionId id) {
  Connection* connection = find(id);
  const Side side = rank.producer ? Side::kProducer : Side::kConsumer;
  Connection::End& to = connection->other(side);
  note(fmt::format("{} closes the connection to {}", rank.name, to.rank->name));
  connection->end(side).is_closed = true;
  connection->end(side).arriving.clear();
  if (!to.is_closed) to.arriving.emplace_back(Connection::Closed{});
}

void World::connect(Rank& rank, const ConnectPeer& action, Actions& more) {
  Connection* connection = find(action.connection);
  const Side side = rank.producer ? Side::kProducer : Side::kConsumer;
  const Rank& to = *connection->other(side).rank;
  const std::string& transport = views_[action.transport].name;
  if (action.address != address_of(to.name)) faults_.push_back(rank.name + " connects to the wrong address");
  Result<Peer> peer = Peer{action.transport, PeerId{++peer_last_}};
  const bool is_there = to.is_alive && !connection->producer.is_closed;
  if (!is_there || unreachable_.contains({rank.name, transport})) {
    peer = kvpush::fail(ErrorCode::kUnavailable, "not on this host");
  } else {
    note(fmt::format("{} connects to {} over {}", rank.name, to.name, transport));
    connection->end(side).peer = *peer;
    connection->transport = action.transport;
    connection->is_fenced = false;
  }
  if (rank.producer) rank.producer->on_peer(action.connection, peer, now_, more);
  if (rank.consumer) rank.consumer->on_peer(action.connection, peer, now_, more);
}

void World::disconnect(Rank& rank, Peer peer) {
  Connection* connection = find(rank, peer);
  if (connection == nullptr) {
    faults_.push_back(rank.name + " disconnects a peer twice");
    return;
  }
  note(fmt::format("{} disconnects {}", rank.name,
                   rank.producer ? connection->consumer.rank->name : connection->producer.rank->name));
  if (rank.producer) {
    connection->producer.peer.reset();
    for (Write& write : writes_) {
      if (write.connection != connection || write.is_astray) continue;
      write.is_cut = true;
    }
    return;
  }
  connection->consumer.peer.reset();
  std::erase(gone_, std::pair(&rank, peer));
  if (is_plain(*connection)) return;
  connection->is_fenced = true;
  writes_.remove_if([&](const Write& write) { return write.connection == connection && write.is_astray; });
}

void World::tell(Rank& rank, const EngineEvent& event) {
  note(fmt::format("{}: {}", rank.name, text(event)));
  const auto on = [&](const auto& ended) {
    const auto found = rank.requests.find(ended.request);
    if (found == rank.requests.end()) {
      faults_.push_back(fmt::format("{}: {} ended twice", rank.name, ended.request));
      return;
    }
    ++(ended.error ? rank.failed_count : rank.complete_count);
    check_ended(rank, found->second, rank.producer ? Side::kProducer : Side::kConsumer, !ended.error);
    rank.blocks.give_back(found->second.held);
    rank.requests.erase(found);
  };
  std::visit(on, event);
}

void World::check_ended(Rank& rank, const LocalRequest& request, Side side, bool is_complete) {
  for (const Write& write : writes_) {
    if (side == Side::kProducer && (write.connection->producer.rank != &rank || write.is_astray)) continue;
    if (side == Side::kConsumer && (write.connection->consumer.rank != &rank || write.connection->is_fenced)) continue;
    if (side == Side::kConsumer && write.is_cut && !write.is_astray && is_plain(*write.connection)) continue;
    for (const Write::Piece& piece : write.pieces) {
      if ((side == Side::kProducer ? piece.source : piece.target) != request.held.holder) continue;
      faults_.push_back(
          fmt::format("{}: {} ended while batch {} is under way", rank.name, request.transfer_id, write.number));
      break;
    }
  }
  if (side == Side::kConsumer && is_complete &&
      !rank.blocks.equals(request.held, request.transfer_id, request.tokens)) {
    faults_.push_back(fmt::format("{}: {} is said to be complete and is not", rank.name, request.transfer_id));
  }
}

Connection* World::find(ConnectionId id) {
  const auto found = std::ranges::find(connections_, id, &Connection::id);
  return found == connections_.end() ? nullptr : &*found;
}

Connection* World::find(const Rank& rank, Peer peer) {
  const auto found = std::ranges::find_if(connections_, [&](const Connection& connection) {
    return (connection.consumer.rank == &rank && connection.consumer.peer == peer) ||
           (connection.producer.rank == &rank && connection.producer.peer == peer);
  });
  return found == connections_.end() ? nullptr : &*found;
}

Rank& World::owner_of(std::uint64_t address) {
  const auto owner = std::ranges::find_if(ranks_, [&](const Rank& rank) { return rank.blocks.contains(address); });
  KVPUSH_CHECK(owner != ranks_.end(), "every address belongs to a rank");
  return *owner;
}

}  // namespace kvpush::testing
