#pragma once

#include <cstdint>

#include "kvpush/base/error.h"

namespace kvpush {

namespace flat {
struct Frame;
}

// Whether a number stands for an ErrorCode of this version.
bool is_error_code(std::uint8_t code);

// Whether a verified frame keeps every limit of base/limits.h and wire/limits.h, and has only known kinds, codes and
// components: kBadMessage with the reason if not. encode() asks it of what it built and decode() before it copies
// anything, so the two agree on what a message is. Of a greeting of another protocol version only the sender is looked
// at, and of a Refused any code is good: they are read, so that two versions can tell each other apart.
Result<void> check_limits(const flat::Frame& frame);

}  // namespace kvpush
