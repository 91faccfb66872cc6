#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvpush/agent/agent.h"
#include "kvpush/agent/exchange.h"
#include "kvpush/base/instant.h"

namespace kvpush {

// The agent thread's event loop: control sockets, the mailbox, timers, the transports' descriptors and the rank's HTTP
// address, around an AgentCore.
//
// Job: reads the clock, calls the core when something happened, and sleeps when nothing does.
// Not here: what happens then.
// Owner: Agent, on its thread.
// Thread: agent role; ask_to_stop() is for any thread.
class AgentLoop {
 public:
  // Opens everything; on the thread that calls run().
  static Result<std::unique_ptr<AgentLoop>> open(AgentOptions options, const RankLayout& layout,
                                                 const std::vector<MemoryRange>& regions, Exchange& exchange);
  virtual ~AgentLoop() = default;

  // This rank's part of the directory document.
  virtual std::string document() const = 0;
  // Returns after ask_to_stop(), when everything has ended or the limit is over.
  virtual void run() = 0;

  virtual void ask_to_stop(Duration limit) = 0;
  // After run(): how many requests had to be failed.
  virtual std::size_t failed_at_stop() const = 0;
};

}  // namespace kvpush
