// The one symbol that libkvpush_ucx.so shows.
#include "kvpush/transport/ucx/module.h"

#include "kvpush/transport/ucx/ucx_transport.h"

extern "C" [[gnu::visibility("default")]] const kvpush::UcxModule* kvpush_ucx_module() {
  static constexpr kvpush::UcxModule kModule{kvpush::kUcxModuleVersion, __VERSION__, &kvpush::open_ucx_transport};
  return &kModule;
}
