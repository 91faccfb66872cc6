#pragma once

#include "kvpush/base/instant.h"

namespace kvpush {

// The times of the protocol, each with the reason for its default.
struct ProtocolOptions {
  // A finished prefill that no consumer asks for gives its blocks back after this long: longer than a router takes to
  // call decode after prefill, short enough that a forgotten leg does not starve the pool.
  Duration hold_timeout = std::chrono::seconds{30};
  // A finished prefill gives its blocks back after this long even if somebody expects it, or asks for it again and
  // again in vain: as long as the queue of a decode engine may hold a request that somebody still waits for.
  Duration hold_limit = std::chrono::seconds{300};
  // A registration waits this long for its prefill to end, and a queued request for it to begin: queueing plus the
  // longest prefill.
  Duration match_timeout = std::chrono::seconds{300};
  // A consumer gives up on a request after this long whatever happens; more than match_timeout, so that the producer's
  // reason arrives first.
  Duration receive_timeout = std::chrono::seconds{330};
  // Posted writes of a stopped registration have this long to end before their endpoint is closed: several batches at
  // the speed of a slow link.
  Duration drain_limit = std::chrono::seconds{1};
  // From the first dial to a ready session; what TCP and a directory read take on a bad day.
  Duration session_limit = std::chrono::seconds{10};
  // How long a producer may write after it last knew that its consumer lives, and how long a peer may be silent while a
  // registration is live or a prefill is waited for before its session is lost: longer than a busy or just resumed
  // machine keeps a thread waiting, short enough that requests to a silent peer end while somebody still waits for
  // them. Three renewals fit in it.
  Duration lease = std::chrono::seconds{5};
  // Posting stops this long before the lease ends, for what was posted last: a peer's full window (kBatchesInFlightMax
  // batches of kBatchBytesMax) takes half a second at 1 Gbit/s. Two clocks drift apart by less than a millisecond in a
  // lease.
  Duration lease_margin = std::chrono::milliseconds{500};
  // First and longest wait between two attempts to reach a peer; the wait doubles and is jittered by up to half.
  Duration backoff_first = std::chrono::milliseconds{50};
  Duration backoff_longest = std::chrono::seconds{2};
  // Outcomes of a consumer whose session is lost are kept this long, for when it comes back and asks.
  Duration outcome_timeout = std::chrono::seconds{60};
};

}  // namespace kvpush
