#include "kvpush/standin/completion.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <limits>
#include <optional>
#include <utility>

#include "kvpush/base/limits.h"

namespace kvpush {
namespace json = boost::json;
namespace {

std::unexpected<BadCall> bad(std::string what) {
  return std::unexpected(BadCall{std::move(what)});
}

// The field, unless it is absent or null, which mean the same.
const json::value* find(const json::object& object, std::string_view name) {
  const json::value* const value = object.if_contains(name);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

// The longest name of a host that DNS has.
constexpr std::size_t kHostBytesMax = 253;
// As of the router, which passes calls on.
constexpr std::size_t kCallDepthMax = 200;

std::expected<bool, BadCall> read_flag(const json::object& object, const char* name) {
  const json::value* const value = find(object, name);
  if (value == nullptr) return false;
  if (value->is_bool()) return value->get_bool();
  return bad(std::string(name) + " is neither true nor false");
}

std::expected<std::string, BadCall> read_text(const json::object& object, const char* name, std::size_t bytes_max) {
  const json::value* const value = find(object, name);
  if (value == nullptr || !value->is_string() || value->get_string().empty()) {
    return bad(std::string(name) + " is missing or no text");
  }
  const std::string_view text = value->get_string();
  const auto is_control = [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; };
  if (text.size() > bytes_max || std::any_of(text.begin(), text.end(), is_control)) {
    return bad(std::string(name) + " is too long or has characters that cannot be printed");
  }
  return std::string(text);
}

std::expected<std::uint16_t, BadCall> read_port(const json::object& object, const char* name) {
  const json::value* const value = find(object, name);
  if (value == nullptr || !value->is_int64() || value->get_int64() <= 0 || value->get_int64() > 65535) {
    return bad(std::string(name) + " is missing or no port");
  }
  return static_cast<std::uint16_t>(value->get_int64());
}

std::expected<Leg, BadCall> read_prefill_leg(const json::object& params, EngineRole role) {
  if (role == EngineRole::kDecode) return bad("do_remote_decode, but this engine is for decode");
  if (find(params, "transfer_id") == nullptr) return PrefillLeg{};
  auto transfer_id = read_text(params, "transfer_id", kTransferIdBytesMax);
  if (!transfer_id) return std::unexpected(transfer_id.error());
  return PrefillLeg{*std::move(transfer_id)};
}

std::expected<Leg, BadCall> read_decode_leg(const json::object& params, EngineRole role) {
  if (role == EngineRole::kPrefill) return bad("do_remote_prefill, but this engine is for prefill");
  auto transfer_id = read_text(params, "transfer_id", kTransferIdBytesMax);
  if (!transfer_id) return std::unexpected(transfer_id.error());
  auto host = read_text(params, "remote_host", kHostBytesMax);
  if (!host) return std::unexpected(host.error());
  const auto port = read_port(params, "remote_port");
  if (!port) return std::unexpected(port.error());
  return DecodeLeg{*std::move(transfer_id), {*std::move(host), *port}};
}

// Fields that are not known are ignored: routers made for other connectors send some.
std::expected<Leg, BadCall> read_leg(const json::object& call, EngineRole role) {
  const json::value* const value = find(call, "kv_transfer_params");
  if (value == nullptr) return Leg{};
  if (!value->is_object()) return bad("kv_transfer_params is not an object");
  const json::object& params = value->get_object();
  const auto prefill = read_flag(params, "do_remote_decode");
  if (!prefill) return std::unexpected(prefill.error());
  const auto decode = read_flag(params, "do_remote_prefill");
  if (!decode) return std::unexpected(decode.error());
  if (*prefill && *decode) return bad("do_remote_decode and do_remote_prefill are both true");
  if (*prefill) return read_prefill_leg(params, role);
  if (*decode) return read_decode_leg(params, role);
  return Leg{};
}

std::expected<std::vector<Token>, BadCall> read_tokens(const json::array& list) {
  std::vector<Token> tokens;
  tokens.reserve(list.size());
  for (const json::value& token : list) {
    if (!token.is_int64() || token.get_int64() < 0 || token.get_int64() > std::numeric_limits<std::int32_t>::max()) {
      return bad("a token of the prompt is no whole number from 0 to 2147483647");
    }
    tokens.push_back(Token{static_cast<std::uint32_t>(token.get_int64())});
  }
  return tokens;
}

std::expected<std::vector<Token>, BadCall> read_prompt(const json::object& call) {
  const json::value* prompt = find(call, "prompt");
  if (prompt != nullptr && prompt->is_array() && prompt->get_array().size() == 1 &&
      !prompt->get_array()[0].is_number()) {
    prompt = &prompt->get_array()[0];
  }
  std::expected<std::vector<Token>, BadCall> tokens;
  if (prompt != nullptr && prompt->is_string()) {
    tokens = tokens_of(prompt->get_string());
  } else if (prompt != nullptr && prompt->is_array()) {
    tokens = read_tokens(prompt->get_array());
  } else {
    return bad("prompt is one text or one list of tokens");
  }
  if (tokens && tokens->empty()) return bad("prompt is empty");
  if (tokens && tokens->size() > kPromptTokensMax) return bad("prompt has more than 1048576 tokens");
  return tokens;
}

std::expected<std::uint32_t, BadCall> read_output_tokens(const json::object& call) {
  const json::value* const value = find(call, "max_tokens");
  if (value == nullptr) return kOutputTokensDefault;
  if (!value->is_int64() || value->get_int64() < 1 || value->get_int64() > kOutputTokensMax) {
    return bad("max_tokens is no whole number from 1 to 65536");
  }
  return static_cast<std::uint32_t>(value->get_int64());
}

json::object describe(const CompletionNames& names, std::string_view text, bool is_last) {
  json::object choice;
  choice["index"] = 0;
  choice["text"] = text;
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = is_last ? json::value("length") : json::value(nullptr);
  json::object answer;
  answer["id"] = names.id;
  answer["object"] = "text_completion";
  answer["created"] = names.created_unix_seconds;
  answer["model"] = names.model;
  answer["choices"] = json::array{std::move(choice)};
  return answer;
}

void describe_end(json::object& answer, const CompletionEnd& end) {
  answer["usage"] = json::object{{"prompt_tokens", end.prompt_tokens},
                                 {"completion_tokens", end.output_tokens},
                                 {"total_tokens", end.prompt_tokens + end.output_tokens}};
  answer["kv_transfer_params"] = nullptr;
  if (!end.transfer) return;
  answer["kv_transfer_params"] = json::object{{"do_remote_prefill", true},
                                              {"do_remote_decode", false},
                                              {"transfer_id", end.transfer->transfer_id},
                                              {"remote_host", end.transfer->producer.host},
                                              {"remote_port", end.transfer->producer.port}};
}

}  // namespace

std::expected<CompletionCall, BadCall> read_completion(std::string_view body, EngineRole role) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kCallDepthMax;
  const json::value parsed = json::parse(body, error, {}, options);
  if (error || !parsed.is_object()) return bad("the body is not a JSON object");
  const json::object& object = parsed.get_object();
  CompletionCall call;
  auto prompt = read_prompt(object);
  if (!prompt) return std::unexpected(prompt.error());
  call.prompt = *std::move(prompt);
  const auto output_tokens = read_output_tokens(object);
  if (!output_tokens) return std::unexpected(output_tokens.error());
  call.output_tokens = *output_tokens;
  const auto streams = read_flag(object, "stream");
  if (!streams) return std::unexpected(streams.error());
  call.streams = *streams;
  const json::value* const samples = find(object, "n");
  if (samples != nullptr && *samples != json::value(1)) return bad("n is 1: there is one answer to a prompt");
  auto leg = read_leg(object, role);
  if (!leg) return std::unexpected(leg.error());
  call.leg = *std::move(leg);
  return call;
}

std::string completion_json(const CompletionNames& names, std::string_view text, const CompletionEnd& end) {
  json::object answer = describe(names, text, true);
  describe_end(answer, end);
  return json::serialize(answer);
}

std::string completion_event(const CompletionNames& names, std::string_view text, const CompletionEnd* end) {
  json::object answer = describe(names, text, end != nullptr);
  if (end != nullptr) describe_end(answer, *end);
  return "data: " + json::serialize(answer) + "\n\n";
}

std::string models_json(std::string_view model) {
  json::object entry{{"id", model}, {"object", "model"}, {"owned_by", "kvpush"}};
  return json::serialize(json::object{{"object", "list"}, {"data", json::array{std::move(entry)}}});
}

std::string error_json(int status, std::string_view what) {
  const char* const type = status < 500    ? "invalid_request_error"
                           : status == 503 ? "overloaded_error"
                                           : "internal_error";
  return json::serialize(
      json::object{{"error", json::object{{"message", what}, {"type", type}, {"param", nullptr}, {"code", status}}}});
}

HttpReply completion_error(int status, std::string_view what) {
  return {.status = status, .body = error_json(status, what)};
}

}  // namespace kvpush
