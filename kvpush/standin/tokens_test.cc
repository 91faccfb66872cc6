#include "kvpush/standin/tokens.h"

#include <gtest/gtest.h>

#include <set>

namespace kvpush {
namespace {

std::vector<Token> tokens(std::initializer_list<std::uint32_t> numbers) {
  std::vector<Token> list;
  for (const std::uint32_t number : numbers) list.push_back(Token{number});
  return list;
}

TEST(Tokens, AreTheBytesOfAText) {
  EXPECT_EQ(tokens_of("A\xff"), tokens({65, 255}));
}

TEST(Tokens, HaveTextsThatDifferWhenTheyDo) {
  EXPECT_EQ(text_of(Token{0xab}), " 00ab");
  EXPECT_NE(text_of(Token{0xab}), text_of(Token{0xab0}));
}

TEST(PrefixKeys, AreEqualAsLongAsPromptsAre) {
  const auto one = prefix_keys(tokens({1, 2, 3, 4}));
  const auto other = prefix_keys(tokens({1, 2, 9, 4}));

  EXPECT_EQ(one[1], other[1]);
  EXPECT_NE(one[2], other[2]);
  EXPECT_NE(one[3], other[3]) << "a key depends on every token before";
}

TEST(PrefixKeys, DependOnOrderAndLength) {
  EXPECT_NE(prefix_keys(tokens({1, 2})).back(), prefix_keys(tokens({2, 1})).back());
  EXPECT_NE(prefix_keys(tokens({0})).back(), prefix_keys(tokens({0, 0})).back());
}

TEST(PrefixKeys, OfShortPromptsAreAllDifferent) {
  std::set<PrefixKey> keys;
  for (std::uint32_t a = 0; a < 64; ++a) {
    for (std::uint32_t b = 0; b < 64; ++b) keys.insert(prefix_keys(tokens({a, b})).back());
  }

  EXPECT_EQ(keys.size(), 64u * 64u);
}

TEST(Tokens, AfterDigestsAreSpread) {
  std::set<Token> seen;
  for (std::uint64_t digest = 0; digest < 256; ++digest) seen.insert(token_after(digest));

  EXPECT_GT(seen.size(), 250u);
}

}  // namespace
}  // namespace kvpush
