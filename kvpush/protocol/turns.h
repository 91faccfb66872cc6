#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "kvpush/base/ids.h"
#include "kvpush/protocol/action.h"

namespace kvpush {

// One rank of one run of a consumer engine.
struct ConsumerKey {
  Incarnation incarnation;
  std::uint32_t rank = 0;
  auto operator<=>(const ConsumerKey&) const = default;
};

// A registration, by the name that outlives sessions.
struct RegistrationKey {
  ConsumerKey consumer;
  RegistrationNumber number;
  auto operator<=>(const RegistrationKey&) const = default;
};

struct Turn {
  Peer peer;
  RegistrationKey registration;
};

// Whose turn it is to post a batch: peers in turn, and the registrations of each peer in turn.
//
// Job: keeps the order, and counts the batches in flight of each peer.
// Not here: what a batch holds and whether it may be posted.
// Owner: Producer.
// Thread: value type.
// Invariant: at most kBatchesInFlightMax batches of a peer in flight, so that none takes the others' turns.
class Turns {
 public:
  void open(Peer peer);
  // The registration has something to post; its turn comes after those that wait. Ignored for closed peers.
  void add(Peer peer, const RegistrationKey& registration);
  // Whose turn it is. It counts as a batch in flight until ended(), and must be added again for another turn.
  std::optional<Turn> take();
  void ended(Peer peer);
  // No more turns; the peer is forgotten when its last batch has ended.
  void close(Peer peer);
  bool knows(Peer peer) const { return peers_.contains(peer); }
  std::size_t in_flight() const;

 private:
  struct Entry {
    std::deque<RegistrationKey> waiting;
    std::size_t in_flight = 0;
    bool closed = false;
    bool in_turn = false;  // stands in turns_
  };

  void line_up(Peer peer, Entry& entry);

  std::map<Peer, Entry> peers_;
  std::deque<Peer> turns_;  // peers that have both something to post and room in flight, or had when they lined up
};

}  // namespace kvpush
