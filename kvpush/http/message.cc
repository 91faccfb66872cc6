#include "kvpush/http/message.h"

#include <algorithm>
#include <charconv>

namespace kvpush {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

Result<HttpAddress> parse_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return fail(ErrorCode::kBadConfig, "an address is host:port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return fail(ErrorCode::kBadConfig, "an IPv6 address stands in brackets: [::1]:port");
  }
  if (host.empty() || host.find_first_of(" \t/[]@?#") != std::string_view::npos) {
    return fail(ErrorCode::kBadConfig, "an address is host:port");
  }
  HttpAddress address{std::string(host), 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (error != std::errc{} || end != digits.data() + digits.size() || address.port == 0) {
    return fail(ErrorCode::kBadConfig, "a port is a number from 1 to 65535");
  }
  return address;
}

std::string to_string(const HttpAddress& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return (brackets ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

std::optional<std::string_view> HttpHeaders::find(std::string_view name) const {
  for (const auto& [key, value] : fields_) {
    if (same_name(key, name)) return value;
  }
  return std::nullopt;
}

void HttpHeaders::add(std::string_view name, std::string_view value) {
  fields_.emplace_back(std::string(name), std::string(value));
}

void HttpHeaders::set(std::string_view name, std::string_view value) {
  remove(name);
  add(name, value);
}

void HttpHeaders::remove(std::string_view name) {
  std::erase_if(fields_, [name](const auto& field) { return same_name(field.first, name); });
}

HttpHeaders end_to_end(const HttpHeaders& headers) {
  HttpHeaders kept = headers;
  for (const auto& [key, value] : headers.fields()) {
    if (!same_name(key, "Connection")) continue;
    for (std::string_view rest = value; !rest.empty();) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      kept.remove(trimmed(rest.substr(0, comma)));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  for (const std::string_view name :
       {"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "TE", "Trailer",
        "Transfer-Encoding", "Upgrade", "Content-Length", "Host", "Expect"}) {
    kept.remove(name);
  }
  return kept;
}

}  // namespace kvpush
