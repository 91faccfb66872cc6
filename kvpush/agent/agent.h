#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/layout/layout.h"
#include "kvpush/protocol/command.h"
#include "kvpush/protocol/options.h"

namespace kvpush {

class Transport;

// Makes one transport; called on the agent thread, where the transport lives and dies.
using TransportFactory = std::function<Result<std::unique_ptr<Transport>>()>;

struct AgentOptions {
  std::string engine_id;
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;
  // Where this rank listens; the host is also what peers are told, so it must be reachable for them. Port 0: the
  // kernel chooses.
  Endpoint control{"127.0.0.1", 0};
  Endpoint http{"127.0.0.1", 0};
  // The file with what all peers know (docs/authentication.md). Empty: sessions are not authenticated, and `control` is
  // a loopback address unless allow_unauthenticated.
  std::string secret_file{};
  bool allow_unauthenticated = false;
  // In order of preference. A factory that fails with kUnavailable is left out, with a log line; if all do, open()
  // fails.
  std::vector<TransportFactory> transports{};
  ProtocolOptions protocol{};
};

// Runs the transfers of one rank, as producer and as consumer at once.
//
// Job: the public door to the transfers of one KV cache: takes commands, gives events, owns the agent thread.
// Not here: what commands mean (protocol), and waiting for the engine: nothing here calls into the engine.
// Owner: the engine's worker.
// Thread: any (synchronised by its mailboxes). open() and stop() from one thread.
// Invariant: every accepted Receive and Send ends with exactly one event, at the latest in stop().
class Agent {
 public:
  // Registers `regions` with each transport and starts to listen. The regions must hold every plane and stay mapped
  // until stop() has returned. kLayoutMismatch: `layout` is not valid. kOutOfRegion: a plane leaves the regions.
  // kBadConfig: an address cannot be bound or needs a secret, or an option is no good. kUnavailable: no transport
  // works.
  static Result<std::unique_ptr<Agent>> open(AgentOptions options, const RankLayout& layout,
                                             const std::vector<MemoryRange>& regions);
  // stop() must have been called.
  virtual ~Agent() = default;

  // This rank's part of the engine's directory document, as JSON text (docs/directory.md).
  virtual const std::string& document() const = 0;

  // Takes all of `commands`, in order, or none: kFull when the agent is that far behind, kStopped after stop(). A
  // command that cannot be carried out ends with an error event, not here.
  virtual Result<void> submit(std::vector<Command>& commands) = 0;

  // Replaces the contents of `into` by the events so far.
  virtual void take_events(std::vector<EngineEvent>& into) = 0;
  // Readable while an event waits.
  virtual int event_fd() const = 0;
  // Waits until an event is there, at most `limit`. True if one is.
  virtual bool wait(Duration limit) = 0;

  // Drains: takes no new work, ends what runs within `limit`, then fails the rest, joins the thread. Idempotent.
  // kTimeout: some requests had to be failed (their events can still be taken). Where no fence exists (cma), a peer may
  // then still write into the blocks of a failed Receive: they are not to be used again in this process.
  virtual Result<void> stop(Duration limit) = 0;
};

}  // namespace kvpush
