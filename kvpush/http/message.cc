#include "kvpush/http/message.h"

#include <algorithm>

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
