// What the loader says when NIXL is not there, and how its options are written. tests/contract has the transport
// itself.
#include "kvpush/transport/nixl/nixl.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kvpush/transport/process_state.h"

namespace kvpush {
namespace {

TEST(OpenNixl, IsUnavailableWithoutItsLibrary) {
  const auto opened = open_nixl({.folder = "/nonexistent"});

  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
}

TEST(OpenNixl, IsUnavailableWithoutThePlugin) {
  const auto opened = open_nixl({.plugin = "PIGEON", .folder = KVPUSH_NIXL_TEST_DIR});

  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
}

TEST(OpenNixl, LeavesTheSignalsAndTheCodeOfTheProcessAlone) {
  const ProcessState before = read_process_state();

  const auto opened = open_nixl({.folder = KVPUSH_NIXL_TEST_DIR});
  if (!opened) GTEST_SKIP() << opened.error().what;

  const ProcessState after = read_process_state();
  EXPECT_EQ(after.signal_handlers, before.signal_handlers);
  EXPECT_EQ(after.code, before.code);
  EXPECT_EQ(std::getenv("UCX_HANDLE_ERRORS"), nullptr) << "nor does the environment keep what we set";
}

TEST(FindNixl, LooksWhereTheEnvironmentSays) {
  ASSERT_EQ(setenv("KVPUSH_NIXL_DIR", "/nonexistent", 1), 0);
  EXPECT_FALSE(find_nixl());
  unsetenv("KVPUSH_NIXL_DIR");
}

TEST(ReadNixlOptions, TakesAPluginAndItsParameters) {
  const auto read = read_nixl_options("UCX;engine_config=TLS=tcp,NET_DEVICES=eth0;num_workers=2");

  ASSERT_TRUE(read);
  EXPECT_EQ(read->plugin, "UCX");
  const std::vector<std::pair<std::string, std::string>> expected = {{"engine_config", "TLS=tcp,NET_DEVICES=eth0"},
                                                                     {"num_workers", "2"}};
  EXPECT_EQ(read->parameters, expected);
  EXPECT_EQ(read_nixl_options("LIBFABRIC")->plugin, "LIBFABRIC");
  EXPECT_EQ(read_nixl_options("")->plugin, "UCX");
}

TEST(NixlParameters, KeepUcxToWiresBetweenHostsUnlessTheyAreNamed) {
  using Parameters = std::vector<std::pair<std::string, std::string>>;
  const auto with = [](const char* text) { return parameters_of(read_nixl_options(text).value()); };

  EXPECT_EQ(with(""), (Parameters{{"engine_config", "TLS=^sm"}}));
  EXPECT_EQ(with("UCX;num_workers=2"), (Parameters{{"num_workers", "2"}, {"engine_config", "TLS=^sm"}}));
  EXPECT_EQ(with("UCX;engine_config=MAX_RMA_RAILS=1"), (Parameters{{"engine_config", "MAX_RMA_RAILS=1,TLS=^sm"}}));
  EXPECT_EQ(with("UCX;engine_config=TLS=tcp"), (Parameters{{"engine_config", "TLS=tcp"}}));
  EXPECT_EQ(with("LIBFABRIC"), Parameters{});
}

TEST(DestroyingAnAgent, FencesOnlyWhereUcxHasNoSharedMemory) {
  const auto fences = [](const char* text, const char* environment = nullptr) {
    return destroying_fences(read_nixl_options(text).value(), environment);
  };

  EXPECT_TRUE(fences(""));
  EXPECT_TRUE(fences("UCX;engine_config=TLS=tcp"));
  EXPECT_TRUE(fences("", "rc,tcp,cuda_copy"));
  EXPECT_TRUE(fences("", "^cma,sm"));
  EXPECT_FALSE(fences("", "all"));
  EXPECT_FALSE(fences("", "^cma"));
  EXPECT_FALSE(fences("", "tcp,posix"));
  EXPECT_FALSE(fences("UCX;engine_config=TLS=all"));
  EXPECT_FALSE(fences("LIBFABRIC")) << "nothing has shown that";
}

TEST(ReadNixlOptions, RefusesWhatIsNoParameter) {
  for (const char* text : {"key=value", ";key=value", "UCX;key", "UCX;=value", "UCX;;"}) {
    EXPECT_EQ(read_nixl_options(text).error().code, ErrorCode::kBadConfig) << text;
  }
}

}  // namespace
}  // namespace kvpush
