// Naming a process so that another one is never taken for it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "kvpush/base/error.h"

namespace kvpush {

// The host as booted, and the pid namespace on it: within one, a pid and a start time name one process for ever.
struct PidSpace {
  std::string boot_id;  // as the kernel writes it
  std::uint64_t namespace_device = 0;
  std::uint64_t namespace_inode = 0;
  bool operator==(const PidSpace&) const = default;
};

// kUnavailable: /proc is not there.
Result<PidSpace> own_pid_space();
// In clock ticks since boot. kUnavailable: no such process, or /proc hides it.
Result<std::uint64_t> start_ticks(pid_t pid);

// A hold on one process of this pid space.
//
// Job: tells whether that very process still runs (pidfd).
// Owner: a transport's peer.
// Thread: agent role.
class PeerProcess {
 public:
  // kUnavailable: no process with that pid started at that time, or this kernel has no pidfd. kFull: no descriptor is
  // left.
  static Result<PeerProcess> open(pid_t pid, std::uint64_t started_ticks);
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&&) = delete;
  ~PeerProcess();

  pid_t pid() const { return pid_; }
  // Readable once the process is gone, with all its threads.
  int fd() const { return fd_; }
  bool gone() const;

 private:
  PeerProcess(pid_t pid, int fd) : pid_(pid), fd_(fd) {}

  pid_t pid_;
  int fd_;
};

}  // namespace kvpush
