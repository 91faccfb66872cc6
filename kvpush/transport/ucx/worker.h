#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kvpush/base/error.h"

namespace kvpush {

// Whether UCX lives on when a peer goes while the two connect: 1.15 or newer.
bool outlives_connecting_peers();

// UCX in this process, with the wires that it may use.
//
// Job: owns the context.
// Thread: agent role.
class UcxContext {
 public:
  // `transports` as in UCX_TLS.
  static Result<std::unique_ptr<UcxContext>> open(const char* transports);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }

 private:
  UcxContext() = default;

  ucp_context_h context_ = nullptr;
};

// The sockets and queues that one peer reaches. With the worker all of them are gone.
//
// Job: owns the worker.
// Thread: agent role.
class UcxWorker {
 public:
  static Result<std::unique_ptr<UcxWorker>> open(const UcxContext& context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  int event_fd() const { return event_fd_; }
  std::span<const std::byte> address() const { return address_; }
  // From now on messages of this number go to `handler`, in ucp_worker_progress().
  void receive(unsigned number, ucp_am_recv_callback_t handler, void* argument);

 private:
  UcxWorker() = default;

  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::vector<std::byte> address_;
};

}  // namespace kvpush
