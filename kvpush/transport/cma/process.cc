#include "kvpush/transport/cma/process.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

namespace kvpush {

Result<PidSpace> own_pid_space() {
  PidSpace space;
  std::ifstream boot_id("/proc/sys/kernel/random/boot_id");
  struct stat pid_namespace{};
  if (!(boot_id >> space.boot_id) || stat("/proc/self/ns/pid", &pid_namespace) != 0) {
    return fail(ErrorCode::kUnavailable, "/proc does not name this boot and pid namespace");
  }
  space.namespace_device = pid_namespace.st_dev;
  space.namespace_inode = pid_namespace.st_ino;
  return space;
}

Result<std::uint64_t> start_ticks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The second field is the command in parentheses and may hold anything; the 22nd is the start time.
  const std::size_t command_end = line.rfind(')');
  if (command_end == std::string::npos) {
    return fail(ErrorCode::kUnavailable, "/proc shows no such process: it is gone or hidden (hidepid)");
  }
  std::istringstream fields(line.substr(command_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::uint64_t ticks = 0;
  if (!(fields >> ticks)) return fail(ErrorCode::kUnavailable, "/proc does not tell when the process started");
  return ticks;
}

Result<PeerProcess> PeerProcess::open(pid_t pid, std::uint64_t started_ticks) {
  // Not through <sys/pidfd.h>: in glibc 2.36 it lacks C linkage for C++.
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
    return fail(ErrorCode::kFull, "this process has no file descriptor left for one more peer");
  }
  if (fd < 0) {
    return fail(ErrorCode::kUnavailable, errno == ENOSYS || errno == EPERM
                                             ? "the kernel or a seccomp filter refuses pidfd_open (Linux 5.3 has it)"
                                             : "the peer process is gone");
  }
  PeerProcess process(pid, fd);
  const auto ticks = start_ticks(pid);
  if (!ticks) return std::unexpected(ticks.error());
  // Still running after its start time was read: so that was read of the process which the pidfd holds.
  if (*ticks != started_ticks || process.gone()) {
    return fail(ErrorCode::kUnavailable, "the peer process is gone, another one has its pid");
  }
  return process;
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)) {}

PeerProcess::~PeerProcess() {
  if (fd_ >= 0) close(fd_);
}

bool PeerProcess::gone() const {
  pollfd request{fd_, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&request, 1, 0);
  } while (ready < 0 && errno == EINTR);
  return ready != 0;
}

}  // namespace kvpush
