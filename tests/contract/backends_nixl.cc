// NIXL, in programs of its own: it brings a UCX that must not meet ours in one process.
#include "kvpush/transport/nixl/nixl.h"
#include "tests/contract/backends.h"

namespace kvpush {

std::vector<Backend> contract_backends() {
  const auto nixl = [] {
    NixlOptions options;
    if (!find_nixl()) options.folder = KVPUSH_NIXL_TEST_DIR;
    return open_nixl(options);
  };
  return {{.name = "nixl_ucx", .open = nixl, .across_processes = true}};
}

}  // namespace kvpush
