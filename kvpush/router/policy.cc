#include "kvpush/router/policy.h"

#include "kvpush/base/check.h"

namespace kvpush {

RoundRobin::RoundRobin(std::size_t prefill_count, std::size_t decode_count)
    : prefill_count_(prefill_count), decode_count_(decode_count) {
  KVPUSH_CHECK(prefill_count > 0 && decode_count > 0, "a router has servers of both kinds");
}

ServerPair RoundRobin::next() {
  const ServerPair chosen = next_;
  next_.prefill = (next_.prefill + 1) % prefill_count_;
  next_.decode = (next_.decode + 1) % decode_count_;
  return chosen;
}

}  // namespace kvpush
