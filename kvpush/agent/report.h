#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kvpush/base/instant.h"
#include "kvpush/control/control.h"
#include "kvpush/metrics/metrics.h"
#include "kvpush/metrics/transfer_log.h"
#include "kvpush/protocol/command.h"
#include "kvpush/protocol/consumer.h"
#include "kvpush/protocol/producer.h"

namespace kvpush {

// The engine took the event of a received transfer.
struct SeenByEngine {
  std::uint64_t record = 0;  // of the transfer log
  Instant ended{};           // when the event was made
  Instant seen{};
};

// What one rank tells people and Prometheus of itself.
//
// Job: keeps the ended transfers, counts and measures them, renders transfers and metrics.
// Not here: serving them.
// Owner: AgentCore.
// Thread: agent role.
class Report {
 public:
  struct Wire {
    std::string transport;
    std::string wire;
  };
  Report();

  // The number of the record made of it; 0 if no transfer ends with it.
  std::uint64_t ended(const EngineEvent& event);
  void seen(const SeenByEngine& seen);

  // {"live": [...], "ended": [...]}, docs/directory.md.
  std::string transfers(const Producer& producer, const Consumer& consumer) const;
  // docs/metrics.md.
  std::string metrics(const Producer& producer, const Consumer& consumer, const ControlCounters& control,
                      const std::vector<Wire>& wires);

 private:
  Counter& receives(std::optional<ErrorCode> error);
  Counter& sends(std::optional<ErrorCode> error);
  std::uint64_t add(const ReceiveEnded& event);
  std::uint64_t add(const SendEnded& event);
  void observe(const ReceiveTimes& times, Instant delivered);
  // A counter of the registry follows one that a machine keeps.
  void follow(const char* name, const char* help, std::uint64_t total, const Labels& labels = {});
  void show(const std::vector<Wire>& wires);
  void level(const char* name, const char* help, std::size_t value, const Labels& labels = {});

  Registry registry_;
  TransferLog log_;
  std::vector<Wire> wires_;  // shown last
  Histogram& receive_seconds_;
  Histogram& early_seconds_;
  Histogram& exposed_seconds_;
  Histogram& seen_seconds_;
  Histogram& send_seconds_;
  Histogram& write_seconds_;
  Histogram& receive_bytes_;
};

}  // namespace kvpush
