// What fault tests ask of an engine: POST /debug/<verb> with a JSON object (docs/standin.md). Pure.
#pragma once

#include <cstdint>
#include <expected>
#include <string_view>
#include <variant>

#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/standin/completion.h"

namespace kvpush {

// The process ends at once, as if killed.
struct DebugDie {};
// The process stops at once (SIGSTOP), until somebody continues it.
struct DebugStop {};
// So many completions are refused from now on.
struct DebugRefuse {
  std::uint64_t count = 0;
};
// No step ends for so long.
struct DebugDelay {
  Duration time{};
};
// A byte of KV becomes another.
struct DebugCorrupt {
  BlockId block;
  std::uint64_t offset = 0;  // within the block's bytes over all layers
};
using DebugCall = std::variant<DebugDie, DebugStop, DebugRefuse, DebugDelay, DebugCorrupt>;

inline constexpr std::string_view kDebugVerbs[] = {"die", "stop", "refuse", "delay", "corrupt"};

// `verb` is one of kDebugVerbs.
std::expected<DebugCall, BadCall> read_debug_call(std::string_view verb, std::string_view body);

}  // namespace kvpush
