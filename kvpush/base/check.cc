#include "kvpush/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvpush {

void check_failed(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "kvpush: bug: %s (%s) at %s:%d\n", sentence, condition, file, line);
  std::abort();
}

}  // namespace kvpush
