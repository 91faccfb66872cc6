#pragma once

#include <cstdint>
#include <string_view>

namespace kvpush {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

// One line on stderr: time, level, text. Any thread. The text is complete: callers format it, so that this header
// stays light. It may quote peers and clients: control characters are written as \x0a.
void log(LogLevel level, std::string_view text);

// Lines below this level are dropped; kInfo at start. KVPUSH_LOG_LEVEL (debug, info, warning, error) overrides it.
void set_log_level(LogLevel level);

}  // namespace kvpush
