#pragma once

#include <functional>

#include "kvpush/sim/scenario.h"

namespace kvpush::sim {

// A scenario that fails and of which nothing can be left out: not an engine, not one kind of trouble, not the last
// transfer or incident. `failing` fails. Asks `fails` a few hundred times at most.
Scenario shrink(const Scenario& failing, const std::function<bool(const Scenario&)>& fails);

}  // namespace kvpush::sim
