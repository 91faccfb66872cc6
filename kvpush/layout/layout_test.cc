#include "kvpush/layout/layout.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kvpush/base/limits.h"

namespace kvpush {
namespace {

constexpr std::uint64_t kMax = ~std::uint64_t{0};

// Two heads of 8 bytes, blocks of 4 tokens: tokens outside, heads inside.
Plane plane() {
  return {.layer = "layer0",
          .component = Component::kKey,
          .dtype = "bfloat16",
          .element_bytes = 2,
          .block_tokens = 4,
          .block_count = 10,
          .heads = {2, 2, 8},
          .base = 1'000,
          .block_stride_bytes = 64,
          .head_stride_bytes = 8,
          .token_stride_bytes = 16,
          .inner_bytes = 8};
}

bool accepts(const std::function<void(Plane&)>& change) {
  RankLayout layout{{plane()}};
  change(layout.planes[0]);
  const Result<void> valid = validate(layout);
  EXPECT_TRUE(valid || valid.error().code == ErrorCode::kLayoutMismatch);
  return valid.has_value();
}

void set_strides(Plane& plane, std::uint64_t block, std::uint64_t head, std::uint64_t token) {
  plane.block_stride_bytes = block;
  plane.head_stride_bytes = head;
  plane.token_stride_bytes = token;
}

TEST(Layout, AcceptsEveryWayToArrangeBlocksHeadsAndTokens) {
  EXPECT_TRUE(accepts([](Plane&) {})) << "tokens outside heads";
  EXPECT_TRUE(accepts([](Plane& p) { set_strides(p, 64, 32, 8); })) << "heads outside tokens";
  EXPECT_TRUE(accepts([](Plane& p) { set_strides(p, 128, 64, 8); })) << "values between the heads";
  EXPECT_TRUE(accepts([](Plane& p) { set_strides(p, 12 * 64, 8, 16); })) << "other layers between the blocks";
  EXPECT_TRUE(accepts([](Plane& p) { set_strides(p, 100, 8, 20); })) << "padded tokens and pages";
  EXPECT_TRUE(accepts([](Plane& p) { set_strides(p, 8, 320, 80); })) << "blocks innermost";
}

TEST(Layout, AcceptsKeysAndValuesThatInterleave) {
  RankLayout layout{{plane(), plane()}};
  layout.planes[1].component = Component::kValue;
  layout.planes[1].base += 32;
  for (Plane& p : layout.planes) set_strides(p, 128, 64, 8);

  EXPECT_TRUE(validate(layout).has_value());
}

TEST(Layout, AcceptsAnyStrideAlongWhichThereIsOneElement) {
  EXPECT_TRUE(accepts([](Plane& p) {
    p.block_count = p.block_tokens = p.heads.count = 1;
    set_strides(p, 0, kMax, kMax);
  }));
}

TEST(Layout, RefusesElementsOfAPlaneThatOverlap) {
  EXPECT_FALSE(accepts([](Plane& p) { set_strides(p, 63, 8, 16); })) << "blocks";
  EXPECT_FALSE(accepts([](Plane& p) { set_strides(p, 64, 7, 16); })) << "heads";
  EXPECT_FALSE(accepts([](Plane& p) { set_strides(p, 64, 8, 15); })) << "tokens";
  EXPECT_FALSE(accepts([](Plane& p) { set_strides(p, 0, 8, 16); })) << "all blocks in one place";
  EXPECT_FALSE(accepts([](Plane& p) { set_strides(p, 64, 16, 16); })) << "a head on the next token";
}

TEST(Layout, RefusesZeroSizes) {
  EXPECT_FALSE(accepts([](Plane& p) { p.element_bytes = 0; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.inner_bytes = 0; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.block_tokens = 0; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.block_count = 0; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.heads = {0, 0, 8}; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.heads = {0, 0, 0}; }));
}

TEST(Layout, RefusesHeadsOutsideTheModels) {
  EXPECT_TRUE(accepts([](Plane& p) { p.heads = {6, 2, 8}; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.heads = {7, 2, 8}; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.heads = {0xffffffff, 2, 8}; })) << "the sum wraps around";
}

TEST(Layout, RefusesInnerBytesThatAreNotWholeElements) {
  EXPECT_FALSE(accepts([](Plane& p) { p.inner_bytes = 7; }));
}

TEST(Layout, RefusesUnknownComponentsAndGroups) {
  EXPECT_FALSE(accepts([](Plane& p) { p.component = Component{0}; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.component = Component{5}; }));
  EXPECT_TRUE(accepts([](Plane& p) { p.group = kGroupsMax - 1; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.group = kGroupsMax; }));
}

TEST(Layout, RefusesNamesThatNoMessageCouldCarry) {
  EXPECT_FALSE(accepts([](Plane& p) { p.layer.clear(); }));
  EXPECT_TRUE(accepts([](Plane& p) { p.layer = std::string(kLayerNameBytesMax, 'x'); }));
  EXPECT_FALSE(accepts([](Plane& p) { p.layer = std::string(kLayerNameBytesMax + 1, 'x'); }));
  EXPECT_TRUE(accepts([](Plane& p) { p.dtype = std::string(kDtypeBytesMax, 'x'); }));
  EXPECT_FALSE(accepts([](Plane& p) { p.dtype = std::string(kDtypeBytesMax + 1, 'x'); }));
}

TEST(Layout, RefusesAddressesPastTheLargest) {
  constexpr std::uint64_t kAddressMax = std::uint64_t{1} << 63;
  constexpr std::uint64_t kPlaneBytes = 640;
  EXPECT_TRUE(accepts([](Plane& p) { p.base = kAddressMax - kPlaneBytes; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.base = kAddressMax - kPlaneBytes + 1; }));
  EXPECT_FALSE(accepts([](Plane& p) { p.base = kMax; }));
  EXPECT_FALSE(accepts([](Plane& p) { set_strides(p, kMax, kMax, kMax); }));
  EXPECT_FALSE(accepts([](Plane& p) { p.inner_bytes = kMax - 1; }));
  EXPECT_FALSE(accepts([](Plane& p) {
    p.block_count = 3;
    p.block_stride_bytes = std::uint64_t{1} << 63;
  })) << "two such steps are none in 64 bits";
}

TEST(Layout, RefusesTokensLargerThanTwoGibibytes) {
  const auto large = [](std::uint64_t inner_bytes) {
    return accepts([inner_bytes](Plane& p) {
      p.heads = {0, 1, 1};
      p.inner_bytes = inner_bytes;
      set_strides(p, inner_bytes * 4, 0, inner_bytes);
    });
  };
  EXPECT_TRUE(large(std::uint64_t{1} << 31));
  EXPECT_FALSE(large((std::uint64_t{1} << 31) + 2));
}

TEST(Layout, RefusesAnUnusableNumberOfPlanes) {
  RankLayout layout;
  EXPECT_FALSE(validate(layout).has_value());
  for (std::size_t i = 0; i < kPlanesMax; ++i) {
    layout.planes.push_back(plane());
    layout.planes.back().layer = "layer" + std::to_string(i);
  }
  EXPECT_TRUE(validate(layout).has_value());
  layout.planes.push_back(plane());
  layout.planes.back().layer = "one more";
  EXPECT_FALSE(validate(layout).has_value());
}

TEST(Layout, RefusesOneComponentOfALayerTwice) {
  RankLayout layout{{plane(), plane(), plane()}};
  layout.planes[1].layer = "layer1";
  layout.planes[2].component = Component::kValue;
  EXPECT_TRUE(validate(layout).has_value());

  layout.planes[2].component = Component::kKey;

  EXPECT_FALSE(validate(layout).has_value());
}

TEST(Layout, RefusesDifferentBlockSizesWithinAGroup) {
  RankLayout layout{{plane(), plane()}};
  layout.planes[1].layer = "layer1";
  layout.planes[1].block_tokens = 2;
  EXPECT_FALSE(validate(layout).has_value());

  layout.planes[1].group = 1;

  EXPECT_TRUE(validate(layout).has_value());
}

TEST(Layout, ReachesFromAPlanesFirstByteToItsLast) {
  Plane padded = plane();
  set_strides(padded, 1'000, 8, 20);

  EXPECT_EQ(extent(plane()), (MemoryRange{1'000, 640}));
  EXPECT_EQ(extent(padded), (MemoryRange{1'000, 9 * 1'000 + 8 + 3 * 20 + 8}));
}

TEST(Layout, NamesItsComponents) {
  EXPECT_EQ(component_name(Component::kKey), "key");
  EXPECT_EQ(component_name(Component::kValue), "value");
  EXPECT_EQ(component_name(Component::kLatent), "latent");
  EXPECT_EQ(component_name(Component::kState), "state");
}

}  // namespace
}  // namespace kvpush
