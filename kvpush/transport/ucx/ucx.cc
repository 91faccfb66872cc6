#include "kvpush/transport/ucx/ucx.h"

#include <dlfcn.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include "kvpush/base/log.h"
#include "kvpush/transport/ucx/module.h"

namespace kvpush {
namespace {

constexpr std::string_view kModuleName = "libkvpush_ucx.so";

std::filesystem::path own_folder() {
  Dl_info info{};
  std::filesystem::path file;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0) file = info.dli_fname;
  // The name of the program itself is what it was called by and may be relative to anything.
  std::error_code ignored;
  if (!file.is_absolute()) file = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return std::filesystem::weakly_canonical(file, ignored).parent_path();
}

std::string module_path(const UcxOptions& options) {
  if (!options.module_path.empty()) return options.module_path;
  const std::filesystem::path beside = own_folder() / kModuleName;
  std::error_code ignored;
  return std::filesystem::exists(beside, ignored) ? beside.string() : std::string(kModuleName);
}

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx(const UcxOptions& options) {
  // Never closed: UCX leaves state behind that points into it, and the vtable of our transport is in there.
  void* module = dlopen(module_path(options).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
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
