#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace kvpush::testing {

// The bytes of a fuzzer's input, read as choices. When they are used up, every choice is the first one.
//
// Job: makes numbers and texts of few bytes, those that break code more often than others.
// Thread: value type.
class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  std::uint8_t byte();
  // One of 0 to count - 1, which is at most 256.
  std::uint8_t below(std::size_t count) { return static_cast<std::uint8_t>(byte() % count); }
  bool flip() { return below(2) == 1; }
  // One chance in `count`, at most 256.
  bool rarely(std::size_t count) { return below(count) == count - 1; }
  // Mostly below 128; sometimes at an edge of a type; sometimes any at all.
  template <class T>
  T number();
  std::string text(std::size_t bytes_max);
  std::span<const std::uint8_t> rest() { return std::exchange(bytes_, {}); }

 private:
  std::span<const std::uint8_t> bytes_;
};

inline std::uint8_t Choices::byte() {
  if (bytes_.empty()) return 0;
  const std::uint8_t first = bytes_.front();
  bytes_ = bytes_.subspan(1);
  return first;
}

template <class T>
T Choices::number() {
  constexpr std::array<std::uint64_t, 8> kEdges = {
      0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, std::uint64_t{1} << 32, ~std::uint64_t{0} >> 1, ~std::uint64_t{0}};
  const std::uint8_t kind = byte();
  if (kind < 0x80) return static_cast<T>(kind);
  if (kind < 0xc0) return static_cast<T>(kEdges[kind % kEdges.size()] + (kind >> 3 & 3) - 1);
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 8) value |= std::uint64_t{byte()} << shift;
  return static_cast<T>(value);
}

inline std::string Choices::text(std::size_t bytes_max) {
  const std::size_t size = std::min({std::size_t{byte()}, bytes_max, bytes_.size()});
  const std::string text(reinterpret_cast<const char*>(bytes_.data()), size);
  bytes_ = bytes_.subspan(size);
  return text;
}

}  // namespace kvpush::testing
