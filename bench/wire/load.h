// What the programs of `make bench-wire` have in common: what is moved, and how they are asked to move it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/common/pair.h"
#include "kvpush/base/descriptor.h"

namespace kvpush {

// Bytes of both memories: more than the largest caches, so that neither side's bytes stay in one.
inline constexpr std::uint64_t kMemoryBytes = 256u << 20;

// Transfers of `total_bytes` in descriptors of `length_bytes`, both of which divide kMemoryBytes.
struct Load {
  std::uint64_t length_bytes = 0;
  std::uint64_t total_bytes = 0;
};

// Descriptors of one load, in an order of their own on each side, as paged blocks have.
//
// Job: gives transfer after transfer other places, until all of the memory was used.
// Thread: value type.
class Shape {
 public:
  Shape(std::uint64_t local, std::uint64_t remote) : local_(local), remote_(remote) {}
  // Valid until the next call.
  std::span<const Descriptor> next(const Load& load);

 private:
  std::uint64_t local_;
  std::uint64_t remote_;
  std::uint64_t length_bytes_ = 0;
  std::size_t next_ = 0;
  std::vector<Descriptor> descriptors_;  // all of the memory
};

struct Way {
  std::string name;
  // Moves these bytes and says where the time went.
  std::function<Spent(std::span<const Descriptor>)> move;
  Shape shape;
};

// Says that it is ready, then answers each line "WAY LENGTH TOTAL" of standard input by "SECONDS SECONDS_POSTING",
// until the input ends.
void serve(std::span<Way> ways);

}  // namespace kvpush
