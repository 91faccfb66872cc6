#pragma once

#include <cstdlib>
#include <string_view>

namespace kvpush {

// Whether this run is to break the rule of that name: tests/sim/CMakeLists.txt.
inline bool is_planted(std::string_view name) {
  static const char* const chosen = std::getenv("KVPUSH_PLANTED");
  return chosen != nullptr && name == chosen;
}

}  // namespace kvpush
