// kvpush-sim: clusters of engines on virtual time, from a seed. See docs/simulator.md.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/flags.h"
#include "kvpush/base/check.h"
#include "kvpush/base/clock.h"
#include "kvpush/base/random.h"
#include "kvpush/sim/scenario.h"
#include "kvpush/sim/shrink.h"
#include "kvpush/sim/simulation.h"

namespace {

using namespace kvpush::sim;

constexpr std::chrono::seconds kProgressEvery{30};

struct Flags {
  std::optional<std::uint64_t> seed{};
  std::optional<std::uint32_t> transfers{};
  std::optional<std::uint32_t> incidents{};
  std::optional<std::uint32_t> producers{};
  std::optional<std::uint32_t> consumers{};
  std::optional<std::string> troubles{};
  bool shrinks = false;
  std::string seeds{};
  std::uint64_t minutes = 0;
};

// What a failed check of the protocol prints too, since it ends the process: how to see the run again.
std::array<char, 512> replay{};

void print_replay(int) {
  const std::string_view text(replay.data());
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

void set_replay(const Scenario& scenario) {
  replay = {};
  fmt::format_to_n(replay.data(), replay.size() - 1, "kvpush-sim {}\n", scenario.flags());
}

// In a process of its own, since it may fail a check.
bool fails(const Scenario& scenario) {
  const pid_t child = fork();
  KVPUSH_CHECK(child >= 0, "the machine has room for a second process");
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    close(STDERR_FILENO);  // the findings of each try are not printed
    Simulation simulation(scenario);
    simulation.run();
    _exit(simulation.faults().empty() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status != 0;
}

int shrink_and_print(const Scenario& scenario) {
  if (!fails(scenario)) {
    fmt::print("it does not fail\n");
    return 0;
  }
  fmt::print("the smallest that fails:\n  kvpush-sim {}\n", shrink(scenario, fails).flags());
  return 1;
}

// One run, with all that happens in it.
int replay_one(const Scenario& scenario) {
  fmt::print("{}\n", scenario.flags());
  Simulation simulation(scenario, [](const std::string& line) { fmt::print("{}\n", line); });
  simulation.run();
  for (const std::string& fault : simulation.faults()) fmt::print("FAULT {}\n", fault);
  return simulation.faults().empty() ? 0 : 1;
}

void print_figures(const Figures& figures, std::uint64_t seeds) {
  fmt::print("{} seeds, {} transfers, {} requests complete and {} failed, {} messages, {} writes\n", seeds,
             figures.transfers, figures.requests_complete, figures.requests_failed, figures.messages, figures.writes);
  std::fflush(stdout);
}

// Seeds from `first` on, until `last` or the time is over.
int run_seeds(std::uint64_t first, std::uint64_t last, std::optional<kvpush::Instant> end) {
  Figures figures;
  std::uint64_t seeds = 0;
  kvpush::Instant progress = kvpush::read_clock() + kProgressEvery;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const Scenario scenario = Scenario::make(seed);
    set_replay(scenario);
    Simulation simulation(scenario);
    simulation.run();
    figures += simulation.figures();
    ++seeds;
    if (!simulation.faults().empty()) {
      for (const std::string& fault : simulation.faults()) fmt::print("FAULT {}\n", fault);
      fmt::print("again, with all that happens:\n  kvpush-sim {}\n", scenario.flags());
      shrink_and_print(scenario);
      return 1;
    }
    const kvpush::Instant now = kvpush::read_clock();
    if (end && now >= *end) break;
    if (now < progress) continue;
    print_figures(figures, seeds);
    progress = now + kProgressEvery;
  }
  print_figures(figures, seeds);
  for (std::size_t index = 0; index < kTroubleCount; ++index) {
    fmt::print("  {} {}\n", trouble_name(static_cast<Trouble>(index)), figures.troubles[index]);
  }
  return 0;
}

int refuse(const std::string& flag, const char* what) {
  fmt::print(stderr, "kvpush-sim: {}: {}\n", flag, what);
  return 2;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "1..1000"
std::optional<std::pair<std::uint64_t, std::uint64_t>> parse_range(std::string_view text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const auto first = parse_number(text.substr(0, dots));
  const auto last = parse_number(text.substr(dots + 2));
  if (!first || !last || *first > *last) return std::nullopt;
  return std::pair(*first, *last);
}

int run(const Flags& flags) {
  if (flags.minutes > 0) {
    // The upper half of the numbers: none of those that tests use.
    const std::uint64_t first = kvpush::read_entropy() >> 16 | std::uint64_t{1} << 47;
    return run_seeds(first, ~std::uint64_t{0}, kvpush::read_clock() + std::chrono::minutes{flags.minutes});
  }
  if (!flags.seeds.empty()) {
    const auto range = parse_range(flags.seeds);
    if (!range) return refuse("--seeds", "is written FIRST..LAST");
    return run_seeds(range->first, range->second, std::nullopt);
  }
  Scenario scenario = Scenario::make(flags.seed.value_or(1));
  scenario.transfers = flags.transfers.value_or(scenario.transfers);
  scenario.incidents = flags.incidents.value_or(scenario.incidents);
  scenario.producers = flags.producers.value_or(scenario.producers);
  scenario.consumers = flags.consumers.value_or(scenario.consumers);
  if (flags.troubles) {
    const auto allowed = parse_troubles(*flags.troubles);
    if (!allowed) return refuse("--troubles", allowed.error().what);
    scenario.allowed = *allowed;
  }
  return flags.shrinks ? shrink_and_print(scenario) : replay_one(scenario);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs clusters of prefill and decode engines on virtual time, from a seed, with whatever can go wrong, "
      "and checks that no byte is ever wrong and no request is ever stuck.");
  Flags flags;
  const CLI::Range engines(1U, kEnginesMax);
  auto* seed = app.add_option("--seed", flags.seed, "one run, printing all that happens");
  auto* seeds = app.add_option("--seeds", flags.seeds, "FIRST..LAST: many runs; the first that fails is made small");
  auto* minutes = app.add_option("--minutes", flags.minutes, "runs that nobody has seen before, for so long")
                      ->check(CLI::PositiveNumber);
  seed->excludes(seeds, minutes);
  seeds->excludes(minutes);
  app.add_flag("--shrink", flags.shrinks, "with --seed: leaves out what is not needed to fail")->needs(seed);
  app.add_option("--transfers", flags.transfers, "with --seed: only the first of them")->needs(seed);
  app.add_option("--incidents", flags.incidents, "with --seed: only the first of them")->needs(seed);
  app.add_option("--producers", flags.producers, "with --seed: prefill engines")->needs(seed)->check(engines);
  app.add_option("--consumers", flags.consumers, "with --seed: decode engines")->needs(seed)->check(engines);
  app.add_option("--troubles", flags.troubles, "with --seed: only these kinds, with commas between")->needs(seed);
  if (const auto status = kvpush::parse_flags(app, argc, argv, "kvpush-sim")) return *status;
  if (!*seed && !*seeds && !*minutes) return refuse("--seed, --seeds or --minutes", "one of them is needed");
  std::signal(SIGABRT, print_replay);
  return run(flags);
}
