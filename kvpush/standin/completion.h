// The stand-in's part of the OpenAI API as text: a completions call read, its answers written. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/http/message.h"
#include "kvpush/standin/scheduler.h"
#include "kvpush/standin/tokens.h"

namespace kvpush {

// Which legs of transfers an engine takes; requests without a transfer are everyone's.
enum class EngineRole : std::uint8_t { kPrefill, kDecode, kBoth };

// Of a prompt: as long as the longest contexts that are served.
inline constexpr std::size_t kPromptTokensMax = 1u << 20;
// Of an answer: each one is a step.
inline constexpr std::uint32_t kOutputTokensMax = 1u << 16;
// As the API has it for calls that do not say.
inline constexpr std::uint32_t kOutputTokensDefault = 16;

struct CompletionCall {
  std::vector<Token> prompt;
  std::uint32_t output_tokens = kOutputTokensDefault;
  bool streams = false;
  Leg leg{};  // a PrefillLeg without a transfer id: the engine makes one
};

// Why a call cannot be served, a sentence for people.
struct BadCall {
  std::string what;
};

// The fields `prompt` (a text, a list of tokens, or a list of one of these), `max_tokens`, `stream`, `n`
// (1, nothing else) and `kv_transfer_params`; all others, `model` and those about sampling among them, are ignored.
std::expected<CompletionCall, BadCall> read_completion(std::string_view body, EngineRole role);

// What is said of one completion in all of its answers.
struct CompletionNames {
  RequestId id;
  std::int64_t created_unix_seconds = 0;
  std::string model;
};

struct CompletionEnd {
  std::size_t prompt_tokens = 0;
  std::size_t output_tokens = 0;
  // Of a prefill leg: what a router hands to decode, naming the directory of this engine.
  std::optional<DecodeLeg> transfer{};
};

// The whole answer.
std::string completion_json(const CompletionNames& names, std::string_view text, const CompletionEnd& end);
// One event of a streamed answer: some of the text, and in the last one (`end` is not null) what ends it.
std::string completion_event(const CompletionNames& names, std::string_view text, const CompletionEnd* end);
inline constexpr std::string_view kLastEvent = "data: [DONE]\n\n";

// The only model there is.
std::string models_json(std::string_view model);

// {"error": {"message", "type", "param", "code"}}, as vLLM has it.
std::string error_json(int status, std::string_view what);
// The same as an HttpRefusal.
HttpReply completion_error(int status, std::string_view what);

}  // namespace kvpush
