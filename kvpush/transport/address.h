// The bytes of a transport address: eight letters that name the backend and its version, little-endian fields, and a
// checksum, since vendors' libraries trust what they are given. It is against accidents, not against an enemy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvpush {

inline constexpr std::size_t kAddressMagicBytes = 8;

// A transport of a process, named by chance; backends with an end for each peer say by it which peer an end is for.
struct TransportIdentity {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  static TransportIdentity draw();
  bool operator==(const TransportIdentity&) const = default;
};

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
  // Their number before them.
  void put_sized(std::span<const std::byte> bytes);
  void put_identity(const TransportIdentity& identity);
  // Ends the address; nothing may be put after it.
  std::vector<std::byte> take();

 private:
  std::vector<std::byte> bytes_;
};

// Takes apart an address that may be anything.
//
// Job: reads fields; past the end every read gives zero and ok() is false from then on.
// Thread: value type.
class AddressReader {
 public:
  // Not ok() from the start if the bytes are no address of `magic`: too long, other letters, a wrong checksum.
  AddressReader(std::span<const std::byte> bytes, std::string_view magic);

  std::uint32_t u32();
  std::uint64_t u64();
  // A view into the address; empty if it does not hold that much.
  std::span<const std::byte> bytes(std::size_t size);
  std::span<const std::byte> sized();
  TransportIdentity identity();
  bool ok() const { return ok_; }
  // ok() and nothing is left over.
  bool ended() const { return ok_ && rest_.empty(); }

 private:
  std::uint64_t little_endian(std::size_t size);

  std::span<const std::byte> rest_;
  bool ok_;
};

}  // namespace kvpush
