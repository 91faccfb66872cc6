// Writes over the network with UCX, which is opened at run time: nothing that includes this links it.
#pragma once

#include <memory>
#include <string>

#include "kvpush/base/error.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

struct UcxOptions {
  // What UCX may use, as it writes UCX_TLS. Empty: all but those that cannot be fenced (shared memory, self, dc).
  std::string transports{};
  // Where libkvpush_ucx.so is. Empty: in the folder of the program or extension module that holds this code, else where
  // the dynamic linker looks.
  std::string module_path{};
};

// The first call changes the environment while it loads UCX, so that UCX leaves signals and libc's code alone; call it
// before other threads change theirs.
// kUnavailable: the module or the libucp that it needs is not there, was built for another kvpush, or finds no device.
Result<std::unique_ptr<Transport>> open_ucx(const UcxOptions& options);

}  // namespace kvpush
