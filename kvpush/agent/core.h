#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvpush/agent/agent.h"
#include "kvpush/agent/exchange.h"
#include "kvpush/agent/report.h"
#include "kvpush/base/thread_role.h"
#include "kvpush/control/control.h"
#include "kvpush/protocol/action.h"
#include "kvpush/protocol/consumer.h"
#include "kvpush/protocol/producer.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

// The transports of one rank, in order of preference, with the rank's memory registered in each.
using Transports = std::vector<std::unique_ptr<Transport>>;

// kUnavailable when none works; those that do not are logged. kOutOfRegion and others: memory that cannot be
// registered.
Result<Transports> open_transports(std::span<const TransportFactory> factories, std::span<const MemoryRange> regions);

// Both protocol machines of a rank with what they act on.
//
// Job: takes the engine's commands, carries out actions, posts batches and reports their ends.
// Not here: the loop, sockets and the clock: AgentLoop calls in with the time, and lends the clock for posting.
// Owner: AgentLoop.
// Thread: agent role.
class AgentCore {
 public:
  struct Surroundings {
    Exchange& exchange;
    Control& control;
    std::function<void(const Endpoint& directory)> resolve;  // answered by on_resolved(), later
    // Before each batch is posted and after batches have ended: a turn may take long.
    std::function<Instant()> read_clock;
  };
  AgentCore(const RankName& self, const RankLayout& layout, Transports transports, ProtocolOptions options,
            Random random, Surroundings surroundings);

  void on_accepted(ConnectionId connection, Instant now);
  void on_connected(ConnectionId connection, Instant now);
  void on_message(ConnectionId connection, const Message& message, Instant now);
  void on_closed(ConnectionId connection, const Error& error, Instant now);
  void on_resolved(const Endpoint& directory, const Result<ProducerEngine>& engine, Instant now);

  // One bounded turn: commands, due deadlines, batches, completions. Returns how much it did.
  std::size_t turn(Instant now);
  // Whether sleeping on event_fds() until deadline() misses nothing. Only after a turn() that did nothing.
  bool arm();
  std::vector<int> event_fds() const;
  std::optional<Instant> deadline() const;

  void drain(Instant now);
  // Nothing is left to do for anybody. A consumer that has not read what became of its KV would take the end of this
  // process for a failure.
  bool idle() const;
  // After drain(): cuts off every peer, closes the transports and ends what is left with kStopped. Returns how many
  // requests that were. The last call.
  std::size_t fail_rest(Instant now);

  std::string transfers();
  std::string metrics();

 private:
  std::size_t take_commands(Instant now) KVPUSH_ON(role_);
  void carry_out(const Receive& command, Instant now) KVPUSH_ON(role_);
  void carry_out(const Send& command, Instant now) KVPUSH_ON(role_);
  std::size_t post() KVPUSH_ON(role_);
  std::size_t poll() KVPUSH_ON(role_);
  void take_seen() KVPUSH_ON(role_);
  // Carries out what is in actions_, and what follows from it.
  void perform(Instant now) KVPUSH_ON(role_);
  void perform(const Action& action, Instant now) KVPUSH_ON(role_);
  void connect_peer(const ConnectPeer& action, Instant now) KVPUSH_ON(role_);
  void tell(EngineEvent event) KVPUSH_ON(role_);

  mutable ThreadRole role_;
  const Surroundings surroundings_;
  Transports transports_ KVPUSH_OWNED_BY(role_);
  Producer producer_ KVPUSH_OWNED_BY(role_);
  Consumer consumer_ KVPUSH_OWNED_BY(role_);
  Report report_ KVPUSH_OWNED_BY(role_);
  Actions actions_ KVPUSH_OWNED_BY(role_);
  std::vector<Command> commands_ KVPUSH_OWNED_BY(role_);  // taken; those from next_command_ on wait for a turn
  std::size_t next_command_ KVPUSH_OWNED_BY(role_) = 0;
  TransportEvents events_ KVPUSH_OWNED_BY(role_);
  std::vector<SeenByEngine> seen_ KVPUSH_OWNED_BY(role_);
};

}  // namespace kvpush
