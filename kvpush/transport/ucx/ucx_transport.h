#pragma once

#include <memory>

#include "kvpush/base/error.h"
#include "kvpush/transport/transport.h"
#include "kvpush/transport/ucx/ucx.h"

namespace kvpush {

// Inside the module; everyone else calls open_ucx().
Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options);

}  // namespace kvpush
