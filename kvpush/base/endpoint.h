#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvpush/base/error.h"

namespace kvpush {

// A host (name or numeric address) and a TCP port.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  auto operator<=>(const Endpoint&) const = default;
};

// "host:port", with brackets around an IPv6 address.
std::string to_string(const Endpoint& endpoint);

// The inverse of to_string(). kBadConfig: no host, no port, or a port outside 0..65535.
Result<Endpoint> parse_endpoint(std::string_view text);

}  // namespace kvpush
