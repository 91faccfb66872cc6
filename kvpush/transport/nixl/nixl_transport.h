#pragma once

#include <memory>

#include "kvpush/base/error.h"
#include "kvpush/transport/nixl/capi.h"
#include "kvpush/transport/nixl/nixl.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

// Everyone else calls open_nixl(). `fences`: whether destroying an agent does.
Result<std::unique_ptr<Transport>> open_nixl_transport(const NixlApi& api, const NixlOptions& options, bool fences);

}  // namespace kvpush
