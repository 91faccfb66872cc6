#include "kvpush/router/legs.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <optional>
#include <utility>

namespace kvpush {
namespace json = boost::json;
namespace {

// The field, unless it is absent or null, which mean the same to vLLM.
const json::value* find(const json::object& body, std::string_view name) {
  const json::value* value = body.if_contains(name);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

// JSON has no word for what a number beyond all doubles is read as.
bool is_finite(const json::value& value) {
  if (value.is_double()) return std::isfinite(value.get_double());
  if (value.is_array()) return std::ranges::all_of(value.get_array(), is_finite);
  if (!value.is_object()) return true;
  return std::ranges::all_of(value.get_object(), [](const auto& field) { return is_finite(field.value()); });
}

std::optional<BadRequest> check_prompt(const json::object& body) {
  if (find(body, "prompt_embeds") != nullptr) return std::nullopt;
  const json::value* prompt = find(body, "prompt");
  if (prompt == nullptr) return BadRequest{"the request has no prompt", "prompt"};
  if (prompt->is_string()) return std::nullopt;
  if (prompt->is_array() && !prompt->get_array().empty()) return std::nullopt;
  return BadRequest{"prompt is a text, a list of tokens, or a list of these, and not empty", "prompt"};
}

std::optional<BadRequest> check_messages(const json::object& body) {
  const json::value* messages = find(body, "messages");
  if (messages == nullptr) return BadRequest{"the request has no messages", "messages"};
  if (messages->is_array() && !messages->get_array().empty()) return std::nullopt;
  return BadRequest{"messages is a list of at least one message", "messages"};
}

std::optional<BadRequest> check_count(const json::object& body, const char* name) {
  const json::value* count = find(body, name);
  if (count == nullptr || (count->is_int64() && count->get_int64() >= 1)) return std::nullopt;
  return BadRequest{fmt::format("{} is a whole number of at least 1", name), name};
}

std::optional<BadRequest> check_flag(const json::object& body, const char* name) {
  const json::value* flag = find(body, name);
  if (flag == nullptr || flag->is_bool()) return std::nullopt;
  return BadRequest{fmt::format("{} is true or false", name), name};
}

// The decode server computes the last token of the prompt alone, so it has no probabilities of the others: asked for
// them, vLLM computes the whole prompt once more.
std::optional<BadRequest> check_prompt_logprobs(Api api, const json::object& body) {
  if (find(body, "prompt_logprobs") != nullptr) {
    return BadRequest{
        "prompt_logprobs cannot be had here: the prompt is computed on another server than its answer; "
        "leave it out",
        "prompt_logprobs"};
  }
  const json::value* echo = find(body, "echo");
  if (echo == nullptr || !echo->get_bool()) return std::nullopt;
  // There vLLM takes echo for prompt_logprobs of as many as top_logprobs, and of 0, which is not none, without it.
  if (api == Api::kChat) {
    return BadRequest{
        "echo cannot be had in a chat here: it asks for probabilities of the prompt, which is computed on another "
        "server than its answer; leave it out",
        "echo"};
  }
  if (find(body, "logprobs") != nullptr) {
    return BadRequest{
        "echo with logprobs cannot be had here: the prompt is computed on another server than its "
        "answer; leave one of them out",
        "echo"};
  }
  return std::nullopt;
}

std::optional<BadRequest> check(Api api, const json::object& body) {
  if (find(body, "kv_transfer_params") != nullptr) {
    return BadRequest{
        "kv_transfer_params cannot be sent through the router: it makes them itself; leave them out, or "
        "send the request to a server",
        "kv_transfer_params"};
  }
  if (auto bad = api == Api::kChat ? check_messages(body) : check_prompt(body)) return bad;
  for (const char* name : {"n", "best_of"}) {
    if (auto bad = check_count(body, name)) return bad;
  }
  for (const char* name : {"stream", "echo"}) {
    if (auto bad = check_flag(body, name)) return bad;
  }
  return check_prompt_logprobs(api, body);
}

std::string prefill_body(json::object body, const TransferId& transfer) {
  // What asks for a longer, streamed or larger answer than the one token that is thrown away.
  for (const char* name :
       {"min_tokens", "stream_options", "best_of", "echo", "logprobs", "top_logprobs", "logprob_token_ids"}) {
    body.erase(name);
  }
  body["max_tokens"] = 1;
  if (body.contains("max_completion_tokens")) body["max_completion_tokens"] = 1;
  if (body.contains("n")) body["n"] = 1;
  body["stream"] = false;
  body["kv_transfer_params"] = json::object{{"do_remote_decode", true}, {"transfer_id", transfer}};
  return json::serialize(body);
}

std::string decode_body(json::object body, const TransferId& transfer, const Endpoint& directory) {
  body["kv_transfer_params"] = json::object{{"do_remote_prefill", true},
                                            {"transfer_id", transfer},
                                            {"remote_host", directory.host},
                                            {"remote_port", directory.port}};
  return json::serialize(body);
}

}  // namespace

std::expected<Legs, BadRequest> make_legs(Api api, std::string_view body, const TransferId& transfer,
                                          const Endpoint& directory) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kJsonDepthMax;
  json::value parsed = json::parse(body, error, {}, options);
  if (error) return std::unexpected(BadRequest{"the body is not JSON: " + error.message(), ""});
  if (!parsed.is_object()) return std::unexpected(BadRequest{"the body is not a JSON object", ""});
  if (!is_finite(parsed)) return std::unexpected(BadRequest{"a number is larger than a double can be", ""});
  json::object& request = parsed.get_object();
  if (auto bad = check(api, request)) return std::unexpected(*std::move(bad));
  Legs legs;
  legs.prefill = prefill_body(request, transfer);
  legs.decode = decode_body(std::move(request), transfer, directory);
  return legs;
}

TransferId make_transfer_id(std::uint64_t high, std::uint64_t low) {
  return fmt::format("{:016x}{:016x}", high, low);
}

}  // namespace kvpush
