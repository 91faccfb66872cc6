// What the loader says when the module is not there or is none. tests/contract has the transport itself.
#include "kvpush/transport/ucx/ucx.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <map>
#include <vector>

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

TEST(OpenUcx, LeavesTheSignalsAndTheCodeOfTheProcessAlone) {
  const auto handlers = [] {
    std::map<int, void (*)(int)> found;
    for (int number = 1; number < SIGRTMIN; ++number) {
      struct sigaction action{};
      if (sigaction(number, nullptr, &action) == 0) found[number] = action.sa_handler;
    }
    return found;
  };
  const auto code = [] {
    const auto* first = reinterpret_cast<const unsigned char*>(dlsym(RTLD_NEXT, "munmap"));
    return std::vector<unsigned char>(first, first + 16);
  };
  const auto handlers_before = handlers();
  const auto code_before = code();

  const auto opened = open_ucx({.module_path = KVPUSH_UCX_MODULE});
  if (!opened) GTEST_SKIP() << opened.error().what;

  EXPECT_EQ(handlers(), handlers_before);
  EXPECT_EQ(code(), code_before);
  EXPECT_EQ(std::getenv("UCX_HANDLE_ERRORS"), nullptr) << "nor does the environment keep what we set";
}

}  // namespace
}  // namespace kvpush
