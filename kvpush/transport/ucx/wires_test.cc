#include "kvpush/transport/ucx/wires.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

TEST(Wires, AreReadFromWhatUcxPrints) {
  EXPECT_EQ(wires_in("#\n# UCP endpoint \n#\n#               peer: <no debug data>\n"
                     "#                 lane[0]:  0:tcp/lo.0 md[0]                -> md[0]/tcp/sysdev[255] am am_bw#0 "
                     "keepalive wireup\n#\n#                  rma_bw: mds #\n"),
            std::set<std::string>{"tcp"});
}

TEST(Wires, AreThoseThatCarryData) {
  EXPECT_EQ(wires_in("# lane[0]:  5:rc_mlx5/mlx5_0:1.0 md[4]   -> md[4]/ib/sysdev[0] rma_bw#0 am am_bw#0\n"
                     "# lane[1]:  9:ud_mlx5/mlx5_0:1.0 md[4]   -> md[4]/ib/sysdev[0] wireup\n"),
            std::set<std::string>{"rc_mlx5"});
}

TEST(Wires, AreNoneInAnythingElse) {
  EXPECT_TRUE(wires_in("").empty());
  EXPECT_TRUE(wires_in("lane[0]: ->").empty());
  EXPECT_TRUE(wires_in("lane[0]: <unused>\n-> am\n").empty());
}

TEST(Wires, FenceOnlyWhereAnEndpointHasItsOwnTarget) {
  EXPECT_TRUE(close_fences("tcp"));
  EXPECT_TRUE(close_fences("rc_verbs"));
  EXPECT_FALSE(close_fences("dc_mlx5"));
  EXPECT_FALSE(close_fences("posix"));
}

}  // namespace
}  // namespace kvpush
