#pragma once

#include <cstdint>

namespace kvpush {

// One contiguous copy: `length_bytes` bytes from `local` in the writer's process to `remote` in the peer's address
// space.
struct Descriptor {
  std::uint64_t local = 0;
  std::uint64_t remote = 0;
  std::uint64_t length_bytes = 0;
  bool operator==(const Descriptor&) const = default;
};

}  // namespace kvpush
