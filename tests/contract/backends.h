// The transports that keep the contract. A new backend adds its line in backends.cc,
// or a file of its own if it must not meet the others in one process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvpush/transport/transport.h"

namespace kvpush {

struct Backend {
  std::string name;
  // Endpoints made by copies of one `open` can connect to each other; so can other processes, if `across_processes`.
  std::function<Result<std::unique_ptr<Transport>>()> open;
  bool across_processes = false;
};

std::vector<Backend> contract_backends();

}  // namespace kvpush
