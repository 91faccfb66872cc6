// Tokens of the stand-in's language, and what names everything before one of them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/base/ids.h"

namespace kvpush {

using Token = Id<struct TokenTag, std::uint32_t>;

// Names a prompt up to and including one of its tokens: equal prefixes have equal keys, others do not (64 bits).
using PrefixKey = Id<struct PrefixKeyTag>;

// One token for each byte: enough of a tokenizer for people and for clients that only speak text.
std::vector<Token> tokens_of(std::string_view text);
// Of an answer's token: a blank and four hexadecimal digits, so that texts are equal exactly when their tokens are.
std::string text_of(Token token);

// The key of the prefix that `token` makes longer; of the first token there is none before.
PrefixKey extend(std::optional<PrefixKey> before, Token token);
std::vector<PrefixKey> prefix_keys(std::span<const Token> prompt);

// The token that follows KV with this digest.
Token token_after(std::uint64_t digest);

// Spreads a number over all 64 bits, one to one.
constexpr std::uint64_t mix(std::uint64_t number) {
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

}  // namespace kvpush
