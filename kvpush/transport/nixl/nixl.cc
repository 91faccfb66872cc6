#include "kvpush/transport/nixl/nixl.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "kvpush/base/log.h"
#include "kvpush/transport/nixl/agent.h"
#include "kvpush/transport/nixl/capi.h"
#include "kvpush/transport/nixl/nixl_transport.h"
#include "kvpush/transport/vendor_library.h"

namespace kvpush {
namespace {

constexpr const char* kFolderVariable = "KVPUSH_NIXL_DIR";
// What the wheels put beside the packages of a Python environment.
constexpr const char* kWheelFolders[] = {".nixl_cu13.mesonpy.libs", ".nixl_cu12.mesonpy.libs"};
constexpr const char* kUcxModule = "libkvpush_ucx.so";

bool holds_nixl(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / kNixlLibrary, ignored);
}

constexpr std::string_view kUcxPlugin = "UCX";
constexpr std::string_view kUcxConfig = "engine_config";  // "NAME=value,NAME=value" for UCX itself
constexpr std::string_view kUcxWires = "TLS=";
constexpr std::string_view kWiresBetweenHosts = "^sm";
constexpr const char* kUcxWiresVariable = "UCX_TLS";

std::string_view take_part(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

// Empty if it does not say.
std::string_view wires_in_config(std::string_view config) {
  while (!config.empty()) {
    const std::string_view part = take_part(config, ',');
    if (part.starts_with(kUcxWires)) return part.substr(kUcxWires.size());
  }
  return {};
}

bool excludes_shared_memory(std::string_view wires) {
  const bool excludes = wires.starts_with('^');
  if (excludes) wires.remove_prefix(1);
  while (!wires.empty()) {
    const std::string_view wire = take_part(wires, ',');
    if (excludes && (wire == "sm" || wire == "shm")) return true;
    const bool is_network = wire == "tcp" || wire == "ib" || wire.starts_with("rc") || wire.starts_with("dc");
    const bool is_local = wire == "self" || wire == "cuda_copy" || wire == "gdr_copy";
    if (!excludes && !is_network && !is_local) return false;
  }
  return !excludes;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parameters_of(const NixlOptions& options) {
  std::vector<std::pair<std::string, std::string>> parameters = options.parameters;
  if (options.plugin != kUcxPlugin) return parameters;
  const std::string wires = std::string(kUcxWires) + std::string(kWiresBetweenHosts);
  const auto config = std::ranges::find(parameters, kUcxConfig, &std::pair<std::string, std::string>::first);
  if (config == parameters.end()) {
    parameters.emplace_back(kUcxConfig, wires);
  } else if (wires_in_config(config->second).empty()) {
    config->second += "," + wires;
  }
  return parameters;
}

bool destroying_fences(const NixlOptions& options, const char* wires_of_environment) {
  if (options.plugin != kUcxPlugin) return false;
  if (wires_of_environment != nullptr) return excludes_shared_memory(wires_of_environment);
  const auto parameters = parameters_of(options);
  const auto config = std::ranges::find(parameters, kUcxConfig, &std::pair<std::string, std::string>::first);
  return excludes_shared_memory(wires_in_config(config->second));
}

Result<NixlOptions> read_nixl_options(std::string_view text) {
  NixlOptions options;
  for (bool first = true; !text.empty(); first = false) {
    const std::string_view part = take_part(text, ';');
    const std::size_t equals = part.find('=');
    if (first && equals == std::string_view::npos && !part.empty()) {
      options.plugin = part;
    } else if (!first && equals != std::string_view::npos && equals > 0) {
      options.parameters.emplace_back(part.substr(0, equals), part.substr(equals + 1));
    } else {
      return fail(ErrorCode::kBadConfig, "nixl is followed by PLUGIN;key=value;key=value");
    }
  }
  return options;
}

std::optional<std::filesystem::path> find_nixl() {
  if (const char* folder = std::getenv(kFolderVariable)) {
    if (holds_nixl(folder)) return folder;
    return std::nullopt;
  }
  const std::filesystem::path packages = own_folder().parent_path();
  for (const char* name : kWheelFolders) {
    if (holds_nixl(packages / name)) return packages / name;
  }
  return std::nullopt;
}

Result<std::unique_ptr<Transport>> open_nixl(const NixlOptions& options) {
  const auto folder = options.folder.empty() ? find_nixl() : options.folder;
  if (!folder) return fail(ErrorCode::kUnavailable, "NIXL is not installed (KVPUSH_NIXL_DIR, wheel nixl-cu13)");
  if (is_loaded(kUcxModule)) {
    return fail(ErrorCode::kUnavailable, "this process has opened ucx, and NIXL may bring another UCX");
  }
  const QuietUcxLoading quiet;
  const Result<NixlApi> api = load_nixl_api(*folder);
  if (!api) return std::unexpected(api.error());
  const bool fences = destroying_fences(options, std::getenv(kUcxWiresVariable));
  if (!fences) {
    log(LogLevel::kWarning, "nixl cannot fence with this plugin or these wires: a lost peer's blocks stay held");
  }
  return open_nixl_transport(*api, options, fences);
}

}  // namespace kvpush
