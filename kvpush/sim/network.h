// What is under way between ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "kvpush/base/descriptor.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/protocol/action.h"
#include "kvpush/sim/blocks.h"
#include "kvpush/sim/rank.h"
#include "kvpush/wire/message.h"

namespace kvpush::sim {

enum class Side : std::uint8_t { kConsumer, kProducer };

// A control connection with all that is under way on it, and the data path that its session made.
struct Connection {
  struct Opened {};
  struct Closed {};
  struct Said {
    Message message;
    Instant heard{};  // of the speaker's end
  };
  using Arrival = std::variant<Opened, Said, Closed>;
  struct End {
    Rank* rank = nullptr;
    std::deque<Arrival> arriving;
    // The producer's latest moment, by its clock, of which this end has proof that the consumer lived after it.
    Instant heard{};
    Instant last_arrival{};  // that it has heard of
    Instant due{};           // of the last that is under way, if a Schedule chooses
    bool is_closed = false;
    std::optional<Peer> peer;
  };

  ConnectionId id;
  End consumer;
  End producer;
  std::uint32_t transport = 0;  // of the producer's peer
  bool is_fenced = false;       // nothing written through it lands any more
  std::uint32_t write_count = 0;
  Instant troubled{};                 // until then it is late with something
  std::set<RegistrationNumber> open;  // made here, and the consumer has not heard of their end
  std::set<RegistrationNumber> owed;  // of these, the consumer waits for Revoked or Quiet
  Instant open_since{};
  Instant renewed{};  // the producer's last stamp that has come back to it
  ProducerBook::Talk talk;

  End& end(Side side) { return side == Side::kConsumer ? consumer : producer; }
  End& other(Side side) { return side == Side::kConsumer ? producer : consumer; }
};

// A batch on its way.
struct Write {
  std::uint64_t number = 0;
  Connection* connection = nullptr;
  WriteToken token;
  struct Piece {
    Descriptor copy;
    Holder source = kNobody;  // who held the blocks when it was posted
    Holder target = kNobody;
    std::vector<std::byte> bytes{};  // once they have left the producer's memory, until they land
  };
  std::vector<Piece> pieces{};
  std::size_t landed = 0;  // of the pieces, in order
  bool is_posted = true;   // or only checked, since its process was stopped before it was posted
  bool is_cut = false;     // the producer disconnected the peer: it can only fail
  bool is_astray = false;  // it has failed at the producer, and its bytes are still in the network

  std::size_t pieces_left() const { return pieces.size() - landed; }
};

}  // namespace kvpush::sim
