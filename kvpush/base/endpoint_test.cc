#include "kvpush/base/endpoint.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

TEST(Endpoint, ReadsBackWhatItWrites) {
  for (const Endpoint& endpoint : {Endpoint{"localhost", 1}, Endpoint{"10.0.0.1", 65535}, Endpoint{"::1", 80}}) {
    EXPECT_EQ(parse_endpoint(to_string(endpoint)), endpoint) << to_string(endpoint);
  }
}

TEST(Endpoint, RefusesTextThatIsNoHostAndPort) {
  for (const char* text : {"", "host", "host:", ":80", "host:65536", "host:-1", "host:80x", "[]:80"}) {
    EXPECT_FALSE(parse_endpoint(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace kvpush
