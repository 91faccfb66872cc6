#include "kvpush/base/endpoint.h"

#include <charconv>

namespace kvpush {

std::string to_string(const Endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  return (brackets ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return fail(ErrorCode::kBadConfig, "an address is written host:port");
  std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty()) return fail(ErrorCode::kBadConfig, "an address names a host before its port");
  Endpoint endpoint{std::string(host), 0};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, endpoint.port);
  if (error != std::errc{} || stop != end) return fail(ErrorCode::kBadConfig, "a port is a number from 0 to 65535");
  return endpoint;
}

}  // namespace kvpush
