#pragma once

#include <cstdint>
#include <string>

#include "kvpush/metrics/metrics.h"
#include "kvpush/standin/scheduler.h"

namespace kvpush {

// What a stand-in engine counts, as kvpush_engine_*; what its agent counts is at the directory.
//
// Job: one function for each thing that happens; follows what the scheduler counts itself.
// Owner: StandinEngine.
// Thread: engine role.
class EngineMetrics {
 public:
  enum class Outcome : std::uint8_t { kOk, kFailed, kRefused, kClientGone };

  EngineMetrics();

  void request_ended(Outcome outcome);
  void read_wrong_kv() { wrong_readings_.add(); }
  Counter& bad_requests();
  std::string render(const Scheduler& scheduler);

 private:
  Registry registry_;
  Counter& wrong_readings_;
};

}  // namespace kvpush
