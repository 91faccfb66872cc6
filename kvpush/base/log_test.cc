#include "kvpush/base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace kvpush {
namespace {

TEST(Log, WritesOneLineWhateverThePeerSaid) {
  testing::internal::CaptureStderr();

  log(LogLevel::kError, "peer \"x\n2026-01-01 error kvpush: forged\r\x1b[2J\x7f\xc3\xa9\"");

  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_NE(line.find("x\\x0a2026-01-01 error kvpush: forged\\x0d\\x1b[2J\\x7f\xc3\xa9\""), std::string::npos) << line;
}

}  // namespace
}  // namespace kvpush
