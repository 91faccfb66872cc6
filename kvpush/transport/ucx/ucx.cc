#include "kvpush/transport/ucx/ucx.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kvpush/base/log.h"
#include "kvpush/transport/ucx/module.h"

namespace kvpush {
namespace {

constexpr std::string_view kModuleName = "libkvpush_ucx.so";

// What libucs must not do to the process that loads it: patch the code of mmap and its kin, which only a cache of
// registrations needs, and take over fatal signals and SIGHUP. It reads these when it is loaded and from nowhere else.
struct QuietLoading {
  static constexpr std::pair<const char*, const char*> kWishes[] = {
      {"UCX_MEM_MMAP_HOOK_MODE", "none"}, {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"}};
  std::vector<const char*> set_here;

  QuietLoading() {
    for (const auto& [name, value] : kWishes) {
      if (std::getenv(name) == nullptr && setenv(name, value, 0) == 0) set_here.push_back(name);
    }
  }
  ~QuietLoading() {
    for (const char* name : set_here) unsetenv(name);
  }
  QuietLoading(const QuietLoading&) = delete;
  QuietLoading& operator=(const QuietLoading&) = delete;
};

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

// Never closed: UCX leaves state behind that points into it, and the vtable of our transport is in there.
void* load(const std::string& path) {
  const QuietLoading quiet;
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx(const UcxOptions& options) {
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
