#include "kvpush/base/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "kvpush/base/check.h"

namespace kvpush {

WakeFd::WakeFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  KVPUSH_CHECK(fd_ >= 0, "the process has no file descriptor left for a wake-up");
}

WakeFd::~WakeFd() {
  close(fd_);
}

void WakeFd::raise() {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the descriptor is readable already.
  [[maybe_unused]] const auto written = write(fd_, &one, sizeof one);
}

void WakeFd::clear() {
  std::uint64_t count = 0;
  // Fails only when nothing was raised.
  [[maybe_unused]] const auto got = read(fd_, &count, sizeof count);
}

}  // namespace kvpush
