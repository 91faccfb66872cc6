// The control plane: framed messages over TCP, on the agent's io_context.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/base/limits.h"
#include "kvpush/wire/message.h"

namespace boost::asio {
class io_context;
}

namespace kvpush {

// Bytes that wait for a peer to read: one message of any size while another leaves, or all that a consumer registers
// when a link comes back: half a million blocks none of which adjoins another, 8 bytes each.
inline constexpr std::size_t kSendQueueBytesMax = 2 * kFrameBytesMax;

// How long a peer may take; tests wait less.
struct ControlLimits {
  // The kernel repeats a lost first packet after one and three seconds; half of session_limit, so that a second try has
  // a chance.
  Duration connect = std::chrono::seconds{5};
  // A proof takes one round trip, and a port is open to everybody: an accepted connection holds its place no longer.
  Duration proof = std::chrono::seconds{5};
};

struct ControlOptions {
  Endpoint listen{"127.0.0.1", 0};  // port 0: the kernel chooses
  // What peers must know too (docs/authentication.md). Empty: nothing is asked, and only loopback listened on.
  std::string secret_file{};
  // Listens beyond loopback without a secret.
  bool allow_unauthenticated = false;
  ControlLimits limits{};
};

// What the control plane tells its owner; each is called on the agent's thread, never from inside a Control call.
struct ControlEvents {
  std::function<void(ConnectionId)> accepted;           // a peer connected to us, and knows the secret if there is one
  std::function<void(ConnectionId)> connected;          // our connect() succeeded
  std::function<void(ConnectionId, Message)> received;  // one verified message, in order
  std::function<void(ConnectionId, Error)> closed;      // once for each connection, whoever ended it; not after close()
  std::function<void(ConnectionId, Error)> refused;     // instead of `closed`: our connect() found no common secret
};

struct ControlCounters {
  std::uint64_t unauthenticated_accepted = 0;  // ended before they proved the secret; our own are `refused`
  std::uint64_t frames_forged = 0;             // not those that a proven peer sent, or not in that order
};

// The control connections of one agent.
//
// Job: listens, connects, authenticates, frames, sends and receives messages; bounds what each connection buffers.
// Not here: what a message means (protocol), when to reconnect (protocol).
// Owner: Agent.
// Thread: agent role.
// Invariant: a connection that has been closed delivers nothing more, also what had been read from its socket before.
//            With a secret, nothing of a peer is told before it has proved that it knows it.
class Control {
 public:
  // Starts to listen. kBadConfig: the address cannot be bound, the secret is no good, or there is none and the address
  // is not a loopback one.
  static Result<std::unique_ptr<Control>> open(boost::asio::io_context& context, const ControlOptions& options,
                                               ControlEvents events);
  virtual ~Control() = default;

  // The port that was bound.
  virtual std::uint16_t port() const = 0;
  virtual const ControlCounters& counters() const = 0;
  // Begins to connect; ends with `connected`, `refused` (kUnauthenticated) or `closed` within limits.connect (kTimeout,
  // or kPeerLost when the peer is not there). Numeric addresses and names.
  virtual ConnectionId connect(const Endpoint& peer) = 0;
  // Queues a message, also before `connected`. A connection whose queue would pass kSendQueueBytesMax is closed with
  // kFull (the peer does not read), one whose message encode() refuses with kBadMessage.
  // Unknown connections are ignored: the peer may just have gone.
  virtual void send(ConnectionId connection, const Message& message) = 0;
  // Ends a connection after what was queued has been handed to the kernel, or at once if that would block; `closed`
  // is not called for it.
  virtual void close(ConnectionId connection) = 0;
  // Stops listening and closes everything; nothing is called any more. Idempotent, and done by the destructor.
  virtual void stop() = 0;
};

}  // namespace kvpush
