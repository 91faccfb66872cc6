#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

// Ways to make the transports that a user asked for, best first; each is called on the agent thread.
//   "auto"      cma, then nixl, then ucx, which is refused by a process that has opened nixl
//   "cma", "nixl", "ucx", "loopback"  that one alone; "nixl:PLUGIN;key=value" is nixl by another plugin
// kBadConfig: another word. Loopback endpoints find each other if they were made by copies of one returned factory.
Result<std::vector<std::function<Result<std::unique_ptr<Transport>>()>>> transport_factories(std::string_view wish);

}  // namespace kvpush
