#include "kvpush/standin/tokens.h"

#include <fmt/format.h>

namespace kvpush {

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  tokens.reserve(text.size());
  for (const char byte : text) tokens.push_back(Token{static_cast<unsigned char>(byte)});
  return tokens;
}

std::string text_of(Token token) {
  return fmt::format(" {:04x}", token.value);
}

PrefixKey extend(std::optional<PrefixKey> before, Token token) {
  // Not linear in its parts: neither another order of the same tokens nor two differences that cancel out give the
  // same key.
  const std::uint64_t beginning = before ? before->value : 0x6b76707573680001;
  return PrefixKey{mix(beginning * 0x9e3779b97f4a7c15 + mix(token.value + 1))};
}

std::vector<PrefixKey> prefix_keys(std::span<const Token> prompt) {
  std::vector<PrefixKey> keys;
  keys.reserve(prompt.size());
  for (const Token token : prompt) {
    keys.push_back(extend(keys.empty() ? std::nullopt : std::optional(keys.back()), token));
  }
  return keys;
}

Token token_after(std::uint64_t digest) {
  return Token{static_cast<std::uint32_t>(mix(digest) >> 48)};
}

}  // namespace kvpush
