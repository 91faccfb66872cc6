#include "kvpush/transport/ucx/wires.h"

#include <algorithm>

namespace kvpush {

// A lane is written as "lane[0]:  2:tcp/eth0.0 md[0] -> md[0]/tcp/sysdev[255] am am_bw#0 keepalive wireup".
std::set<std::string> wires_in(std::string_view endpoint_info) {
  std::set<std::string> wires;
  while (!endpoint_info.empty()) {
    const std::string_view line = endpoint_info.substr(0, endpoint_info.find('\n'));
    endpoint_info.remove_prefix(std::min(line.size() + 1, endpoint_info.size()));
    const std::size_t lane = line.find("lane[");
    const std::size_t target = line.find("->");
    if (lane == std::string_view::npos || target == std::string_view::npos) continue;
    const std::string_view uses = line.substr(target);
    if (uses.find(" am") == std::string_view::npos && uses.find(" rma") == std::string_view::npos) continue;
    const std::size_t slash = line.find('/', lane);
    const std::size_t colon = line.rfind(':', slash);
    if (slash > target || colon <= line.find("]:", lane) + 1) continue;
    wires.emplace(line.substr(colon + 1, slash - colon - 1));
  }
  return wires;
}

bool close_fences(std::string_view wire) {
  return wire == "tcp" || wire.starts_with("rc_");
}

bool target_moves(std::string_view wire) {
  return !wire.starts_with("rc_") && !wire.starts_with("dc_");
}

}  // namespace kvpush
