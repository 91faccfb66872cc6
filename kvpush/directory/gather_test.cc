#include "kvpush/directory/gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvpush {
namespace {

std::unexpected<Error> silent() {
  return fail(ErrorCode::kTimeout, "silent");
}

TEST(GatherTransfers, NamesEachRankAndSaysWhichDidNotAnswer) {
  const std::string text = gather_transfers({{0, R"( {"live":[{"transfer_id":"t"}],"seconds":0.10})"},
                                             {1, silent()},
                                             {2, "no json"},
                                             {3, R"(["no object"])"},
                                             {4, "{}"}});

  EXPECT_EQ(text,
            R"([{"rank":0,"live":[{"transfer_id":"t"}],"seconds":0.10},{"rank":1,"error":"timeout"},)"
            R"({"rank":2,"error":"bad_message"},{"rank":3,"error":"bad_message"},{"rank":4,"error":"bad_message"}])");
}

TEST(GatherMetrics, WritesEachFamilyOnceAndLabelsEachSample) {
  const std::string one =
      "# HELP a Things.\n# TYPE a counter\na 1\n"
      "# HELP b Times.\n# TYPE b histogram\nb_bucket{le=\"1\"} 2\nb_sum 0.5\n";
  const std::string two =
      "# HELP b Times.\n# TYPE b histogram\nb_bucket{le=\"1\"} 3\nb_sum 0.7\n"
      "# HELP a Things.\n# TYPE a counter\na 4\n";

  EXPECT_EQ(gather_metrics({{0, one}, {1, two}}, ""),
            "# HELP a Things.\n# TYPE a counter\na{rank=\"0\"} 1\na{rank=\"1\"} 4\n"
            "# HELP b Times.\n# TYPE b histogram\nb_bucket{rank=\"0\",le=\"1\"} 2\nb_sum{rank=\"0\"} 0.5\n"
            "b_bucket{rank=\"1\",le=\"1\"} 3\nb_sum{rank=\"1\"} 0.7\n"
            "# HELP kvpush_rank_up Whether the rank answered the directory.\n# TYPE kvpush_rank_up gauge\n"
            "kvpush_rank_up{rank=\"0\"} 1\nkvpush_rank_up{rank=\"1\"} 1\n");
}

TEST(GatherMetrics, PutsTheDirectorysOwnSamplesBesideThoseOfItsRanks) {
  const std::string rank = "# HELP a Things.\n# TYPE a counter\na 1\n";
  const std::string own = rank + "# HELP c Others.\n# TYPE c counter\nc 2\n";

  EXPECT_THAT(gather_metrics({{0, rank}}, own),
              testing::StartsWith("# HELP a Things.\n# TYPE a counter\na{rank=\"0\"} 1\na 1\n"
                                  "# HELP c Others.\n# TYPE c counter\nc 2\n"));
}

TEST(GatherMetrics, SaysThatARankIsDown) {
  const std::string text = gather_metrics({{0, "a{} 1\n"}, {1, silent()}}, "");

  EXPECT_NE(text.find("a{rank=\"0\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("kvpush_rank_up{rank=\"0\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("kvpush_rank_up{rank=\"1\"} 0\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace kvpush
