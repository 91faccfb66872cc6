#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "kvpush/base/error.h"

namespace kvpush {

// The context and worker of one transport.
//
// Job: owns both.
// Thread: agent role.
class UcxWorker {
 public:
  static Result<std::unique_ptr<UcxWorker>> open(const char* transports);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }
  int event_fd() const { return event_fd_; }
  Result<std::vector<std::byte>> address() const;
  // From now on messages of this number go to `handler`, in ucp_worker_progress().
  void receive(unsigned number, ucp_am_recv_callback_t handler, void* argument);

 private:
  UcxWorker() = default;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
};

}  // namespace kvpush
