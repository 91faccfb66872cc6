#include "kvpush/transport/choice.h"

#include "kvpush/transport/cma/cma.h"
#include "kvpush/transport/loopback.h"
#include "kvpush/transport/ucx/ucx.h"

namespace kvpush {

Result<std::vector<std::function<Result<std::unique_ptr<Transport>>()>>> transport_factories(std::string_view wish) {
  const auto cma = [] { return open_cma(); };
  const auto ucx = [] { return open_ucx({}); };
  const auto loopback = [network = LoopbackNetwork()]() mutable -> Result<std::unique_ptr<Transport>> {
    return network.open("");
  };
  if (wish == "auto") return {{cma, ucx}};
  if (wish == "cma") return {{cma}};
  if (wish == "ucx") return {{ucx}};
  if (wish == "loopback") return {{loopback}};
  return fail(ErrorCode::kBadConfig, "unknown transport: say auto, cma, ucx or loopback");
}

}  // namespace kvpush
