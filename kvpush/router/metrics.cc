#include "kvpush/router/metrics.h"

#include <string_view>

#include "kvpush/http/server.h"

namespace kvpush {
namespace {

constexpr Api kApis[] = {Api::kCompletions, Api::kChat};

std::string api_name(Api api) {
  return api == Api::kChat ? "chat_completions" : "completions";
}

std::string outcome_name(LegOutcome outcome) {
  switch (outcome) {
    case LegOutcome::kOk: return "ok";
    case LegOutcome::kRefused: return "refused";
    case LegOutcome::kFailed: return "failed";
    case LegOutcome::kCancelled: return "cancelled";
  }
  return "";
}

Histogram& first_byte_seconds(Registry& registry, Api api) {
  return registry.histogram("kvpush_router_first_byte_seconds",
                            "From a request's arrival to the first byte of its answer.", kSecondsBuckets,
                            {{"endpoint", api_name(api)}});
}

Histogram& request_seconds(Registry& registry, Api api) {
  return registry.histogram("kvpush_router_request_seconds", "From a request's arrival to the end of its answer.",
                            kSecondsBuckets, {{"endpoint", api_name(api)}});
}

Counter& requests(Registry& registry, Api api, RequestOutcome outcome) {
  return registry.counter("kvpush_router_requests_total", "Requests of clients that have ended, by outcome.",
                          {{"endpoint", api_name(api)}, {"outcome", std::string(outcome_name(outcome))}});
}

Counter& legs(Registry& registry, Role role, LegOutcome outcome) {
  return registry.counter("kvpush_router_legs_total", "Requests to servers that have ended, by outcome.",
                          {{"role", std::string(role_name(role))}, {"outcome", outcome_name(outcome)}});
}

}  // namespace

RouterMetrics::RouterMetrics()
    : in_flight_(registry_.gauge("kvpush_router_requests_in_flight", "Requests whose clients wait for an answer.")) {
  // From the start, so that a rate over the first event is not lost.
  for (const Api api : kApis) {
    for (const RequestOutcome outcome : kRequestOutcomes) requests(registry_, api, outcome);
    first_byte_seconds(registry_, api);
    request_seconds(registry_, api);
  }
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    for (const LegOutcome outcome :
         {LegOutcome::kOk, LegOutcome::kRefused, LegOutcome::kFailed, LegOutcome::kCancelled}) {
      legs(registry_, role, outcome);
    }
  }
}

void RouterMetrics::request_ended(Api api, RequestOutcome outcome, Duration took) {
  in_flight_.add(-1);
  count_request(api, outcome);
  request_seconds(registry_, api).observe(took);
}

void RouterMetrics::first_byte(Api api, Duration after) {
  first_byte_seconds(registry_, api).observe(after);
}

void RouterMetrics::leg_ended(Role role, LegOutcome outcome) {
  legs(registry_, role, outcome).add();
}

void RouterMetrics::count_request(Api api, RequestOutcome outcome) {
  requests(registry_, api, outcome).add();
}

Counter& RouterMetrics::bad_requests() {
  return http_bad_requests(registry_);
}

}  // namespace kvpush
