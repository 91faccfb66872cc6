#include "kvpush/base/utf8.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

TEST(Utf8, KeepsWhatIsText) {
  for (const char* text : {"", "a b", "\n", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    EXPECT_EQ(to_utf8(text), text);
  }
}

TEST(Utf8, ReplacesEachByteThatIsNone) {
  EXPECT_EQ(to_utf8("a\xff"), "a\xef\xbf\xbd");
  EXPECT_EQ(to_utf8("\xe2\x82"), "\xef\xbf\xbd\xef\xbf\xbd");                  // cut
  EXPECT_EQ(to_utf8("\xc0\x80x"), "\xef\xbf\xbd\xef\xbf\xbdx");                // overlong
  EXPECT_EQ(to_utf8("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // half of a pair
}

}  // namespace
}  // namespace kvpush
