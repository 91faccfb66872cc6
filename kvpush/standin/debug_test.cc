#include "kvpush/standin/debug.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

using namespace std::chrono_literals;

TEST(DebugCall, IsReadWithItsNumbers) {
  EXPECT_TRUE(std::holds_alternative<DebugDie>(*read_debug_call("die", "")));
  EXPECT_TRUE(std::holds_alternative<DebugStop>(*read_debug_call("stop", "")));
  EXPECT_EQ(std::get<DebugRefuse>(*read_debug_call("refuse", R"({"count": 3})")).count, 3u);
  EXPECT_EQ(std::get<DebugDelay>(*read_debug_call("delay", R"({"milliseconds": 250})")).time, 250ms);
  const auto corrupt = std::get<DebugCorrupt>(*read_debug_call("corrupt", R"({"block": 7, "offset": 9})"));
  EXPECT_EQ(corrupt.block, BlockId{7});
  EXPECT_EQ(corrupt.offset, 9u);
}

TEST(DebugCall, IsRefusedWithoutTheNumbersItNeeds) {
  for (const char* body : {"", "[]", "{}", R"({"count": -1})", R"({"count": "3"})", R"({"count": 1.5})"}) {
    EXPECT_FALSE(read_debug_call("refuse", body)) << body;
  }
  EXPECT_FALSE(read_debug_call("delay", R"({"milliseconds": 3600001})"));
  EXPECT_FALSE(read_debug_call("corrupt", R"({"block": 4294967296, "offset": 0})"));
  EXPECT_FALSE(read_debug_call("corrupt", R"({"block": 1})"));
}

}  // namespace
}  // namespace kvpush
