#include "kvpush/sim/shrink.h"

#include <cstddef>
#include <cstdint>

namespace kvpush::sim {

namespace {

// Lowers one number of the scenario as far as it still fails, in halving steps. True when it could.
bool lower(Scenario& scenario, std::uint32_t Scenario::* number, std::uint32_t least,
           const std::function<bool(const Scenario&)>& fails) {
  bool is_lower = false;
  for (std::uint32_t step = scenario.*number - least; step > 0;) {
    if (scenario.*number < least + step) {
      step /= 2;
      continue;
    }
    Scenario smaller = scenario;
    smaller.*number -= step;
    if (fails(smaller)) {
      scenario = smaller;
      is_lower = true;
    } else {
      step /= 2;
    }
  }
  return is_lower;
}

bool leave_out_troubles(Scenario& scenario, const std::function<bool(const Scenario&)>& fails) {
  bool is_less = false;
  for (std::size_t index = 0; index < kTroubleCount; ++index) {
    if (!scenario.allowed[index]) continue;
    Scenario without = scenario;
    without.allowed[index] = false;
    if (!fails(without)) continue;
    scenario = without;
    is_less = true;
  }
  return is_less;
}

}  // namespace

Scenario shrink(const Scenario& failing, const std::function<bool(const Scenario&)>& fails) {
  Scenario scenario = failing;
  for (bool is_less = true; is_less;) {
    is_less = lower(scenario, &Scenario::transfers, 0, fails);
    is_less = lower(scenario, &Scenario::incidents, 0, fails) || is_less;
    is_less = lower(scenario, &Scenario::producers, 1, fails) || is_less;
    is_less = lower(scenario, &Scenario::consumers, 1, fails) || is_less;
    is_less = leave_out_troubles(scenario, fails) || is_less;
  }
  return scenario;
}

}  // namespace kvpush::sim
