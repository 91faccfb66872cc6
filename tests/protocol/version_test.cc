// Row C7 of the fault matrix, as far as versions go: two that differ tell each other at the session's start.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvpush/sim/world.h"

namespace kvpush::sim {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kOther = kProtocolVersion + 1;

class Version : public ::testing::Test {
 protected:
  Version() {
    world_.add({.name = "P", .role = World::Role::kProducer});
    world_.add({.name = "C"});
    world_.add({.name = "D"});
  }
  Rank& rank(const std::string& name) { return *world_.ranks_of(name).front(); }
  void TearDown() override { EXPECT_THAT(world_.faults(), IsEmpty()); }

  World world_{{}};
};

TEST_F(Version, C7OfAConsumerIsRefusedByTheProducerWhichNamesBothAndServesOthers) {
  world_.open(rank("C"), rank("P"));

  world_.say("C", "P", Hello{kOther, {}, {1}, {}, {}});

  EXPECT_THAT(world_.take_lines(),
              Contains(HasSubstr("Refused version_mismatch: the consumer speaks protocol version " +
                                 std::to_string(kOther) + ", the producer " + std::to_string(kProtocolVersion))));
  EXPECT_EQ(rank("P").producer->counters().sessions_refused, 1u);
  world_.receive(rank("D"), {"d1", "x1", {0, 8}}, "P");
  world_.deliver_all();
  EXPECT_EQ(rank("D").consumer->counters().sessions_started, 1u);
}

TEST_F(Version, C7OfAProducerEndsAtOnceWhatTheConsumerWantedOfIt) {
  world_.receive(rank("C"), {"r1", "x1", {0, 8}}, "P");
  world_.deliver_all("C");

  world_.say("P", "C", Welcome{kOther, {}, {}, {}});

  const std::vector<std::string> lines = world_.take_lines();
  EXPECT_THAT(lines, Contains(HasSubstr("the producer speaks protocol version " + std::to_string(kOther) +
                                        ", the consumer " + std::to_string(kProtocolVersion))));
  EXPECT_THAT(lines, Contains("C: r1 ended: version_mismatch"));
  world_.receive(rank("C"), {"r2", "x2", {0, 8}}, "P");
  EXPECT_THAT(world_.take_lines(), Contains("C: r2 ended: version_mismatch")) << "trying again would end the same way";
}

}  // namespace
}  // namespace kvpush::sim
