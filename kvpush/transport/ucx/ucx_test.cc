// What the loader says when the module is not there or is none. tests/contract has the transport itself.
#include "kvpush/transport/ucx/ucx.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <map>

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

TEST(OpenUcx, LeavesTheSignalsOfTheProcessAlone) {
  const auto handlers = [] {
    std::map<int, void (*)(int)> found;
    for (int number = 1; number < SIGRTMIN; ++number) {
      struct sigaction action{};
      if (sigaction(number, nullptr, &action) == 0) found[number] = action.sa_handler;
    }
    return found;
  };
  const auto before = handlers();

  const auto opened = open_ucx({.module_path = KVPUSH_UCX_MODULE});
  if (!opened) GTEST_SKIP() << opened.error().what;

  EXPECT_EQ(handlers(), before);
}

}  // namespace
}  // namespace kvpush
