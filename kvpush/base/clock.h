#pragma once

#include "kvpush/base/instant.h"

namespace kvpush {

// CLOCK_BOOTTIME, which goes on while the machine sleeps. Only loops and main() call it.
Instant read_clock();

}  // namespace kvpush
