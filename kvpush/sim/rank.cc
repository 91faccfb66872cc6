#include "kvpush/sim/rank.h"

namespace kvpush::sim {

namespace {

constexpr std::int64_t kPerMillion = 1'000'000;

}  // namespace

Instant Clock::at(Instant now) const {
  const std::int64_t passed = now.time_since_epoch().count();
  return now + ahead_ + Duration{passed / kPerMillion * drift_ppm_ + passed % kPerMillion * drift_ppm_ / kPerMillion};
}

Instant Clock::when(Instant then) const {
  const std::int64_t passed = (then - ahead_).time_since_epoch().count();
  Instant now{Duration{passed - passed / kPerMillion * drift_ppm_}};  // right but for the drift of the drift
  for (Duration gap = then - at(now); gap > Duration{}; gap = then - at(now)) now += gap;
  return now;
}

}  // namespace kvpush::sim
