#pragma once

#include "kvpush/base/instant.h"

namespace kvpush {

// A descriptor that becomes readable when some time has passed (timerfd). Owns it.
//
// Job: wakes a loop that waits on descriptors.
// Thread: agent role.
class Alarm {
 public:
  Alarm();
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Once, `after` from now; it rings at once if that is not positive. What was set before is forgotten.
  void set(Duration after);
  // Again and again.
  void repeat(Duration every);
  void stop();
  // Whether it has rung since it was set or asked last.
  bool rang();
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace kvpush
