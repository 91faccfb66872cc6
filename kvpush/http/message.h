#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvpush {

// Header fields in order; names are compared without case.
//
// Job: holds the fields of one message.
// Thread: value type.
class HttpHeaders {
 public:
  std::optional<std::string_view> find(std::string_view name) const;
  void add(std::string_view name, std::string_view value);
  // Replaces every field of that name by one.
  void set(std::string_view name, std::string_view value);
  void remove(std::string_view name);
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

// What a proxy passes on: all fields but those about one connection or one message's framing (Connection and what it
// names, Keep-Alive, TE, Transfer-Encoding, Content-Length, Host, Expect, ...).
HttpHeaders end_to_end(const HttpHeaders& headers);

struct HttpRequest {
  std::string method{};
  std::string target{};
  HttpHeaders headers{};
  std::string body{};

  // The target without its query.
  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
};

// Status and headers of an answer. Content-Length, Transfer-Encoding and Connection are the server's to add.
struct HttpHead {
  int status = 200;
  HttpHeaders headers{};
  // Known: the body is sent as it is; unknown: in chunks.
  std::optional<std::uint64_t> content_bytes{};
};

// A whole answer.
struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body{};
  HttpHeaders headers{};
  bool close = false;  // the connection ends with it
};

}  // namespace kvpush
