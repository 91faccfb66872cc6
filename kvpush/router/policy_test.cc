#include "kvpush/router/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvpush {
namespace {

using testing::ElementsAre;

TEST(RoundRobin, TakesEachListInItsOwnTurn) {
  RoundRobin policy(2, 3);

  std::vector<ServerPair> chosen;
  for (int i = 0; i < 7; ++i) chosen.push_back(policy.next());

  EXPECT_THAT(chosen, ElementsAre(ServerPair{0, 0}, ServerPair{1, 1}, ServerPair{0, 2}, ServerPair{1, 0},
                                  ServerPair{0, 1}, ServerPair{1, 2}, ServerPair{0, 0}));
}

TEST(RoundRobin, StaysWithTheOnlyServers) {
  RoundRobin policy(1, 1);

  policy.next();

  EXPECT_EQ(policy.next(), (ServerPair{0, 0}));
}

TEST(RoundRobinDeathTest, NeedsServersOfBothKinds) {
  EXPECT_DEATH(RoundRobin(0, 1), "servers of both kinds");
  EXPECT_DEATH(RoundRobin(1, 0), "servers of both kinds");
}

}  // namespace
}  // namespace kvpush
