// What the loader says when the module is not there or is none. tests/contract has the transport itself.
#include "kvpush/transport/ucx/ucx.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

TEST(OpenUcx, IsUnavailableWithoutItsModule) {
  const auto opened = open_ucx({.module_path = "/nonexistent/libkvpush_ucx.so"});

  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
}

TEST(OpenUcx, RefusesALibraryThatIsNotItsModule) {
  const auto opened = open_ucx({.module_path = "libm.so.6"});

  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace kvpush
