#pragma once

#include <cstddef>

namespace kvpush {

// Places in the lists of prefill and decode servers.
struct ServerPair {
  std::size_t prefill = 0;
  std::size_t decode = 0;
  bool operator==(const ServerPair&) const = default;
};

// Which servers serve the next request.
//
// Job: takes the prefill servers in turn, and the decode servers in turn.
// Not here: whether they are alive; a request to a dead one fails and is not repeated.
// Owner: Router.
// Thread: value type.
class RoundRobin {
 public:
  // Both counts are above 0.
  RoundRobin(std::size_t prefill_count, std::size_t decode_count);

  ServerPair next();

 private:
  std::size_t prefill_count_;
  std::size_t decode_count_;
  ServerPair next_;
};

}  // namespace kvpush
