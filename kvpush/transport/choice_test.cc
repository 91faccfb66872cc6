#include "kvpush/transport/choice.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace kvpush {
namespace {

TEST(TransportFactories, AreInOrderOfPreference) {
  EXPECT_EQ(transport_factories("auto").value().size(), 3u);
  const auto cma = transport_factories("cma").value();
  ASSERT_EQ(cma.size(), 1u);
  if (const auto opened = cma[0]()) {
    EXPECT_EQ((*opened)->name(), "cma");
  }
}

TEST(TransportFactories, OfNixlTakeAPlugin) {
  EXPECT_EQ(transport_factories("nixl").value().size(), 1u);
  EXPECT_EQ(transport_factories("nixl:LIBFABRIC").value().size(), 1u);
  EXPECT_EQ(transport_factories("nixl:UCX;nonsense").error().code, ErrorCode::kBadConfig);
}

TEST(TransportFactories, OfUcxAreRefusedByAProcessThatHasOpenedNixl) {
  setenv("KVPUSH_NIXL_DIR", KVPUSH_NIXL_TEST_DIR, 0);
  const auto nixl = transport_factories("nixl").value()[0]();
  if (!nixl) GTEST_SKIP() << nixl.error().what;

  const auto ucx = transport_factories("ucx").value()[0]();

  ASSERT_FALSE(ucx);
  EXPECT_EQ(ucx.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(std::string_view(ucx.error().what).find("NIXL"), std::string_view::npos) << ucx.error().what;
}

TEST(TransportFactories, RefuseAnUnknownWish) {
  EXPECT_EQ(transport_factories("carrier pigeon").error().code, ErrorCode::kBadConfig);
  EXPECT_EQ(transport_factories("").error().code, ErrorCode::kBadConfig);
}

TEST(TransportFactories, OfLoopbackShareANetworkWithTheirCopies) {
  const auto factories = transport_factories("loopback").value();
  const auto copies = factories;
  const auto a = factories[0]().value();
  const auto b = copies[0]().value();

  EXPECT_TRUE(a->connect(b->address()));
}

}  // namespace
}  // namespace kvpush
