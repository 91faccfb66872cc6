#pragma once

#include "kvpush/base/instant.h"

namespace kvpush {

// Bounds the lines that strangers can cause: a scan of all ports must not fill the log. A counter beside it has all.
//
// Job: lets kLinesMax through in each period, which begins with its first line.
// Thread: value type.
class LogLimit {
 public:
  static constexpr int kLinesMax = 20;
  static constexpr Duration kPeriod = std::chrono::seconds(10);

  // Whether one more line may be written.
  bool take(Instant now);

 private:
  Instant since_{};
  int lines_ = 0;  // in this period
};

inline bool LogLimit::take(Instant now) {
  if (now - since_ >= kPeriod) {
    since_ = now;
    lines_ = 0;
  }
  return lines_++ < kLinesMax;
}

}  // namespace kvpush
