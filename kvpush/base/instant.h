#pragma once

#include <chrono>

namespace kvpush {

using Duration = std::chrono::nanoseconds;

// Names CLOCK_BOOTTIME in types. It has no now(): time is an argument everywhere but in the agent's loop and apps,
// which call read_clock() of base/clock.h.
struct BootClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<BootClock>;
  static constexpr bool is_steady = true;
};

// A point in this machine's time since boot. Never compared with an Instant of another machine.
using Instant = BootClock::time_point;

}  // namespace kvpush
