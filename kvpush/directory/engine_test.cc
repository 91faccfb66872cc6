#include "kvpush/directory/engine.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kvpush/base/limits.h"

namespace kvpush {
namespace {

Plane plane(std::string layer, Component component) {
  return {.layer = std::move(layer),
          .component = component,
          .dtype = "bfloat16",
          .element_bytes = 2,
          .block_tokens = 128,
          .block_count = 100,
          .heads = {0, 3, 3},
          .base = 4096,
          .block_stride_bytes = 98304,
          .head_stride_bytes = 32768,
          .token_stride_bytes = 128,
          .inner_bytes = 128};
}

RankDocument document(std::uint32_t rank = 0, std::uint32_t rank_count = 1) {
  const RankLayout layout{{plane("a", Component::kKey), plane("a", Component::kValue), plane("b", Component::kKey)}};
  return {.engine_id = "prefill \"1\"",
          .incarnation = {0x00fedcba98765432},
          .version = "0.1.0",
          .protocol = 1,
          .rank = rank,
          .rank_count = rank_count,
          .control = {"10.0.0.1", 4000},
          .http = {"::1", 4001},
          .planes = plane_kinds(layout)};
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in " << text;
  return text.replace(at, from.size(), to);
}

TEST(PlaneKinds, GatherLayersThatLookAlike) {
  const std::vector<PlaneKind> kinds = document().planes;

  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0].layers, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(kinds[1].component, Component::kValue);
  EXPECT_EQ(kinds[1].layers, std::vector<std::string>{"a"});
}

TEST(RankDocument, SurvivesItsText) {
  const Result<RankDocument> parsed = parse_rank(to_json(document()));
  ASSERT_TRUE(parsed) << to_json(document());
  EXPECT_EQ(*parsed, document());
}

TEST(RankDocument, RefusesFieldsThatAreMissingOrOutsideTheirBounds) {
  const std::string good = to_json(document());
  const std::pair<std::string, std::string> changes[] = {
      {R"("rank":0)", R"("rank":-1)"},
      {R"("rank":0)", R"("rank":0.5)"},
      {R"("rank":0)", R"("rank":4294967296)"},
      {R"("rank":0)", R"("rang":0)"},
      {R"("port":4000)", R"("port":0)"},
      {R"("port":4000)", R"("port":65536)"},
      {R"("port":4000)", R"("port":"4000")"},
      {R"("host":"10.0.0.1")", R"("host":"")"},
      {R"("00fedcba98765432")", R"("0xfedcba98765432")"},
      {R"("00fedcba98765432")", R"("fe")"},
      {R"("component":"key")", R"("component":"keys")"},
      {R"("total":3)", R"("total":0)"},
      {R"(["a","b"])", R"(["a",7])"},
      {R"(["a","b"])", R"({"a":1})"},
      {R"("control":{)", R"("control":7,"other":{)"},
      {R"("0.1.0")", "\"" + std::string(65, '1') + "\""},
  };
  for (const auto& [from, to] : changes) {
    const Result<RankDocument> parsed = parse_rank(with(good, from, to));
    ASSERT_FALSE(parsed) << to;
    EXPECT_EQ(parsed.error().code, ErrorCode::kBadMessage) << to;
  }
}

TEST(RankDocument, RefusesEveryTruncationAndWhatIsNoObject) {
  const std::string good = to_json(document());
  for (std::size_t length = 0; length < good.size(); ++length) EXPECT_FALSE(parse_rank(good.substr(0, length)));
  for (const char* text : {"null", "[]", "7", "\"x\"", "{}"}) EXPECT_FALSE(parse_rank(text)) << text;
  EXPECT_FALSE(parse_rank(std::string(1000, '[')));
  EXPECT_FALSE(parse_rank(good + std::string(kDocumentBytesMax, ' ')));
}

TEST(RankDocument, IgnoresFieldsThatItDoesNotKnow) {
  EXPECT_TRUE(parse_rank(with(to_json(document()), "{", R"({"later":[1,{"x":null}],)")));
}

TEST(EngineDocument, SurvivesItsTextWithRanksInOrder) {
  RankDocument second = document(1, 2);
  second.incarnation = {7};
  const Result<EngineDocument> engine = gather_ranks({second, document(0, 2)});
  ASSERT_TRUE(engine);

  const Result<EngineDocument> parsed = parse_engine(to_json(*engine));

  ASSERT_TRUE(parsed) << to_json(*engine);
  EXPECT_EQ(*parsed, *engine);
  EXPECT_EQ(parsed->incarnation(), document().incarnation);
  EXPECT_EQ(parsed->ranks[1].incarnation, Incarnation{7});
}

TEST(EngineDocument, RefusesRanksThatAreNoWholeEngine) {
  RankDocument stranger = document(1, 2);
  stranger.engine_id = "another";
  EXPECT_FALSE(gather_ranks({}));
  EXPECT_FALSE(gather_ranks({document(0, 2)}));
  EXPECT_FALSE(gather_ranks({document(1, 1)}));
  EXPECT_FALSE(gather_ranks({document(0, 2), document(0, 2)}));
  EXPECT_FALSE(gather_ranks({document(0, 2), stranger}));
  std::vector<RankDocument> many(kRanksMax + 1, document(0, kRanksMax + 1));
  for (std::uint32_t rank = 0; rank < many.size(); ++rank) many[rank].rank = rank;
  EXPECT_FALSE(gather_ranks(std::move(many)));
}

TEST(EngineDocument, RefusesAnEngineWithoutRanks) {
  const std::string good = to_json(*gather_ranks({document()}));
  EXPECT_FALSE(parse_engine(with(good, R"("ranks":[)", R"("ranks":[],"others":[)")));
  EXPECT_FALSE(parse_engine(to_json(document())));
}

}  // namespace
}  // namespace kvpush
