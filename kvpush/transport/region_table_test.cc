#include "kvpush/transport/region_table.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kvpush/transport/address.h"

namespace kvpush {
namespace {

constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();

TEST(RegionTable, RefusesRegionsThatOverlap) {
  RegionTable regions;
  ASSERT_TRUE(regions.add(100, 50));

  EXPECT_EQ(regions.add(149, 1).error().code, ErrorCode::kBadConfig);
  EXPECT_EQ(regions.add(90, 11).error().code, ErrorCode::kBadConfig);
  EXPECT_EQ(regions.add(90, 200).error().code, ErrorCode::kBadConfig);
  EXPECT_EQ(regions.add(110, 10).error().code, ErrorCode::kBadConfig);
  EXPECT_TRUE(regions.add(150, 1));
  EXPECT_TRUE(regions.add(90, 10));
}

TEST(RegionTable, RefusesEmptyAndWrappingRegions) {
  RegionTable regions;
  EXPECT_EQ(regions.add(100, 0).error().code, ErrorCode::kBadConfig);
  EXPECT_EQ(regions.add(kLast - 5, 7).error().code, ErrorCode::kBadConfig);
  EXPECT_EQ(regions.add(100, kLast).error().code, ErrorCode::kBadConfig);
}

TEST(RegionTable, FindsTheOneRegionThatHoldsAllBytes) {
  RegionTable regions;
  const RegionId high = regions.add(200, 50).value();
  const RegionId low = regions.add(150, 50).value();

  EXPECT_EQ(regions.holder(150, 50)->id, low);
  EXPECT_EQ(regions.holder(249, 1)->id, high);
  EXPECT_EQ(regions.holder(199, 2), nullptr) << "two neighbours are not one region";
  EXPECT_EQ(regions.holder(149, 1), nullptr);
  EXPECT_EQ(regions.holder(249, 2), nullptr);
  EXPECT_EQ(regions.holder(200, kLast), nullptr);
}

TEST(RegionTable, ForgetsARemovedRegionAndNeverReusesItsId) {
  RegionTable regions;
  const RegionId first = regions.add(100, 10).value();
  regions.remove(first);

  EXPECT_EQ(regions.find(first), nullptr);
  EXPECT_NE(regions.add(100, 10).value(), first);
}

TEST(RegionTable, IsFullAtItsBound) {
  RegionTable regions;
  for (std::size_t i = 0; i < kRegionsMax; ++i) ASSERT_TRUE(regions.add(i * 10, 10));
  EXPECT_EQ(regions.add(kRegionsMax * 10, 10).error().code, ErrorCode::kFull);
}

TEST(RegionTable, SurvivesTheAddress) {
  RegionTable regions;
  ASSERT_TRUE(regions.add(4096, 128));
  ASSERT_TRUE(regions.add(64, 32));
  AddressWriter writer("TESTADR1");
  put_regions(regions, writer);
  const std::vector<std::byte> bytes = writer.take();

  AddressReader reader(bytes, "TESTADR1");
  const RegionTable read = read_regions(reader).value();

  EXPECT_TRUE(reader.ended());
  ASSERT_EQ(read.all().size(), 2u);
  EXPECT_EQ(read.holder(64, 32)->id, RegionId{0});
  EXPECT_EQ(read.holder(4096, 128)->id, RegionId{1});
}

TEST(RegionTable, IsNotReadFromAListThatEndsEarlyOrOverlaps) {
  AddressWriter early("TESTADR1");
  early.put_u32(2);
  early.put_u64(4096);
  early.put_u64(128);
  AddressWriter overlapping("TESTADR1");
  overlapping.put_u32(2);
  for (int i = 0; i < 2; ++i) {
    overlapping.put_u64(4096);
    overlapping.put_u64(128);
  }

  for (AddressWriter* writer : {&early, &overlapping}) {
    const std::vector<std::byte> bytes = writer->take();
    AddressReader reader(bytes, "TESTADR1");
    EXPECT_EQ(read_regions(reader).error().code, ErrorCode::kBadMessage);
  }
}

TEST(AddressReader, RefusesAnyOtherBytes) {
  AddressWriter writer("TESTADR1");
  writer.put_u32(7);
  const std::vector<std::byte> good = writer.take();
  ASSERT_TRUE(AddressReader(good, "TESTADR1").ok());

  EXPECT_FALSE(AddressReader(good, "OTHERADR").ok());
  EXPECT_FALSE(AddressReader(std::vector<std::byte>(1u << 20), "TESTADR1").ok());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(AddressReader(std::span(good).first(size), "TESTADR1").ok()) << size << " bytes";
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{1};
    EXPECT_FALSE(AddressReader(bad, "TESTADR1").ok()) << "byte " << at;
  }
}

TEST(CheckDescriptors, RefusesBytesOutsideEitherSideAndIgnoresEmptyOnes) {
  RegionTable local;
  RegionTable remote;
  ASSERT_TRUE(local.add(1000, 100));
  ASSERT_TRUE(remote.add(5000, 100));

  const auto check = [&](Descriptor descriptor) { return check_descriptors({&descriptor, 1}, local, remote); };

  EXPECT_TRUE(check({1000, 5000, 100}));
  EXPECT_TRUE(check({0, 0, 0}));
  EXPECT_EQ(check({1001, 5000, 100}).error().code, ErrorCode::kOutOfRegion);
  EXPECT_EQ(check({1000, 5001, 100}).error().code, ErrorCode::kOutOfRegion);
  EXPECT_EQ(check({1000, 4999, 1}).error().code, ErrorCode::kOutOfRegion);
  EXPECT_EQ(check({1050, 5050, kLast}).error().code, ErrorCode::kOutOfRegion);
}

}  // namespace
}  // namespace kvpush
