#include "kvpush/http/message.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

TEST(HttpHeaders, AreFoundWithoutCase) {
  HttpHeaders headers;
  headers.add("X-Request-Id", "7");

  EXPECT_EQ(headers.find("x-request-ID"), "7");
  EXPECT_FALSE(headers.find("x-request").has_value());
}

TEST(HttpHeaders, AreReplacedBySet) {
  HttpHeaders headers;
  headers.add("A", "1");
  headers.add("a", "2");
  headers.set("A", "3");

  ASSERT_EQ(headers.fields().size(), 1U);
  EXPECT_EQ(headers.find("a"), "3");
}

TEST(HttpHeaders, LoseTheFieldsOfOneConnectionAtAProxy) {
  HttpHeaders headers;
  for (const char* name : {"Host", "Content-Length", "Transfer-Encoding", "keep-alive", "Expect", "X-Hop", "x-two"}) {
    headers.add(name, "1");
  }
  headers.add("Connection", "close, X-Hop ,X-Two");
  headers.add("Authorization", "Bearer k");

  const HttpHeaders passed = end_to_end(headers);

  ASSERT_EQ(passed.fields().size(), 1U);
  EXPECT_EQ(passed.find("authorization"), "Bearer k");
}

}  // namespace
}  // namespace kvpush
