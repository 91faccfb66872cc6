#include "kvpush/standin/debug.h"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <chrono>
#include <limits>
#include <optional>
#include <string>

namespace kvpush {
namespace {

// Longer than any test; keeps the sum of times within an Instant.
constexpr std::uint64_t kDelayMillisecondsMax = 3'600'000;

std::expected<std::uint64_t, BadCall> read_number(const boost::json::object& call, const char* name,
                                                  std::uint64_t max) {
  const boost::json::value* const value = call.if_contains(name);
  if (value == nullptr || !value->is_int64() || value->get_int64() < 0 ||
      static_cast<std::uint64_t>(value->get_int64()) > max) {
    return std::unexpected(BadCall{std::string(name) + " is missing, or no whole number that is allowed"});
  }
  return static_cast<std::uint64_t>(value->get_int64());
}

}  // namespace

std::expected<DebugCall, BadCall> read_debug_call(std::string_view verb, std::string_view body) {
  if (verb == "die") return DebugDie{};
  if (verb == "stop") return DebugStop{};
  boost::system::error_code error;
  const boost::json::value parsed = boost::json::parse(body, error);
  if (error || !parsed.is_object()) return std::unexpected(BadCall{"the body is not a JSON object"});
  const boost::json::object& call = parsed.get_object();
  if (verb == "refuse") {
    const auto count = read_number(call, "count", std::numeric_limits<std::int64_t>::max());
    if (!count) return std::unexpected(count.error());
    return DebugRefuse{*count};
  }
  if (verb == "delay") {
    const auto time = read_number(call, "milliseconds", kDelayMillisecondsMax);
    if (!time) return std::unexpected(time.error());
    return DebugDelay{std::chrono::milliseconds(*time)};
  }
  const auto block = read_number(call, "block", std::numeric_limits<std::uint32_t>::max());
  if (!block) return std::unexpected(block.error());
  const auto offset = read_number(call, "offset", std::numeric_limits<std::int64_t>::max());
  if (!offset) return std::unexpected(offset.error());
  return DebugCorrupt{BlockId{static_cast<std::uint32_t>(*block)}, *offset};
}

}  // namespace kvpush
