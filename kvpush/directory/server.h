#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"

namespace kvpush {

// What an engine's scheduler saw of a request whose KV is transferred. Unset: it did not come to that.
struct Scheduled {
  enum class Side : std::uint8_t { kProducer, kConsumer };

  Side side = Side::kProducer;
  TransferId transfer_id;
  std::string request;
  std::uint64_t tokens = 0;
  Endpoint producer{};  // consumer: the producer's directory
  Instant arrived{};
  std::optional<Instant> admitted{};    // got its blocks
  std::optional<Instant> computed{};    // producer: the prompt is computed
  std::optional<Instant> reported{};    // consumer: the workers have reported the end of the transfer
  std::optional<Instant> first_step{};  // consumer: is part of a step again, which computes the first answer token
};

// The engine's HTTP address: who it is, and what its ranks are doing (docs/directory.md).
//
// Job: answers with the engine's document, and with transfers and metrics asked from the ranks' own addresses.
// Not here: transfers themselves; it lives beside the engine's scheduler, the ranks may be other processes.
// Owner: the engine's scheduler side.
// Thread: any (synchronised by its event loop, which runs on a thread of its own). open() and stop() from one thread.
class DirectoryServer {
 public:
  // Listening when it returns; port 0: the kernel chooses. kBadConfig: the address cannot be bound.
  static Result<std::unique_ptr<DirectoryServer>> open(const Endpoint& listen);
  // stop() must have been called.
  ~DirectoryServer();
  DirectoryServer(const DirectoryServer&) = delete;
  DirectoryServer& operator=(const DirectoryServer&) = delete;

  std::uint16_t port() const;
  // The documents of all ranks (Agent::document()). Until then /kvpush/v1/engine answers 503. kBadMessage: they are
  // not the ranks of one engine.
  Result<void> set_ranks(const std::vector<std::string>& documents);
  // Keeps it for /kvpush/v1/transfers, the last kTransferRecordsMax of them.
  void add(Scheduled scheduled);
  // Closes every connection and joins the thread. Idempotent.
  void stop();

 private:
  class Service;
  explicit DirectoryServer(std::unique_ptr<Service> service);

  std::unique_ptr<Service> service_;
};

}  // namespace kvpush
