// Writes straight into the memory of another process of this host (cross memory attach).
#pragma once

#include <memory>

#include "kvpush/base/error.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

// Where yama restricts ptrace to children (ptrace_scope 1), this also lets every process of the same user attach to
// ours, for the rest of its life: prctl() can name one tracer only, and peers are several.
// kUnavailable: this kernel does not let us.
Result<std::unique_ptr<Transport>> open_cma();

}  // namespace kvpush
