#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/transport/region_table.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

// Bytes copied between two looks at the peer: about 0.1 ms at memory speed, long against the cost of the look.
inline constexpr std::uint64_t kSliceBytesMax = 1u << 20;
// What the kernel takes in one process_vm_writev (IOV_MAX).
inline constexpr std::size_t kSlicePiecesMax = 1024;
// Bytes copied in one poll(): about half a millisecond, so that timers and messages of the agent are not late.
inline constexpr std::uint64_t kTurnBytesMax = 4u << 20;

// What to copy next: parts of one batch of one peer.
struct Slice {
  PeerId peer;
  std::span<const Descriptor> pieces;  // none is empty; valid until the next call of the queue
};

// The posted batches of a backend whose writes are copies made by the posting thread.
//
// Job: keeps batches, cuts them into slices in turn between peers, remembers how each ended.
// Not here: the copying, and whether a peer or region exists.
// Owner: a transport, by value.
// Thread: agent role.
// Invariant: each accepted batch is handed out once; the batches of one peer are copied in order of posting.
class CopyQueue {
 public:
  // kFull: kBatchesInFlightMax batches of the peer have not been handed out. At most kBatchDescriptorsMax descriptors.
  Result<void> post(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token);
  // As post(), for a batch that has failed already.
  Result<void> post_failed(PeerId peer, WriteToken token, Error error);

  // Nothing if no batch waits to be copied. The caller copies and then calls advance() or fail_oldest().
  std::optional<Slice> next();
  // `moved_bytes` of the peer's last slice have been copied, in order; the batch ends with its last byte.
  void advance(PeerId peer, std::uint64_t moved_bytes);
  void fail_oldest(PeerId peer, Error error);
  void fail_all(PeerId peer, Error error);

  // Moves the ends so far to `completions`; returns how many.
  std::size_t hand_out(std::vector<WriteCompletion>& completions);
  bool has_copies() const { return !turns_.empty(); }
  bool has_ends() const { return !ended_.empty(); }
  // Takes a region out of the table. kBusy, and nothing removed, while a batch reads it; kBadConfig: no such region.
  Result<void> remove(RegionId region, RegionTable& from) const;

 private:
  struct Batch {
    WriteToken token;
    std::vector<Descriptor> descriptors;
    std::size_t next = 0;           // the first descriptor with bytes left
    std::uint64_t moved_bytes = 0;  // of that descriptor
  };
  struct Line {
    std::deque<Batch> batches;  // not ended
    std::size_t in_flight = 0;  // not handed out
  };
  struct Ended {
    PeerId peer;
    WriteCompletion completion;
  };

  Result<Line*> line_with_room(PeerId peer);
  void cut(const Batch& batch);
  void end_oldest(PeerId peer, std::optional<Error> error);

  std::map<PeerId, Line> lines_;
  std::deque<PeerId> turns_;  // the peers with batches, once each, the next one first
  std::vector<Ended> ended_;
  std::vector<Descriptor> pieces_;  // of the last slice
};

}  // namespace kvpush
