#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/base/random.h"
#include "kvpush/plan/plan.h"
#include "kvpush/protocol/action.h"
#include "kvpush/protocol/command.h"
#include "kvpush/protocol/deadlines.h"
#include "kvpush/protocol/options.h"
#include "kvpush/wire/message.h"

namespace kvpush {

// What a directory says of a producer engine, as far as sessions need it.
struct ProducerEngine {
  std::string engine_id;
  Incarnation incarnation;
  std::vector<Endpoint> ranks;  // control addresses, by rank
};

// How often each thing happened since the start; gauges say how many there are now.
struct ConsumerCounters {
  std::uint64_t sessions_started = 0;
  std::uint64_t sessions_refused = 0;
  std::uint64_t sessions_lost = 0;
  std::uint64_t resolves_failed = 0;
  std::uint64_t receives = 0;
  std::uint64_t receives_failed = 0;
  std::uint64_t registrations = 0;
  std::uint64_t revokes = 0;
  std::uint64_t declines = 0;
  std::uint64_t fences = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bad_messages = 0;
  std::uint64_t late_messages = 0;  // for registrations that are not known any more
};
struct ConsumerGauges {
  std::size_t engines = 0;
  std::size_t sessions_ready = 0;
  std::size_t requests = 0;     // that wait for their KV
  std::size_t quarantined = 0;  // ended, but not proven quiescent: their blocks are withheld from the engine
};

// The consumer's half of the protocol for one rank: from the engine's Receive to Ready, whatever peers do.
//
// Job: opens and keeps sessions to every rank of a producer engine, registers destinations, counts what arrives, and
//      ends every request exactly once, after proof that nothing can land any more.
// Not here: sockets, clocks, directories, transports. The agent carries out actions and reports what came of them.
// Owner: Agent, or a test.
// Thread: value type; on the agent role in production.
// Invariant: ReceiveEnded follows one of the proofs of quiescence for each registration of the request.
class Consumer {
 public:
  // `layout` has passed validate(). `random` jitters back-off.
  Consumer(RankName self, RankLayout layout, std::vector<TransportView> transports, ProtocolOptions options,
           Random random);

  // kFull when kRequestsMax wait; kBusy when a request of that name waits already; kBadMessage when the tables do not
  // cover the tokens of a plane, or name a block outside it.
  Result<void> on(const Receive& command, Instant now, Actions& out);
  void on(const Abandon& command, Instant now, Actions& out);
  void on(const Decline& command, Instant now, Actions& out);

  // The answer to ResolveEngine.
  void on_resolved(const Endpoint& directory, const Result<ProducerEngine>& engine, Instant now, Actions& out);
  // The answer to Dial: the connection being made. on_connected() or on_closed() follows.
  void on_dialled(const Endpoint& directory, std::uint32_t rank, ConnectionId connection);
  void on_connected(ConnectionId connection, Instant now, Actions& out);
  void on(ConnectionId connection, const Message& message, Instant now, Actions& out);
  void on_closed(ConnectionId connection, Instant now, Actions& out);
  // The answer to ConnectPeer.
  void on_peer(ConnectionId connection, Result<Peer> peer, Instant now, Actions& out);
  void on_peer_lost(Peer peer, bool writer_gone, Instant now, Actions& out);

  std::optional<Instant> deadline() const { return deadlines_.next(); }
  void tick(Instant now, Actions& out);

  // Draining: sessions hear Goodbye, new Receives are refused with kStopped, live ones are abandoned with kStopped.
  void drain(Instant now, Actions& out);
  // No request waits.
  bool idle() const { return requests_.empty(); }
  // Whether `connection` was dialled by this machine.
  bool owns(ConnectionId connection) const { return connections_.contains(connection); }
  // Whether writes may arrive now: a registration is live.
  bool expects_writes() const;

  const ConsumerCounters& counters() const { return counters_; }
  ConsumerGauges gauges() const;
  struct Waiting {
    RequestId request;
    TransferId transfer_id;
    Endpoint producer;
    std::uint32_t tokens = 0;
    Instant received{};
    bool registered = false;
    bool quarantined = false;
  };
  std::vector<Waiting> waiting() const;
};

}  // namespace kvpush
