#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/instant.h"

namespace boost::asio {
class io_context;
}

namespace kvpush {

// A prefill server: its OpenAI address, and that of its engine's directory, which decode is told.
struct PrefillServer {
  Endpoint http{};
  Endpoint directory{};
};

struct RouterOptions {
  Endpoint listen{"127.0.0.1", 8000};
  std::vector<PrefillServer> prefill{};
  std::vector<Endpoint> decode{};
  // Requests in flight; one more is answered 503. Four decode servers with vLLM's usual 256 sequences.
  std::size_t requests_max = 1024;
  // Of one request: a prompt of a million tokens as text, or a few pictures.
  std::uint64_t body_bytes_max = 16u << 20;
};

// Time and chance, which the router does not take by itself.
struct RouterWorld {
  Instant (*now)() = nullptr;
  std::uint64_t (*entropy)() = nullptr;
  // What other machines' clocks say too; only told to readers of timelines.
  std::chrono::system_clock::time_point (*wall_clock)() = std::chrono::system_clock::now;
};

// One OpenAI address in front of prefill and decode servers.
//
// Job: checks a request, chooses a server of each kind, runs the exchange; answers models, health,
//      metrics and what became of the last requests.
//      docs/router.md describes what clients see.
// Not here: the loop and the signals.
// Owner: whoever owns the io_context; destroyed before it. Destroying drops what is in flight.
// Thread: router role: the one that runs the io_context.
class Router {
 public:
  // Listening when it returns. kBadConfig: no servers of a kind, or the address cannot be bound.
  static Result<std::unique_ptr<Router>> open(boost::asio::io_context& io, RouterOptions options, RouterWorld world);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  std::uint16_t port() const;
  // Takes no new connection or request; what is in flight goes on.
  void drain();
  // No client waits for anything any more.
  bool idle() const;

 private:
  class Impl;

  explicit Router(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace kvpush
