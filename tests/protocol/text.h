// Messages and events as the words of transcripts.
#pragma once

#include <string>

#include "kvpush/protocol/command.h"
#include "kvpush/wire/message.h"

namespace kvpush::testing {

std::string text(const Message& message);
std::string text(const EngineEvent& event);
// The inverse for messages that a transcript lets somebody say out of turn: "Revoke 7", "Delivered 1, 32 bytes". Those
// that carry layouts or assignments have empty ones. Fails the test when it cannot be read.
Message parse_message(const std::string& words);

}  // namespace kvpush::testing
