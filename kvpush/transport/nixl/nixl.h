// Writes with NIXL, whose library is opened at run time: nothing of it is needed to build or to link.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

struct NixlOptions {
  // NIXL's plugin that moves the bytes ("UCX", "LIBFABRIC"), and parameters of that plugin, by NIXL's names for both.
  std::string plugin = "UCX";
  std::vector<std::pair<std::string, std::string>> parameters{};
  // The folder of libnixl_capi.so. Empty: find_nixl().
  std::filesystem::path folder{};
};

// The parameters given, and for UCX also that it may not use shared memory, unless "engine_config" says TLS itself.
std::vector<std::pair<std::string, std::string>> parameters_of(const NixlOptions& options);

// Whether nothing can land through an agent of NIXL that has been destroyed. That is shown for UCX without shared
// memory, whose writes need no endpoint at the target. `wires_of_environment` is UCX_TLS, which UCX obeys first; may be
// null.
bool destroying_fences(const NixlOptions& options, const char* wires_of_environment);

// "PLUGIN;key=value;key=value", all of it optional. kBadConfig: something else.
Result<NixlOptions> read_nixl_options(std::string_view text);

// The folder of libnixl_capi.so: the environment's KVPUSH_NIXL_DIR, or the installed wheel nixl-cu13 or nixl-cu12 if
// the extension module that holds this code is installed beside it.
std::optional<std::filesystem::path> find_nixl();

// Changes the environment while it loads NIXL, so that the UCX in it leaves signals and libc's code alone; call it
// before other threads change theirs. kUnavailable: NIXL or the plugin is not there or finds no device, or this process
// has opened kvpush's UCX module.
Result<std::unique_ptr<Transport>> open_nixl(const NixlOptions& options);

}  // namespace kvpush
