// What the loader says when the module is not there or is none. tests/contract has the transport itself.
#include "kvpush/transport/ucx/ucx.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kvpush/transport/process_state.h"

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
  const ProcessState before = read_process_state();

  const auto opened = open_ucx({.module_path = KVPUSH_UCX_MODULE});
  if (!opened) GTEST_SKIP() << opened.error().what;

  const ProcessState after = read_process_state();
  EXPECT_EQ(after.signal_handlers, before.signal_handlers);
  EXPECT_EQ(after.code, before.code);
  EXPECT_EQ(std::getenv("UCX_HANDLE_ERRORS"), nullptr) << "nor does the environment keep what we set";
}

}  // namespace
}  // namespace kvpush
