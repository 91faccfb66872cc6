#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvpush/agent/agent.h"
#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/instant.h"
#include "kvpush/standin/completion.h"
#include "kvpush/standin/kv.h"
#include "kvpush/standin/scheduler.h"

namespace boost::asio {
class io_context;
}

namespace kvpush {

struct StandinOptions {
  std::string engine_id = "standin";
  std::string model = "standin";
  EngineRole role = EngineRole::kBoth;
  Endpoint listen{"127.0.0.1", 0};
  // Its host is also what peers are told, and where the agent listens.
  Endpoint directory{"127.0.0.1", 0};
  // See AgentOptions.
  std::string secret_file{};
  bool allow_unauthenticated = false;
  std::vector<TransportFactory> transports{};
  ProtocolOptions protocol{};
  KvShape kv{};
  // Its blocks are those of `kv`.
  SchedulerOptions scheduler{};
  // A step takes the first, and the second for each token that it computes.
  Duration step_time{};
  Duration token_time{};
};

// Time and chance, which the engine does not take by itself.
struct StandinWorld {
  Instant (*now)() = nullptr;
  std::uint64_t (*entropy)() = nullptr;
  std::chrono::system_clock::time_point (*wall_clock)() = std::chrono::system_clock::now;
};

// A stand-in for an inference engine: the same calls, blocks, steps and transfers, and a language model of which every
// answer can be foretold (docs/standin.md).
//
// Job: brings together clients, the scheduler's decisions, the bytes of KV and the agent's events.
// Not here: deciding (Scheduler), the loop and the signals.
// Owner: whoever owns the io_context; destroyed before it, and after stop().
// Thread: engine role: the one that runs the io_context. It sleeps while nothing happens.
class StandinEngine {
 public:
  // Listening when it returns. kBadConfig, kUnavailable and others: see Agent::open(), DirectoryServer::open().
  static Result<std::unique_ptr<StandinEngine>> open(boost::asio::io_context& io, StandinOptions options,
                                                     StandinWorld world);
  ~StandinEngine();
  StandinEngine(const StandinEngine&) = delete;
  StandinEngine& operator=(const StandinEngine&) = delete;

  std::uint16_t port() const;
  std::uint16_t directory_port() const;
  // Takes no new connection or completion; what is in flight goes on.
  void drain();
  // Nobody waits for an answer, and no transfer holds blocks.
  bool idle() const;
  // Ends the agent and the directory. kTimeout: transfers had to be failed.
  Result<void> stop(Duration limit);

 private:
  class Impl;

  explicit StandinEngine(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace kvpush
