#pragma once

#include <cstdint>

namespace kvpush {

// A seeded source of random numbers (SplitMix64): the same seed gives the same sequence on every machine.
//
// Job: jitter, ids and the choices of tests. Not for secrets.
// Thread: value type.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();
  // Uniform in [0, bound); bound > 0.
  std::uint64_t below(std::uint64_t bound);

 private:
  std::uint64_t state_;
};

// 64 bits from the operating system, for incarnations and seeds. Only agents and apps call it.
std::uint64_t read_entropy();

}  // namespace kvpush
