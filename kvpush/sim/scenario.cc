#include "kvpush/sim/scenario.h"

#include <algorithm>

#include <fmt/format.h>

#include "kvpush/base/random.h"

namespace kvpush::sim {

namespace {

constexpr std::array<std::string_view, kTroubleCount> kNames{
    "delay",         "cut",           "partition", "late-write",   "failed-write", "lost-peer", "full",
    "kill-producer", "kill-consumer", "stop",      "stop-at-post", "leave",        "drift",     "directory-down",
    "abort",         "cancel",        "decline",   "unmatched",    "rival",        "retry"};
constexpr std::string_view kNone = "none";

}  // namespace

std::string_view trouble_name(Trouble trouble) {
  return kNames[static_cast<std::size_t>(trouble)];
}

Scenario Scenario::make(std::uint64_t seed) {
  Random random(seed * 2 + 1);
  Scenario scenario{.seed = seed};
  scenario.transfers = static_cast<std::uint32_t>(20 + random.below(100));
  scenario.incidents = static_cast<std::uint32_t>(random.below(scenario.transfers));
  scenario.producers = static_cast<std::uint32_t>(1 + random.below(3));
  scenario.consumers = static_cast<std::uint32_t>(1 + random.below(3));
  const std::uint64_t one_in = 1 + random.below(4);  // 1: everything at once
  for (bool& allowed : scenario.allowed) allowed = random.below(one_in) == 0;
  return scenario;
}

std::string Scenario::flags() const {
  std::string names;
  for (std::size_t index = 0; index < kTroubleCount; ++index) {
    if (!allowed[index]) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ",", kNames[index]);
  }
  return fmt::format("--seed {} --transfers {} --incidents {} --producers {} --consumers {} --troubles={}", seed,
                     transfers, incidents, producers, consumers, names.empty() ? kNone : names);
}

Result<Troubles> parse_troubles(std::string_view text) {
  Troubles troubles{};
  if (text == kNone) return troubles;
  while (!text.empty()) {
    const std::string_view name = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), name.size() + 1));
    const auto found = std::ranges::find(kNames, name);
    if (found == kNames.end()) return fail(ErrorCode::kBadParams, "no trouble has that name");
    troubles[static_cast<std::size_t>(found - kNames.begin())] = true;
  }
  return troubles;
}

}  // namespace kvpush::sim
