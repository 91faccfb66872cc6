#include "kvpush/base/clock.h"

#include <ctime>

namespace kvpush {

Instant read_clock() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return Instant{std::chrono::seconds{now.tv_sec} + Duration{now.tv_nsec}};
}

}  // namespace kvpush
