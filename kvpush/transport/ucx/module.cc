// The one symbol that libkvpush_ucx.so shows.
#include "kvpush/transport/ucx/module.h"

#include "kvpush/transport/ucx/ucx_transport.h"

// Takes back the signal handlers that libucs installs when it is loaded; not in every version's headers.
extern "C" [[gnu::weak]] void ucs_debug_disable_signals();

extern "C" [[gnu::visibility("default")]] const kvpush::UcxModule* kvpush_ucx_module() {
  static constexpr kvpush::UcxModule kModule{kvpush::kUcxModuleVersion, __VERSION__, &kvpush::open_ucx_transport};
  if (ucs_debug_disable_signals != nullptr) ucs_debug_disable_signals();
  return &kModule;
}
