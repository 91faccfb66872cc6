#pragma once

#include "kvpush/base/error.h"

namespace kvpush {

namespace flat {
struct Frame;
}

// Whether a verified frame keeps every limit of base/limits.h and wire/limits.h, and has only known kinds, codes and
// components: kBadMessage with the reason if not. encode() asks it of what it built and decode() before it copies
// anything, so the two agree on what a message is.
Result<void> check_limits(const flat::Frame& frame);

}  // namespace kvpush
