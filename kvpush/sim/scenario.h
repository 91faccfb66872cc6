// What one simulated run is: a seed, and how much of what the seed would bring is left in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/base/error.h"

namespace kvpush::sim {

// What goes wrong, or happens in an order that nobody wishes for.
enum class Trouble : std::uint8_t {
  // Of the network.
  kDelay,      // a message, and those behind it, take longer than a lease
  kCut,        // a connection ends, with or without what is under way
  kPartition,  // nothing passes between two engines for a time, and nobody hears that it ended
  // Of the data path.
  kLateWrite,
  kFailedWrite,    // its error is reported; its bytes may land later
  kLostPeer,       // one side's endpoint fails
  kFullTransport,  // takes no writes for a time
  // Of processes.
  kKillProducer,
  kKillConsumer,
  kStop,        // SIGSTOP, and on it goes
  kStopAtPost,  // the same between a check and the post that it allowed
  kLeave,       // drains, ends, starts again
  kDrift,       // clocks begin anywhere and run at their own speed
  kDirectoryDown,
  // Of engines.
  kAbort,      // the consumer's engine, at any time
  kCancel,     // the producer's engine, at any time: preemption, abort
  kDecline,    // a rank needs nothing of it
  kUnmatched,  // one leg never comes
  kRival,      // two consumer engines want one transfer
  kRetry,      // the consumer's engine asks again under the same name
};
inline constexpr std::size_t kTroubleCount = 20;

std::string_view trouble_name(Trouble trouble);  // "cut", "late-write", ...

// Producers, and consumers; their names are letters.
inline constexpr std::uint32_t kEnginesMax = 8;

using Troubles = std::array<bool, kTroubleCount>;  // by Trouble

// All that a run depends on.
struct Scenario {
  std::uint64_t seed = 1;
  std::uint32_t transfers = 0;
  std::uint32_t incidents = 0;  // of network, data path and processes; what happens to single messages is not counted
  std::uint32_t producers = 1;  // engines
  std::uint32_t consumers = 1;
  Troubles allowed{};

  // What the seed chooses: some kinds of trouble, so that each run is bad in its own way.
  static Scenario make(std::uint64_t seed);
  bool allows(Trouble trouble) const { return allowed[static_cast<std::size_t>(trouble)]; }
  // As flags of kvpush-sim.
  std::string flags() const;
};

// "cut,stop", or "none". kBadParams names what is no trouble's name.
Result<Troubles> parse_troubles(std::string_view text);

}  // namespace kvpush::sim
