#include "kvpush/router/answer.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "kvpush/base/utf8.h"

namespace kvpush {
namespace {

std::string_view error_type(int status) {
  if (status == 502) return "upstream_error";
  if (status == 503) return "overloaded_error";
  return status < 500 ? "invalid_request_error" : "internal_error";
}

}  // namespace

HttpReply error_reply(int status, std::string_view message, std::string_view param) {
  boost::json::object error;
  error["message"] = to_utf8(message);  // it may quote a server
  error["type"] = error_type(status);
  error["param"] = param.empty() ? boost::json::value(nullptr) : boost::json::value(param);
  error["code"] = status;
  return {.status = status, .body = boost::json::serialize(boost::json::object{{"error", std::move(error)}})};
}

HttpReply refuse_request(int status, std::string_view what) {
  return error_reply(status, what);
}

}  // namespace kvpush
