// The bytes of a transport address: little-endian fields behind eight letters that name the backend and its version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvpush {

inline constexpr std::size_t kAddressMagicBytes = 8;

// Builds an address field by field.
//
// Job: appends fields in the order in which AddressReader takes them.
// Thread: value type.
class AddressWriter {
 public:
  // `magic` has kAddressMagicBytes letters.
  explicit AddressWriter(std::string_view magic);

  void put_u32(std::uint32_t value);
  void put_u64(std::uint64_t value);
  void put_bytes(std::span<const std::byte> bytes);
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Takes apart an address that may be anything.
//
// Job: reads fields; past the end every read gives zero and ok() is false from then on.
// Thread: value type.
class AddressReader {
 public:
  // Not ok() from the start if the bytes are longer than any address or do not begin with `magic`.
  AddressReader(std::span<const std::byte> bytes, std::string_view magic);

  std::uint32_t u32();
  std::uint64_t u64();
  // A view into the address; empty if it does not hold that much.
  std::span<const std::byte> bytes(std::size_t size);
  bool ok() const { return ok_; }
  // ok() and nothing is left over.
  bool ended() const { return ok_ && rest_.empty(); }

 private:
  std::uint64_t little_endian(std::size_t size);

  std::span<const std::byte> rest_;
  bool ok_;
};

}  // namespace kvpush
