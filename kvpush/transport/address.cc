#include "kvpush/transport/address.h"

#include <cstring>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/random.h"

namespace kvpush {
namespace {

constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

// FNV-1a.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) sum = (sum ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  return sum;
}

}  // namespace

TransportIdentity TransportIdentity::draw() {
  return {read_entropy(), read_entropy()};
}

AddressWriter::AddressWriter(std::string_view magic) {
  KVPUSH_CHECK(magic.size() == kAddressMagicBytes, "an address begins with eight letters");
  put_bytes(std::as_bytes(std::span(magic)));
}

void AddressWriter::put_u32(std::uint32_t value) {
  for (std::size_t i = 0; i < sizeof value; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void AddressWriter::put_u64(std::uint64_t value) {
  for (std::size_t i = 0; i < sizeof value; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void AddressWriter::put_bytes(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void AddressWriter::put_sized(std::span<const std::byte> bytes) {
  put_u32(static_cast<std::uint32_t>(bytes.size()));
  put_bytes(bytes);
}

void AddressWriter::put_identity(const TransportIdentity& identity) {
  put_u64(identity.high);
  put_u64(identity.low);
}

std::vector<std::byte> AddressWriter::take() {
  put_u64(checksum(bytes_));
  return std::move(bytes_);
}

AddressReader::AddressReader(std::span<const std::byte> bytes, std::string_view magic)
    : ok_(bytes.size() >= kAddressMagicBytes + kChecksumBytes && bytes.size() <= kTransportAddressBytesMax) {
  if (!ok_) return;
  const auto body = bytes.first(bytes.size() - kChecksumBytes);
  rest_ = bytes.last(kChecksumBytes);
  ok_ = u64() == checksum(body);
  rest_ = body;
  const auto letters = this->bytes(kAddressMagicBytes);
  ok_ = ok_ && std::memcmp(letters.data(), magic.data(), kAddressMagicBytes) == 0;
}

std::uint32_t AddressReader::u32() {
  return static_cast<std::uint32_t>(little_endian(sizeof(std::uint32_t)));
}

std::uint64_t AddressReader::u64() {
  return little_endian(sizeof(std::uint64_t));
}

std::span<const std::byte> AddressReader::bytes(std::size_t size) {
  if (!ok_ || size > rest_.size()) {
    ok_ = false;
    return {};
  }
  const auto taken = rest_.first(size);
  rest_ = rest_.subspan(size);
  return taken;
}

std::span<const std::byte> AddressReader::sized() {
  return bytes(u32());
}

TransportIdentity AddressReader::identity() {
  const std::uint64_t high = u64();
  return {high, u64()};
}

std::uint64_t AddressReader::little_endian(std::size_t size) {
  std::uint64_t value = 0;
  const auto taken = bytes(size);
  for (std::size_t i = taken.size(); i > 0; --i) value = value << 8 | std::to_integer<std::uint64_t>(taken[i - 1]);
  return value;
}

}  // namespace kvpush
