// The words of transcripts, read.
#pragma once

#include <string>

#include "kvpush/sim/text.h"
#include "kvpush/wire/message.h"

namespace kvpush::sim {

// The inverse of text() for messages that a transcript lets somebody say out of turn: "Revoke 7", "Delivered 1, 32
// bytes". Those that carry layouts or assignments have empty ones. Fails the test when it cannot be read.
Message parse_message(const std::string& words);

}  // namespace kvpush::sim
