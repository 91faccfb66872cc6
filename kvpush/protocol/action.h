// What the protocol wants done. The agent carries actions out in order; the simulator and tests read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/protocol/command.h"
#include "kvpush/wire/message.h"

namespace kvpush {

// Why a connection is gone, where nothing else is known.
inline constexpr Error kConnectionEnded{ErrorCode::kPeerLost, "the control connection ended"};

// A peer of one of the agent's transports, which are numbered in order of preference.
struct Peer {
  std::uint32_t transport = 0;
  PeerId id;
  auto operator<=>(const Peer&) const = default;
};

struct SendMessage {
  ConnectionId connection;
  Message message;
};
struct CloseConnection {
  ConnectionId connection;
};
// Answered by Consumer::on_resolved() with the ranks of the engine whose directory this is.
struct ResolveEngine {
  Endpoint directory;
};
// Answered by Consumer::on_dialled() at once, with the id of a connection that is being made.
struct Dial {
  Endpoint directory;  // of the engine
  std::uint32_t rank = 0;
  Endpoint control;
};
// Connect a transport's peer for this session; answered by on_peer() of the machine that asked, at once.
struct ConnectPeer {
  ConnectionId connection;
  std::uint32_t transport = 0;
  std::vector<std::byte> address;
};
// Transport::disconnect(); completions of its writes may follow.
struct DisconnectPeer {
  Peer peer;
};
struct TellEngine {
  EngineEvent event;
};
// One line for the log, complete; the protocol says each error once.
struct Note {
  std::string text;
};

using Action =
    std::variant<SendMessage, CloseConnection, ResolveEngine, Dial, ConnectPeer, DisconnectPeer, TellEngine, Note>;
using Actions = std::vector<Action>;

// What a machine needs to know of each of the agent's transports.
struct TransportView {
  std::string name;
  std::vector<std::byte> address;
  bool disconnect_fences = false;
  bool writes_die_with_writer = false;
};

// What Hello and Welcome say of them.
std::vector<TransportOffer> offers(const std::vector<TransportView>& transports);

}  // namespace kvpush
