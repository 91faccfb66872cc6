#pragma once

#include <string>

#include "kvpush/base/instant.h"
#include "kvpush/metrics/metrics.h"
#include "kvpush/router/exchange.h"
#include "kvpush/router/legs.h"

namespace kvpush {

// What the router counts, as kvpush_router_*.
//
// Job: one function for each thing that happens.
// Owner: Router.
// Thread: router role.
class RouterMetrics {
 public:
  RouterMetrics();

  void request_started() { in_flight_.add(1); }
  void request_ended(Api api, RequestOutcome outcome, Duration took);
  // Requests that the router turned away before they were in flight.
  void request_refused(Api api, RequestOutcome outcome) { count_request(api, outcome); }
  void first_byte(Api api, Duration after);
  void leg_ended(Role role, LegOutcome outcome);
  Counter& bad_requests();

  std::string render() const { return registry_.render(); }

 private:
  void count_request(Api api, RequestOutcome outcome);

  Registry registry_;
  Gauge& in_flight_;
};

}  // namespace kvpush
