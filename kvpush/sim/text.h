// Messages and events as the words of transcripts and traces.
#pragma once

#include <string>

#include "kvpush/protocol/command.h"
#include "kvpush/wire/message.h"

namespace kvpush::sim {

std::string text(const Message& message);
std::string text(const EngineEvent& event);

}  // namespace kvpush::sim
