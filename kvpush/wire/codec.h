// Messages to bytes and back.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/wire/message.h"

namespace kvpush {

// Appends one frame: a 4-byte little-endian length and the message.
// kBadMessage when the message breaks a limit (kFrameBytesMax and the others of base/limits.h); nothing is appended.
Result<void> encode(const Message& message, std::vector<std::byte>& out);

// The message in one frame's body (without the length). Verifies before it reads; never trusts a size or an enum.
// kBadMessage for anything that encode() would not have made.
Result<Message> decode(std::span<const std::byte> body);

}  // namespace kvpush
