#include "kvpush/standin/engine_metrics.h"

#include "kvpush/http/server.h"

namespace kvpush {
namespace {

std::string outcome_name(EngineMetrics::Outcome outcome) {
  switch (outcome) {
    case EngineMetrics::Outcome::kOk: return "ok";
    case EngineMetrics::Outcome::kFailed: return "failed";
    case EngineMetrics::Outcome::kRefused: return "refused";
    case EngineMetrics::Outcome::kClientGone: return "client_gone";
  }
  return "";
}

Counter& requests(Registry& registry, EngineMetrics::Outcome outcome) {
  return registry.counter("kvpush_engine_requests_total", "Completions that have ended, by outcome.",
                          {{"outcome", outcome_name(outcome)}});
}

Counter& prompt_tokens(Registry& registry, const char* source) {
  return registry.counter("kvpush_engine_prompt_tokens_total", "Tokens of prompts by where their KV came from.",
                          {{"source", source}});
}

Gauge& requests_now(Registry& registry, const char* state) {
  return registry.gauge("kvpush_engine_requests", "Requests by what they are doing.", {{"state", state}});
}

void follow(Counter& counter, std::uint64_t total) {
  counter.add(total - counter.value());
}

void show(Gauge& gauge, std::size_t level) {
  gauge.set(static_cast<std::int64_t>(level));
}

}  // namespace

EngineMetrics::EngineMetrics()
    : wrong_readings_(registry_.counter("kvpush_engine_wrong_kv_total",
                                        "Requests that read KV which is not that of their prompt.")) {
  for (const Outcome outcome : {Outcome::kOk, Outcome::kFailed, Outcome::kRefused, Outcome::kClientGone}) {
    requests(registry_, outcome);
  }
}

void EngineMetrics::request_ended(Outcome outcome) {
  requests(registry_, outcome).add();
}

std::string EngineMetrics::render(const Scheduler& scheduler) {
  const Scheduler::Counts& counts = scheduler.counts();
  follow(prompt_tokens(registry_, "computed"), counts.computed_prompt_tokens);
  follow(prompt_tokens(registry_, "cached"), counts.cached_prompt_tokens);
  follow(prompt_tokens(registry_, "received"), counts.received_prompt_tokens);
  follow(registry_.counter("kvpush_engine_generated_tokens_total", "Tokens of answers."), counts.generated_tokens);
  follow(registry_.counter("kvpush_engine_preemptions_total", "Requests that lost their blocks to older ones."),
         counts.preemptions);
  follow(registry_.counter("kvpush_engine_steps_total", "Steps that computed something."), counts.steps);
  const Scheduler::Levels levels = scheduler.levels();
  show(requests_now(registry_, "waiting"), levels.waiting);
  show(requests_now(registry_, "running"), levels.running);
  show(requests_now(registry_, "receiving"), levels.receiving);
  show(requests_now(registry_, "sending"), levels.sending);
  show(registry_.gauge("kvpush_engine_free_blocks", "Blocks that no request holds."), levels.free_blocks);
  show(registry_.gauge("kvpush_engine_known_prefixes", "Blocks whose KV the next request may share."),
       levels.known_prefixes);
  return registry_.render();
}

Counter& EngineMetrics::bad_requests() {
  return http_bad_requests(registry_);
}

}  // namespace kvpush
