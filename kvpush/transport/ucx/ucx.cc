#include "kvpush/transport/ucx/ucx.h"

#include <dlfcn.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include "kvpush/base/log.h"
#include "kvpush/transport/ucx/module.h"
#include "kvpush/transport/vendor_library.h"

namespace kvpush {
namespace {

constexpr std::string_view kModuleName = "libkvpush_ucx.so";
constexpr const char* kNixlLibrary = "libnixl.so";

std::string module_path(const UcxOptions& options) {
  if (!options.module_path.empty()) return options.module_path;
  const std::filesystem::path beside = own_folder() / kModuleName;
  std::error_code ignored;
  return std::filesystem::exists(beside, ignored) ? beside.string() : std::string(kModuleName);
}

// Never closed: UCX leaves state behind that points into it, and the vtable of our transport is in there.
void* load(const std::string& path) {
  const QuietUcxLoading quiet;
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx(const UcxOptions& options) {
  if (is_loaded(kNixlLibrary)) {
    return fail(ErrorCode::kUnavailable, "this process runs NIXL, which brings another UCX");
  }
  void* module = load(module_path(options));
  if (module == nullptr) {
    log(LogLevel::kInfo, std::string("ucx is not available: ") + dlerror());
    return fail(ErrorCode::kUnavailable, "libkvpush_ucx.so or the libucp that it needs cannot be loaded");
  }
  const auto entry = reinterpret_cast<UcxModuleEntry>(dlsym(module, kUcxModuleEntry));
  const UcxModule* found = entry == nullptr ? nullptr : entry();
  if (found == nullptr || found->version != kUcxModuleVersion || std::string_view(found->compiler) != __VERSION__) {
    return fail(ErrorCode::kUnavailable, "libkvpush_ucx.so comes from another build of kvpush");
  }
  return found->open(options);
}

}  // namespace kvpush
