#include "kvpush/base/log.h"

#include <gtest/gtest.h>

#include <string>

#include "kvpush/base/log_limit.h"

namespace kvpush {
namespace {

TEST(Log, WritesOneLineWhateverThePeerSaid) {
  testing::internal::CaptureStderr();

  log(LogLevel::kError, "peer \"x\n2026-01-01 error kvpush: forged\r\x1b[2J\x7f\xc3\xa9\"");

  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_NE(line.find("x\\x0a2026-01-01 error kvpush: forged\\x0d\\x1b[2J\\x7f\xc3\xa9\""), std::string::npos) << line;
}

TEST(LogLimit, LetsSomeLinesThroughInEachPeriod) {
  LogLimit limit;
  const Instant begin{std::chrono::hours(1)};

  for (int i = 0; i < LogLimit::kLinesMax; ++i) EXPECT_TRUE(limit.take(begin + i * std::chrono::milliseconds(1)));

  EXPECT_FALSE(limit.take(begin + std::chrono::seconds(1)));
  EXPECT_FALSE(limit.take(begin + LogLimit::kPeriod - Duration{1}));
  EXPECT_TRUE(limit.take(begin + LogLimit::kPeriod));
}

}  // namespace
}  // namespace kvpush
