#include "kvpush/base/random.h"

#include <random>

#include "kvpush/base/check.h"

namespace kvpush {

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::uint64_t Random::below(std::uint64_t bound) {
  KVPUSH_CHECK(bound > 0, "a random choice needs at least one value");
  return next() % bound;
}

std::uint64_t read_entropy() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace kvpush
