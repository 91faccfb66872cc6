#include "kvpush/layout/assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvpush {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Plane plane(const std::string& layer, Component component, HeadRange heads) {
  return {.layer = layer,
          .component = component,
          .dtype = "bfloat16",
          .element_bytes = 2,
          .block_tokens = 4,
          .block_count = 10,
          .heads = heads,
          .base = 1'000,
          .block_stride_bytes = 4'096,
          .head_stride_bytes = 8,
          .token_stride_bytes = 512,
          .inner_bytes = 8};
}

RankLayout keys(HeadRange heads) {
  return {{plane("layer0", Component::kKey, heads)}};
}

std::string mismatch(const RankLayout& consumer, const std::vector<RankLayout>& producers) {
  const auto assigned = assign(consumer, 0, producers);
  return assigned ? "assigned" : assigned.error().text;
}

TEST(Assign, GivesARankTheHeadsOfItsEqual) {
  const std::vector<RankLayout> producers{keys({0, 4, 8}), keys({4, 4, 8})};

  const auto assigned = assign(keys({4, 4, 8}), 1, producers);

  ASSERT_TRUE(assigned.has_value());
  const std::vector<Assignment> second_only{{}, {{.head_count = 4}}};
  EXPECT_EQ(*assigned, second_only);
}

// Shows D3.
TEST(Assign, GathersHeadsFromSeveralRanks) {
  const std::vector<RankLayout> producers{keys({0, 2, 8}), keys({2, 2, 8}), keys({4, 2, 8}), keys({6, 2, 8})};

  const auto assigned = assign(keys({1, 4, 8}), 0, producers);

  ASSERT_TRUE(assigned.has_value());
  const std::vector<Assignment> split{{{.producer_head = 1, .consumer_head = 0, .head_count = 1}},
                                      {{.producer_head = 0, .consumer_head = 1, .head_count = 2}},
                                      {{.producer_head = 0, .consumer_head = 3, .head_count = 1}},
                                      {}};
  EXPECT_EQ(*assigned, split);
}

// Shows D3.
TEST(Assign, TakesPartOfALargerRanksHeads) {
  const std::vector<RankLayout> producers{keys({0, 8, 8})};

  const auto assigned = assign(keys({6, 2, 8}), 3, producers);

  ASSERT_TRUE(assigned.has_value());
  EXPECT_EQ(assigned->front(), (Assignment{{.producer_head = 6, .consumer_head = 0, .head_count = 2}}));
}

// Shows D4.
TEST(Assign, SpreadsConsumersOverRanksThatHoldTheSameHeads) {
  const std::vector<RankLayout> producers(4, keys({0, 1, 1}));

  for (std::uint32_t consumer_rank = 0; consumer_rank < 8; ++consumer_rank) {
    const auto assigned = assign(keys({0, 1, 1}), consumer_rank, producers);

    ASSERT_TRUE(assigned.has_value());
    for (std::size_t i = 0; i < producers.size(); ++i) EXPECT_EQ((*assigned)[i].size(), i == consumer_rank % 4 ? 1 : 0);
  }
}

// Shows D5.
TEST(Assign, MatchesPlanesByLayerAndComponentWhereverTheyAre) {
  const HeadRange heads{0, 1, 1};
  const RankLayout consumer{{plane("a", Component::kKey, heads), plane("a", Component::kValue, heads),
                             plane("b", Component::kKey, heads), plane("b", Component::kValue, heads)}};
  const std::vector<RankLayout> producers{
      {{plane("b", Component::kValue, heads), plane("b", Component::kKey, heads)}},
      {{plane("a", Component::kValue, heads), plane("c", Component::kKey, heads), plane("a", Component::kKey, heads)}}};

  const auto assigned = assign(consumer, 0, producers);

  ASSERT_TRUE(assigned.has_value());
  const std::vector<Assignment> by_name{{{.producer_plane = 1, .consumer_plane = 2, .head_count = 1},
                                         {.producer_plane = 0, .consumer_plane = 3, .head_count = 1}},
                                        {{.producer_plane = 2, .consumer_plane = 0, .head_count = 1},
                                         {.producer_plane = 0, .consumer_plane = 1, .head_count = 1}}};
  EXPECT_EQ(*assigned, by_name);
}

TEST(Assign, AcceptsDifferentBlockSizesAndStrides) {
  RankLayout producer = keys({0, 2, 2});
  producer.planes[0].block_tokens = 8;
  producer.planes[0].token_stride_bytes = 16;

  EXPECT_TRUE(assign(keys({0, 2, 2}), 0, std::span(&producer, 1)).has_value());
}

TEST(Assign, NamesWhatNoProducerHas) {
  EXPECT_EQ(mismatch(keys({0, 2, 8}), {}), "No producer rank has layer \"layer0\", component key.");
  EXPECT_EQ(mismatch(keys({2, 4, 8}), {keys({0, 4, 8}), keys({6, 2, 8})}),
            "In layer \"layer0\", component key, no producer rank holds head 4 of the consumer's heads 2 to 5.");
}

// Shows C7.
TEST(Assign, NamesWhatDiffersAndBothValues) {
  const RankLayout consumer = keys({0, 2, 8});
  const auto with = [&](auto change) {
    std::vector<RankLayout> producers{consumer, consumer};
    change(producers[1].planes[0]);
    return mismatch(consumer, producers);
  };

  EXPECT_EQ(with([](Plane& p) { p.dtype = "float8"; }),
            "In layer \"layer0\", component key, the dtype is bfloat16 at the consumer and float8 at producer rank 1.");
  EXPECT_THAT(with([](Plane& p) { p.element_bytes = 4; }),
              AllOf(HasSubstr("element size"), HasSubstr("is 2 at"), HasSubstr("and 4 at")));
  EXPECT_THAT(with([](Plane& p) { p.inner_bytes = 16; }), AllOf(HasSubstr("is 8 at"), HasSubstr("and 16 at")));
  EXPECT_THAT(with([](Plane& p) { p.heads.total = 16; }), AllOf(HasSubstr("heads is 8 at"), HasSubstr("and 16 at")));
}

class ValidateAssignment : public testing::Test {
 protected:
  // Producer heads 2 to 5 and consumer heads 4 to 7 of 8, keys and values: heads 4 and 5 are on both.
  RankLayout producer_{{plane("layer0", Component::kKey, {2, 4, 8}), plane("layer0", Component::kValue, {2, 4, 8})}};
  RankLayout consumer_{{plane("layer0", Component::kKey, {4, 4, 8}), plane("layer0", Component::kValue, {4, 4, 8})}};

  bool accepts(const Assignment& assignment) {
    const Result<void> valid = validate(assignment, producer_, consumer_);
    EXPECT_TRUE(valid || valid.error().code == ErrorCode::kLayoutMismatch);
    return valid.has_value();
  }
  static constexpr std::uint32_t kMax = 0xffffffff;
};

TEST_F(ValidateAssignment, AcceptsHeadsThatBothHave) {
  EXPECT_TRUE(accepts({}));
  EXPECT_TRUE(accepts({{0, 0, 2, 0, 2}, {1, 1, 2, 0, 1}, {1, 1, 3, 1, 1}}));
}

TEST_F(ValidateAssignment, RefusesPlanesThatDoNotExistOrDiffer) {
  EXPECT_FALSE(accepts({{2, 0, 2, 0, 2}}));
  EXPECT_FALSE(accepts({{0, kMax, 2, 0, 2}}));
  EXPECT_FALSE(accepts({{0, 1, 2, 0, 2}})) << "keys to values";
  consumer_.planes[0].inner_bytes = 16;
  EXPECT_FALSE(accepts({{0, 0, 2, 0, 2}}));
}

TEST_F(ValidateAssignment, RefusesHeadsThatDoNotExistOrDiffer) {
  EXPECT_FALSE(accepts({{0, 0, 2, 0, 0}})) << "no heads";
  EXPECT_FALSE(accepts({{0, 0, 2, 0, 3}})) << "past the producer's";
  EXPECT_FALSE(accepts({{0, 0, 2, 0, kMax}}));
  EXPECT_FALSE(accepts({{0, 0, kMax, 0, 1}}));
  EXPECT_FALSE(accepts({{0, 0, 2, 1, 1}})) << "different heads of the model";
}

TEST_F(ValidateAssignment, RefusesToWriteAHeadTwice) {
  EXPECT_FALSE(accepts({{0, 0, 3, 1, 1}, {0, 0, 2, 0, 2}}));
  EXPECT_FALSE(accepts({{0, 0, 2, 0, 1}, {1, 1, 2, 0, 1}, {0, 0, 2, 0, 1}}));
}

}  // namespace
}  // namespace kvpush
