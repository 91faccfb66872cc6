// Any text as the body of a client's request: refused with a reason, or turned into the bodies of two legs.
#include <algorithm>
#include <array>
#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/system/error_code.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kvpush/base/check.h"
#include "kvpush/router/answer.h"
#include "kvpush/router/legs.h"

namespace kvpush {
namespace {

namespace json = boost::json;

json::object parse_object(std::string_view text) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kJsonDepthMax + 1;
  json::value value = json::parse(text, error, {}, options);
  KVPUSH_CHECK(!error && value.is_object(), "what is sent is a JSON object");
  return std::move(value.get_object());
}

// Within a few units in the last place, as numbers are rounded once more each time that they are read.
bool is_near(double a, double b) {
  return std::signbit(a) == std::signbit(b) &&
         std::abs(std::bit_cast<std::int64_t>(a) - std::bit_cast<std::int64_t>(b)) <= 4;
}

bool is_same(const json::value& a, const json::value& b);

bool is_same(const json::object& a, const json::object& b) {
  return a.size() == b.size() && std::ranges::all_of(a, [&b](const json::key_value_pair& field) {
           const json::value* other = b.if_contains(field.key());
           return other != nullptr && is_same(field.value(), *other);
         });
}

// But for the rounding of doubles.
bool is_same(const json::value& a, const json::value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_double()) return is_near(a.get_double(), b.get_double());
  if (a.is_object()) return is_same(a.get_object(), b.get_object());
  if (!a.is_array()) return a == b;
  return std::ranges::equal(a.get_array(), b.get_array(),
                            [](const json::value& x, const json::value& y) { return is_same(x, y); });
}

bool is_prefills_own(std::string_view field) {
  constexpr std::array<std::string_view, 5> kFields = {"max_tokens", "max_completion_tokens", "n", "stream",
                                                       "kv_transfer_params"};
  return std::ranges::find(kFields, field) != kFields.end();
}

void check_legs(const Legs& legs, std::string_view body) {
  const json::object prefill = parse_object(legs.prefill);
  KVPUSH_CHECK(prefill.at("max_tokens") == 1 && prefill.at("stream") == false, "prefill answers with one token");
  KVPUSH_CHECK(prefill.at("kv_transfer_params").at("do_remote_decode") == true, "prefill keeps the KV");

  json::object decode = parse_object(legs.decode);
  KVPUSH_CHECK(decode.at("kv_transfer_params").at("do_remote_prefill") == true, "decode waits for the KV");
  KVPUSH_CHECK(decode.at("kv_transfer_params").at("transfer_id") == prefill.at("kv_transfer_params").at("transfer_id"),
               "both name the same transfer");
  for (const json::key_value_pair& field : prefill) {
    KVPUSH_CHECK(is_prefills_own(field.key()) || field.value() == decode.at(field.key()), "both see one prompt");
  }
  decode.erase("kv_transfer_params");
  json::object asked = parse_object(body);
  asked.erase("kv_transfer_params");
  KVPUSH_CHECK(is_same(decode, asked), "decode is asked what the client asked");
}

void check(Api api, std::string_view body) {
  const auto legs = make_legs(api, body, "t", {"127.0.0.1", 80});
  if (legs) return check_legs(*legs, body);
  parse_object(error_reply(400, legs.error().message, legs.error().param).body);
}

}  // namespace
}  // namespace kvpush

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const auto api : {kvpush::Api::kCompletions, kvpush::Api::kChat}) kvpush::check(api, body);
  return 0;
}
