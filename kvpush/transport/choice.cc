#include "kvpush/transport/choice.h"

#include "kvpush/transport/cma/cma.h"
#include "kvpush/transport/loopback.h"
#include "kvpush/transport/nixl/nixl.h"
#include "kvpush/transport/ucx/ucx.h"

namespace kvpush {
namespace {

constexpr std::string_view kNixlWith = "nixl:";

}  // namespace

Result<std::vector<std::function<Result<std::unique_ptr<Transport>>()>>> transport_factories(std::string_view wish) {
  const auto cma = [] { return open_cma(); };
  const auto ucx = [] { return open_ucx({}); };
  const auto nixl = [] { return open_nixl({}); };
  const auto loopback = [network = LoopbackNetwork()]() mutable -> Result<std::unique_ptr<Transport>> {
    return network.open("");
  };
  if (wish == "auto") return {{cma, nixl, ucx}};
  if (wish == "cma") return {{cma}};
  if (wish == "nixl") return {{nixl}};
  if (wish == "ucx") return {{ucx}};
  if (wish == "loopback") return {{loopback}};
  if (!wish.starts_with(kNixlWith)) {
    return fail(ErrorCode::kBadConfig, "unknown transport: say auto, cma, nixl, ucx or loopback");
  }
  Result<NixlOptions> options = read_nixl_options(wish.substr(kNixlWith.size()));
  if (!options) return std::unexpected(options.error());
  return {{[options = std::move(*options)] { return open_nixl(options); }}};
}

}  // namespace kvpush
