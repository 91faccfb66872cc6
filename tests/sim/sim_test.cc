// Runs that are the same each time. tests/sim/CMakeLists.txt has those that must fail.
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvpush/sim/scenario.h"
#include "kvpush/sim/shrink.h"
#include "kvpush/sim/simulation.h"

namespace kvpush::sim {
namespace {

using ::testing::IsEmpty;

constexpr std::uint64_t kSeeds = KVPUSH_SEEDS;

std::vector<std::string> faults_of(const Scenario& scenario, Figures& figures) {
  Simulation simulation(scenario);
  simulation.run();
  figures += simulation.figures();
  return simulation.faults();
}

// Shows A1, A4, A5, A6, A7, A8, B1, B2, B9, B10, B11, B12, C3, C4.
TEST(Simulation, FindsNothingInItsFirstSeedsAlthoughEverythingGoesWrong) {
  Figures figures;

  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Scenario scenario = Scenario::make(seed);
    ASSERT_THAT(faults_of(scenario, figures), IsEmpty()) << "kvpush-sim " << scenario.flags();
  }

  for (std::size_t index = 0; index < kTroubleCount; ++index) {
    EXPECT_GT(figures.troubles[index], kSeeds / 4) << trouble_name(static_cast<Trouble>(index));
  }
  // Trouble must not be so great that nothing is ever transferred, or nothing ever fails.
  EXPECT_GT(figures.requests_complete, figures.transfers / 4);
  EXPECT_GT(figures.requests_failed, figures.transfers / 4);
}

TEST(Simulation, FindsNothingInSeedsThatOnceFoundSomething) {
  std::ifstream file("tests/sim/seeds.txt");
  ASSERT_TRUE(file.is_open());
  Figures figures;
  std::uint64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const Scenario scenario = Scenario::make(std::strtoull(line.c_str(), nullptr, 10));
    EXPECT_THAT(faults_of(scenario, figures), IsEmpty()) << "kvpush-sim " << scenario.flags();
    ++count;
  }
  EXPECT_GT(count, 0u);
}

TEST(Simulation, CompletesEveryRequestWhenNothingGoesWrongAndPoolsAreLargeEnough) {
  std::uint64_t count = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Scenario scenario = Scenario::make(seed);
    scenario.allowed = {};
    Figures figures;
    EXPECT_THAT(faults_of(scenario, figures), IsEmpty()) << "kvpush-sim " << scenario.flags();
    if (figures.refused > 0) continue;
    ++count;
    EXPECT_GE(figures.requests_complete, scenario.transfers) << "kvpush-sim " << scenario.flags();
    EXPECT_EQ(figures.requests_failed, 0u) << "kvpush-sim " << scenario.flags();
  }
  EXPECT_GE(count, kSeeds / 4);
}

TEST(Simulation, DoesTheSameEachTime) {
  const auto lines_of = [](const Scenario& scenario) {
    std::vector<std::string> lines;
    Simulation simulation(scenario, [&](const std::string& line) { lines.push_back(line); });
    simulation.run();
    return lines;
  };
  const Scenario scenario = Scenario::make(4);

  const std::vector<std::string> lines = lines_of(scenario);

  EXPECT_GT(lines.size(), 100u);
  EXPECT_EQ(lines, lines_of(scenario));
}

TEST(Simulation, DoesTheSameWhetherItIsWatchedOrNot) {
  Figures watched;
  Simulation simulation(Scenario::make(4), [](const std::string&) {});
  simulation.run();
  watched += simulation.figures();
  Figures unwatched;
  faults_of(Scenario::make(4), unwatched);

  EXPECT_EQ(watched.messages, unwatched.messages);
  EXPECT_EQ(watched.writes, unwatched.writes);
}

}  // namespace
}  // namespace kvpush::sim
