#include "kvpush/agent/core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/log.h"
#include "kvpush/base/overloaded.h"

namespace kvpush {

namespace {

std::vector<TransportView> views_of(const Transports& transports) {
  std::vector<TransportView> views;
  for (const auto& transport : transports) {
    const TransportFacts facts = transport->facts();
    views.push_back(
        {std::string(transport->name()), transport->address(), facts.disconnect_fences, facts.writes_die_with_writer});
  }
  return views;
}

std::vector<Report::Wire> wires_of(const Transports& transports) {
  std::vector<Report::Wire> wires;
  for (const auto& transport : transports) {
    wires.push_back({std::string(transport->name()), transport->wire()});
  }
  return wires;
}

}  // namespace

Result<Transports> open_transports(std::span<const TransportFactory> factories, std::span<const MemoryRange> regions) {
  Transports transports;
  for (const TransportFactory& factory : factories) {
    Result<std::unique_ptr<Transport>> transport = factory();
    if (!transport) {
      log(LogLevel::kInfo, fmt::format("a transport is left out: {}", transport.error().what));
      continue;
    }
    for (const MemoryRange& region : regions) {
      const std::span memory(reinterpret_cast<std::byte*>(region.base), region.size_bytes);
      const Result<RegionId> registered = (*transport)->register_region(memory);
      if (!registered) return std::unexpected(registered.error());
    }
    log(LogLevel::kInfo, fmt::format("transport {} can be used", (*transport)->name()));
    transports.push_back(std::move(*transport));
  }
  if (transports.empty()) return fail(ErrorCode::kUnavailable, "none of the transports works on this machine");
  return transports;
}

AgentCore::AgentCore(const RankName& self, const RankLayout& layout, Transports transports, ProtocolOptions options,
                     Random random, Surroundings surroundings)
    : surroundings_(std::move(surroundings)),
      transports_(std::move(transports)),
      producer_(self, layout, views_of(transports_), options),
      consumer_(self, layout, views_of(transports_), options, random) {}

void AgentCore::on_accepted(ConnectionId connection, Instant now) {
  const RoleScope scope(role_);
  producer_.on_accepted(connection, now);
}

void AgentCore::on_connected(ConnectionId connection, Instant now) {
  const RoleScope scope(role_);
  consumer_.on_connected(connection, now, actions_);
  perform(now);
}

void AgentCore::on_message(ConnectionId connection, const Message& message, Instant now) {
  const RoleScope scope(role_);
  if (consumer_.owns(connection)) {
    consumer_.on(connection, message, now, actions_);
  } else {
    producer_.on(connection, message, now, actions_);
  }
  perform(now);
}

void AgentCore::on_closed(ConnectionId connection, const Error& error, Instant now) {
  const RoleScope scope(role_);
  log(LogLevel::kDebug, fmt::format("control connection {} ended: {}", connection.value, error.what));
  if (consumer_.owns(connection)) {
    consumer_.on_closed(connection, now, actions_, error);
  } else {
    producer_.on_closed(connection, now, actions_, error);
  }
  perform(now);
}

void AgentCore::on_resolved(const Endpoint& directory, const Result<ProducerEngine>& engine, Instant now) {
  const RoleScope scope(role_);
  consumer_.on_resolved(directory, engine, now, actions_);
  perform(now);
}

std::size_t AgentCore::turn(Instant now) {
  const RoleScope scope(role_);
  std::size_t done = take_commands(now);
  const auto is_due = [now](std::optional<Instant> deadline) { return deadline && *deadline <= now; };
  // Before deadlines act: a write that has ended by now has ended in time.
  if (is_due(producer_.deadline()) || is_due(consumer_.deadline())) done += poll();
  producer_.tick(now, actions_);
  consumer_.tick(now, actions_);
  done += actions_.size();
  perform(now);
  done += post();
  done += poll();
  take_seen();
  return done;
}

bool AgentCore::arm() {
  const RoleScope scope(role_);
  return std::ranges::all_of(transports_, [](const auto& transport) { return transport->arm(); });
}

std::vector<int> AgentCore::event_fds() const {
  const RoleScope scope(role_);
  std::vector<int> fds;
  for (const auto& transport : transports_) fds.push_back(transport->event_fd());
  return fds;
}

std::optional<Instant> AgentCore::deadline() const {
  const RoleScope scope(role_);
  const std::optional<Instant> sending = producer_.deadline();
  const std::optional<Instant> receiving = consumer_.deadline();
  if (!sending || !receiving) return sending ? sending : receiving;
  return std::min(*sending, *receiving);
}

void AgentCore::drain(Instant now) {
  const RoleScope scope(role_);
  producer_.drain(now, actions_);
  consumer_.drain(now, actions_);
  perform(now);
}

bool AgentCore::idle() const {
  const RoleScope scope(role_);
  return producer_.idle() && producer_.is_heard() && consumer_.idle();
}

std::size_t AgentCore::fail_rest(Instant now) {
  const RoleScope scope(role_);
  // What was taken and has not been looked at: all of it is refused now.
  surroundings_.exchange.close();
  while (take_commands(now) > 0) {
  }
  // Control first, so that peers take this for an end and not for a broken wire.
  surroundings_.control.stop();
  transports_.clear();
  const std::vector<Producer::Held> held = producer_.held();
  const std::vector<Consumer::Waiting> waiting = consumer_.waiting();
  for (const Producer::Held& request : held) {
    tell(SendEnded{request.request,
                   request.transfer_id,
                   ErrorCode::kStopped,
                   0,
                   request.tokens,
                   request.consumer,
                   {.offered = request.offered, .completed = now}});
  }
  for (const Consumer::Waiting& request : waiting) {
    tell(ReceiveEnded{request.request,
                      request.transfer_id,
                      ErrorCode::kStopped,
                      0,
                      request.tokens,
                      request.producer,
                      {.received = request.received, .ended = now}});
  }
  return held.size() + waiting.size();
}

std::string AgentCore::transfers() {
  const RoleScope scope(role_);
  take_seen();
  return report_.transfers(producer_, consumer_);
}

std::string AgentCore::metrics() {
  const RoleScope scope(role_);
  take_seen();
  return report_.metrics(producer_, consumer_, surroundings_.control.counters(), wires_of(transports_));
}

std::size_t AgentCore::take_commands(Instant now) {
  if (next_command_ == commands_.size()) {
    surroundings_.exchange.take_commands(commands_);
    next_command_ = 0;
  }
  std::size_t taken = 0;
  for (; next_command_ < commands_.size() && taken < kTurnWorkMax; ++next_command_, ++taken) {
    std::visit(Overloaded{[&](const Receive& command) KVPUSH_ON(role_) { carry_out(command, now); },
                          [&](const Send& command) KVPUSH_ON(role_) { carry_out(command, now); },
                          [&](const Abandon& command) KVPUSH_ON(role_) { consumer_.on(command, now, actions_); },
                          [&](const Decline& command) KVPUSH_ON(role_) { consumer_.on(command, now, actions_); },
                          [&](const Await& command) KVPUSH_ON(role_) { consumer_.on(command, now, actions_); },
                          [&](const Admit& command) KVPUSH_ON(role_) { producer_.on(command, actions_); },
                          [&](const Cancel& command) KVPUSH_ON(role_) { producer_.on(command, now, actions_); },
                          [&](const Withdraw& command) KVPUSH_ON(role_) { producer_.on(command, now, actions_); }},
               commands_[next_command_]);
    perform(now);
  }
  return taken;
}

void AgentCore::carry_out(const Receive& command, Instant now) {
  const Result<void> accepted = consumer_.on(command, now, actions_);
  if (accepted) return;
  log(LogLevel::kWarning, fmt::format("request {} (transfer {}) cannot receive: {}", command.request,
                                      command.transfer_id, accepted.error().what));
  consumer_.on(Decline{command.transfer_id, command.producer}, now, actions_);  // or it would be awaited for ever
  tell(ReceiveEnded{command.request,
                    command.transfer_id,
                    accepted.error().code,
                    0,
                    command.tokens.end - command.tokens.first,
                    command.producer,
                    {.received = now, .ended = now}});
}

void AgentCore::carry_out(const Send& command, Instant now) {
  const Result<void> accepted = producer_.on(command, now, actions_);
  if (accepted) return;
  log(LogLevel::kWarning, fmt::format("request {} (transfer {}) cannot be sent: {}", command.request,
                                      command.transfer_id, accepted.error().what));
  tell(SendEnded{command.request,
                 command.transfer_id,
                 accepted.error().code,
                 0,
                 command.token_count,
                 {},
                 {.offered = now, .completed = now}});
}

std::size_t AgentCore::post() {
  std::size_t posted = 0;
  while (posted < kTurnWorkMax) {
    const Instant now = surroundings_.read_clock();
    const std::optional<Batch> batch = producer_.next_batch(now);
    if (!batch) break;
    const Result<void> written =
        transports_[batch->peer.transport]->write(batch->peer.id, batch->descriptors, batch->token);
    if (!written && written.error().code == ErrorCode::kFull) {
      producer_.put_back(batch->token);
      break;
    }
    ++posted;
    if (written) continue;
    log(LogLevel::kWarning, fmt::format("a batch could not be posted over {}: {}",
                                        transports_[batch->peer.transport]->name(), written.error().what));
    producer_.on_written(batch->token, written.error(), now, actions_);
    perform(now);
  }
  return posted;
}

std::size_t AgentCore::poll() {
  std::size_t done = 0;
  for (std::uint32_t index = 0; index < transports_.size(); ++index) {
    events_.clear();
    done += transports_[index]->poll(events_);
    if (events_.completions.empty() && events_.lost.empty()) continue;
    const Instant now = surroundings_.read_clock();
    for (const WriteCompletion& completion : events_.completions) {
      if (completion.error) {
        log(LogLevel::kWarning,
            fmt::format("a batch failed over {}: {}", transports_[index]->name(), completion.error->what));
      }
      producer_.on_written(completion.token, completion.error, now, actions_);
    }
    for (const PeerLost& lost : events_.lost) {
      log(LogLevel::kInfo, fmt::format("a peer is lost over {}: {}", transports_[index]->name(), lost.error.what));
      producer_.on_peer_lost({index, lost.peer}, now, actions_);
      consumer_.on_peer_lost({index, lost.peer}, lost.writer_gone, now, actions_);
    }
    perform(now);
  }
  return done;
}

void AgentCore::take_seen() {
  surroundings_.exchange.take_seen(seen_);
  for (const SeenByEngine& seen : seen_) report_.seen(seen);
}

void AgentCore::perform(Instant now) {
  // Carrying one out may append others.
  for (std::size_t next = 0; next < actions_.size(); ++next) {
    const Action action = std::move(actions_[next]);
    perform(action, now);
  }
  actions_.clear();
}

void AgentCore::perform(const Action& action, Instant now) {
  std::visit(Overloaded{
                 [&](const SendMessage& send) { surroundings_.control.send(send.connection, send.message); },
                 [&](const CloseConnection& close) { surroundings_.control.close(close.connection); },
                 [&](const ResolveEngine& resolve) { surroundings_.resolve(resolve.directory); },
                 [&](const Dial& dial) KVPUSH_ON(role_) {
                   consumer_.on_dialled(dial.directory, dial.rank, surroundings_.control.connect(dial.control));
                 },
                 [&](const ConnectPeer& connect) KVPUSH_ON(role_) { connect_peer(connect, now); },
                 [&](const DisconnectPeer& disconnect)
                     KVPUSH_ON(role_) { transports_[disconnect.peer.transport]->disconnect(disconnect.peer.id); },
                 [&](const TellEngine& event) KVPUSH_ON(role_) { tell(event.event); },
                 [&](const Note& note) { log(LogLevel::kInfo, note.text); },
             },
             action);
}

void AgentCore::connect_peer(const ConnectPeer& action, Instant now) {
  Transport& transport = *transports_[action.transport];
  const Result<PeerId> connected = transport.connect(action.address);
  Result<Peer> peer;
  if (connected) {
    log(LogLevel::kInfo, fmt::format("a peer is connected by {} over {}", transport.name(), transport.wire()));
    peer = Peer{action.transport, *connected};
  } else {
    peer = std::unexpected(connected.error());
  }
  if (consumer_.owns(action.connection)) {
    consumer_.on_peer(action.connection, peer, now, actions_, transport.address());
  } else {
    producer_.on_peer(action.connection, peer, now, actions_);
  }
}

void AgentCore::tell(EngineEvent event) {
  const std::uint64_t record = report_.ended(event);
  surroundings_.exchange.tell({std::move(event), record});
}

}  // namespace kvpush
