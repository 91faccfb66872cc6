#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "kvpush/agent/report.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/mailbox.h"
#include "kvpush/protocol/command.h"

namespace kvpush {

// The two ways between the engine's threads and the agent's.
//
// Job: carries commands in and events out, and keeps the sum of both bounded.
// Owner: Agent; the agent thread borrows it.
// Thread: any (synchronised by its mailboxes).
// Invariant: an event always has room: a command that will cause one is taken only if it has.
class Exchange {
 public:
  struct Event {
    EngineEvent event;
    std::uint64_t record = 0;
  };

  // Engine side. False, and nothing taken, when full or closed.
  bool submit(std::vector<Command>& commands);
  void take_events(std::vector<EngineEvent>& into, Instant now);
  int event_fd() const { return events_.fd(); }

  // Agent side.
  void take_commands(std::vector<Command>& into) { commands_.take(into); }
  void close() { commands_.close(); }
  int command_fd() const { return commands_.fd(); }
  void tell(Event event);
  // Does not wake the agent: it looks when it has something else to do.
  void take_seen(std::vector<SeenByEngine>& into) { seen_.take(into); }

 private:
  // One event for each request that can run or be awaited, and one for each command that can wait.
  static constexpr std::size_t kEventsMax = 3 * kRequestsMax + kMailboxCommandsMax;

  Mailbox<Command> commands_{kMailboxCommandsMax};
  Mailbox<Event> events_{kEventsMax};
  Mailbox<SeenByEngine> seen_{kEventsMax};
  std::atomic<std::size_t> events_owed_ = 0;  // to be told, or told and not taken
};

}  // namespace kvpush
