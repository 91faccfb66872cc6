// What the host and libkvpush_ucx.so agree on. They pass C++ objects, so both must come from one build.
#pragma once

#include <cstdint>
#include <memory>

#include "kvpush/base/error.h"
#include "kvpush/transport/transport.h"
#include "kvpush/transport/ucx/ucx.h"

namespace kvpush {

// Grows with every change of Transport, UcxOptions or UcxModule.
inline constexpr std::uint32_t kUcxModuleVersion = 2;

struct UcxModule {
  std::uint32_t version = 0;
  const char* compiler = "";
  Result<std::unique_ptr<Transport>> (*open)(const UcxOptions& options) = nullptr;
};

inline constexpr const char* kUcxModuleEntry = "kvpush_ucx_module";
using UcxModuleEntry = const UcxModule* (*)();

}  // namespace kvpush
