// What the contract tests do to transports, in their words.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kvpush/base/clock.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

// Long enough for the slowest machine under a sanitizer; only a failing test waits that long.
inline constexpr Duration kPatience = std::chrono::seconds(30);

inline std::uint64_t address_of(const std::byte* byte) {
  return reinterpret_cast<std::uint64_t>(byte);
}

// Of megabytes, which a loop under a sanitizer looks through for seconds.
inline bool are_equal(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size()) == 0;
}
inline bool contains(std::span<const std::byte> bytes, std::byte value) {
  return std::memchr(bytes.data(), std::to_integer<int>(value), bytes.size()) != nullptr;
}
inline bool consists_of(std::span<const std::byte> bytes, std::byte value) {
  return bytes.front() == value && are_equal(bytes.first(bytes.size() - 1), bytes.subspan(1));
}

// A transport with its memory and everything it has reported.
struct Node {
  std::vector<std::byte> memory;  // outlives the transport, which may still write to it
  std::unique_ptr<Transport> transport;
  RegionId region{};
  TransportEvents seen;

  Node(std::unique_ptr<Transport> opened, std::size_t size_bytes, std::byte fill)
      : memory(size_bytes, fill), transport(std::move(opened)) {
    const auto registered = transport->register_region(memory);
    EXPECT_TRUE(registered);
    region = registered.value_or(RegionId{});
  }

  std::size_t poll() { return transport->poll(seen); }
  std::uint64_t at(std::size_t offset) const { return address_of(memory.data() + offset); }

  const WriteCompletion* completion(WriteToken token) const {
    for (const WriteCompletion& each : seen.completions) {
      if (each.token == token) return &each;
    }
    return nullptr;
  }
  bool lost(PeerId peer) const {
    for (const PeerLost& each : seen.lost) {
      if (each.peer == peer) return true;
    }
    return false;
  }
};

// Polls all of `nodes` until `done()` or patience ends; false then.
template <class Done>
bool pump(std::span<Node* const> nodes, Done done) {
  const Instant limit = read_clock() + kPatience;
  while (!done()) {
    for (Node* node : nodes) node->poll();
    if (read_clock() > limit) return false;
  }
  return true;
}

// Waits until the transport's event fd is readable.
inline bool wakes(const Transport& transport) {
  pollfd request{transport.event_fd(), POLLIN, 0};
  return ::poll(&request, 1, static_cast<int>(kPatience / std::chrono::milliseconds(1))) == 1;
}

}  // namespace kvpush
