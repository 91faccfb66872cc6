#include "tests/contract/backends.h"

#include "kvpush/transport/cma/cma.h"
#include "kvpush/transport/loopback.h"
#include "kvpush/transport/ucx/ucx.h"

namespace kvpush {

std::vector<Backend> contract_backends() {
  const auto loopback = [network = LoopbackNetwork()]() mutable -> Result<std::unique_ptr<Transport>> {
    return network.open("");
  };
  const auto ucx_tcp = [] { return open_ucx({.transports = "tcp", .module_path = KVPUSH_UCX_MODULE}); };
  return {
      {.name = "loopback", .open = loopback},
      {.name = "cma", .open = [] { return open_cma(); }, .across_processes = true},
      {.name = "ucx_tcp", .open = ucx_tcp, .across_processes = true},
  };
}

}  // namespace kvpush
