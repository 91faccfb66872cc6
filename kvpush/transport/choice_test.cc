#include "kvpush/transport/choice.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

TEST(TransportFactories, AreInOrderOfPreference) {
  EXPECT_EQ(transport_factories("auto").value().size(), 2u);
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
