#include "kvpush/transport/vendor_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace kvpush {
namespace {

constexpr std::pair<const char*, const char*> kQuietUcx[] = {
    {"UCX_MEM_MMAP_HOOK_MODE", "none"}, {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"}};
constexpr std::pair<const char*, const char*> kNoRdmaModules{"UCX_MODULES", "^ib"};
constexpr const char* kRdmaDevices = "/sys/class/infiniband";

}  // namespace

std::filesystem::path own_folder() {
  Dl_info info{};
  std::filesystem::path file;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0) file = info.dli_fname;
  // The name of the program itself is what it was called by and may be relative to anything.
  std::error_code ignored;
  if (!file.is_absolute()) file = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return std::filesystem::weakly_canonical(file, ignored).parent_path();
}

bool is_loaded(const char* library) {
  void* const found = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (found == nullptr) return false;
  dlclose(found);
  return true;
}

QuietUcxLoading::QuietUcxLoading() {
  const auto wish = [this](const auto& variable) {
    const auto& [name, value] = variable;
    if (std::getenv(name) == nullptr && setenv(name, value, 0) == 0) set_here_.push_back(name);
  };
  std::ranges::for_each(kQuietUcx, wish);
  std::error_code ignored;
  if (!std::filesystem::exists(kRdmaDevices, ignored)) wish(kNoRdmaModules);
}

QuietUcxLoading::~QuietUcxLoading() {
  for (const char* name : set_here_) unsetenv(name);
}

}  // namespace kvpush
