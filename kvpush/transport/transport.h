#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/base/descriptor.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"

namespace kvpush {

// What a backend promises for all its peers from its opening on, each shown by a contract test.
struct TransportFacts {
  // After disconnect() returns at the target, no write of that peer can land any more.
  bool disconnect_fences = false;
  // No write can land after the writing process is gone.
  bool writes_die_with_writer = false;
  // Writes of a peer land only while the target calls poll(): a target with a live registration must poll.
  bool target_must_progress = false;
};

// The end of a posted write. It came once for each accepted write(), in any order between batches.
struct WriteCompletion {
  WriteToken token;
  std::optional<Error> error;  // none: every byte is visible to the target's threads
};

// A peer that can no longer be written to or write to us: its process is gone or its endpoint failed.
struct PeerLost {
  PeerId peer;
  Error error;
  bool writer_gone = false;  // the process itself was seen to be gone
};

// What poll() found, in reused storage.
struct TransportEvents {
  std::vector<WriteCompletion> completions;
  std::vector<PeerLost> lost;
  void clear();
};

// Moves bytes from this process into the memory of connected peers.
//
// Job: registers memory, connects peers, posts batches of writes, reports each batch's end once.
// Not here: what may be written and when (protocol), and what a batch holds (plan).
// Owner: Agent.
// Thread: agent role; created, used and destroyed there.
// Invariant: every accepted write() ends with exactly one completion, never from inside a call other than poll();
//            completed without error means visible at the target.
class Transport {
 public:
  virtual ~Transport() = default;

  // As in configuration, metrics and session start: "cma", "nixl", "ucx", "loopback".
  virtual std::string_view name() const = 0;
  // The wires in use by now, for people: "process_vm_writev", "tcp", "rc_mlx5,tcp", "not connected".
  virtual std::string wire() const = 0;
  virtual TransportFacts facts() const = 0;

  // Makes memory readable for our writes and writable for our peers. It must stay mapped until deregister_region() or
  // the transport's destruction. Empty memory, or memory that overlaps a registered region: kBadConfig.
  virtual Result<RegionId> register_region(std::span<std::byte> memory) = 0;
  // kBusy while a posted write reads the region (then nothing changes).
  virtual Result<void> deregister_region(RegionId region) = 0;

  // What a peer passes to its connect(): how to reach this process and the keys of the regions registered by now.
  // At most kTransportAddressBytesMax bytes. Bytes of the backend, opaque to everyone else.
  virtual std::vector<std::byte> address() const = 0;
  // Connects to the peer that made `address`; both sides connect to each other before either writes, and the second is
  // given an address that the first has made since it connected: a backend may say there which of its ends waits.
  // kBadMessage: not an address of this backend. kUnavailable: this peer cannot be reached this way (another host, no
  // permission); the session start then tries the next transport. kFull: no room for one more peer; the session starts
  // again later. Each call makes a new peer.
  virtual Result<PeerId> connect(std::span<const std::byte> address) = 0;
  // Ends the peer: writes to it that have not completed complete with kPeerLost in a later poll(); afterwards none of
  // them is still reading local memory. At the target it fences if facts() say so. Unknown peers are ignored.
  virtual void disconnect(PeerId peer) = 0;

  // Posts one batch; ends with one completion that carries `token`, also when `descriptors` is empty. The local
  // memory must not change from this call to the completion. The descriptors themselves are copied; there are at most
  // kBatchDescriptorsMax, and one of no bytes may name any address.
  // kOutOfRegion: a descriptor leaves the registered local regions or the peer's; nothing is posted.
  // kFull: kBatchesInFlightMax batches to this peer have not been handed out by poll(); try again after one was.
  // kPeerLost: no such peer any more.
  virtual Result<void> write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) = 0;

  // Makes bounded progress, appends what ended to `events`. Returns the amount of work done; 0 means nothing to do now.
  virtual std::size_t poll(TransportEvents& events) = 0;

  // Readable when poll() may have something to do; -1 for a backend that must be polled. Call arm() after poll()
  // returned 0 and wait only if it says true; false means that something arrived meanwhile: poll again.
  virtual int event_fd() const = 0;
  virtual bool arm() = 0;
};

}  // namespace kvpush
