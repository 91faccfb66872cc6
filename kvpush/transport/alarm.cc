#include "kvpush/transport/alarm.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "kvpush/base/check.h"

namespace kvpush {
namespace {

timespec to_timespec(Duration duration) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = whole.count(), .tv_nsec = std::chrono::nanoseconds(duration - whole).count()};
}

}  // namespace

Alarm::Alarm() : fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  KVPUSH_CHECK(fd_ >= 0, "the process has no file descriptor left for a timer");
}

Alarm::~Alarm() {
  close(fd_);
}

void Alarm::set(Duration after) {
  // Zero would mean never.
  const itimerspec once{.it_interval{}, .it_value = to_timespec(std::max(after, Duration{1}))};
  timerfd_settime(fd_, 0, &once, nullptr);
}

void Alarm::repeat(Duration every) {
  const itimerspec always{.it_interval = to_timespec(every), .it_value = to_timespec(every)};
  timerfd_settime(fd_, 0, &always, nullptr);
}

void Alarm::stop() {
  const itimerspec never{};
  timerfd_settime(fd_, 0, &never, nullptr);
}

bool Alarm::rang() {
  std::uint64_t times = 0;
  return read(fd_, &times, sizeof times) == sizeof times;
}

}  // namespace kvpush
