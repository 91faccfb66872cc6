// NIXL's C interface, declared here by what libnixl_capi.so was found to take, so that nothing of NIXL is needed to
// build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "kvpush/base/error.h"

namespace kvpush {

inline constexpr const char* kNixlLibrary = "libnixl_capi.so";

// Opaque to us.
struct NixlAgentHandle;
struct NixlParams;
struct NixlMemoryKinds;
struct NixlBackend;
struct NixlOptArgs;
struct NixlRegisteredList;
struct NixlTransferList;
struct NixlRequest;
struct NixlNotes;

inline constexpr int kNixlSuccess = 0;
inline constexpr int kNixlInProgress = 1;  // errors are negative
inline constexpr int kNixlHostMemory = 0;
inline constexpr int kNixlWrite = 1;

// As in NIXL 1.5. Between the two switches and progress_pause_us it has fields (listening port, locking, workers) that
// moved between versions; zero means "none" for each of them wherever it is.
struct NixlAgentConfig {
  bool progress_thread = false;
  bool listen_thread = false;
  std::uint8_t unused[14] = {};
  std::uint64_t progress_pause_us = 0;
  std::uint64_t listen_pause_us = 0;
  bool telemetry = false;
};
static_assert(offsetof(NixlAgentConfig, progress_pause_us) == 16);

// The functions that we call, each named as in the library without its "nixl_capi_". All return a status.
struct NixlApi {
  int (*create_configured_agent)(const char* name, const NixlAgentConfig*, NixlAgentHandle**) = nullptr;
  int (*destroy_agent)(NixlAgentHandle*) = nullptr;

  int (*get_plugin_params)(NixlAgentHandle*, const char* plugin, NixlMemoryKinds**, NixlParams**) = nullptr;
  int (*params_add)(NixlParams*, const char* key, const char* value) = nullptr;
  int (*create_backend)(NixlAgentHandle*, const char* plugin, NixlParams*, NixlBackend**) = nullptr;
  int (*destroy_mem_list)(NixlMemoryKinds*) = nullptr;
  int (*destroy_params)(NixlParams*) = nullptr;
  int (*destroy_backend)(NixlBackend*) = nullptr;  // the handle; the backend itself is the agent's

  int (*create_opt_args)(NixlOptArgs**) = nullptr;
  int (*opt_args_add_backend)(NixlOptArgs*, NixlBackend*) = nullptr;
  int (*opt_args_set_skip_desc_merge)(NixlOptArgs*, bool skip) = nullptr;
  int (*destroy_opt_args)(NixlOptArgs*) = nullptr;

  int (*create_reg_dlist)(int memory_kind, NixlRegisteredList**, bool sorted) = nullptr;
  int (*reg_dlist_add_desc)(NixlRegisteredList*, std::uintptr_t address, std::size_t bytes, std::uint64_t device,
                            const void* metadata, std::size_t metadata_bytes) = nullptr;
  int (*destroy_reg_dlist)(NixlRegisteredList*) = nullptr;
  int (*register_mem)(NixlAgentHandle*, NixlRegisteredList*, NixlOptArgs*) = nullptr;
  int (*deregister_mem)(NixlAgentHandle*, NixlRegisteredList*, NixlOptArgs*) = nullptr;

  int (*get_local_md)(NixlAgentHandle*, void** data, std::size_t* bytes) = nullptr;  // free() the data
  int (*load_remote_md)(NixlAgentHandle*, const void* data, std::size_t bytes, char** name) = nullptr;  // free()
  int (*invalidate_remote_md)(NixlAgentHandle*, const char* name) = nullptr;

  int (*create_xfer_dlist)(int memory_kind, NixlTransferList**, bool sorted) = nullptr;
  int (*xfer_dlist_add_desc)(NixlTransferList*, std::uintptr_t address, std::size_t bytes,
                             std::uint64_t device) = nullptr;
  int (*destroy_xfer_dlist)(NixlTransferList*) = nullptr;

  int (*create_xfer_req)(NixlAgentHandle*, int operation, NixlTransferList* local, NixlTransferList* remote,
                         const char* remote_agent, NixlRequest**, NixlOptArgs*) = nullptr;
  int (*post_xfer_req)(NixlAgentHandle*, NixlRequest*, NixlOptArgs*) = nullptr;
  int (*get_xfer_status)(NixlAgentHandle*, NixlRequest*) = nullptr;
  int (*release_xfer_req)(NixlAgentHandle*, NixlRequest*) = nullptr;
  int (*destroy_xfer_req)(NixlRequest*) = nullptr;

  int (*create_notif_map)(NixlNotes**) = nullptr;
  int (*notif_map_clear)(NixlNotes*) = nullptr;
  int (*destroy_notif_map)(NixlNotes*) = nullptr;
  int (*notif_map_size)(NixlNotes*, std::size_t* agents) = nullptr;
  int (*notif_map_get_agent_at)(NixlNotes*, std::size_t index, const char** agent) = nullptr;
  int (*notif_map_get_notifs_size)(NixlNotes*, const char* agent, std::size_t* notes) = nullptr;
  int (*notif_map_get_notif)(NixlNotes*, const char* agent, std::size_t index, const void** data,
                             std::size_t* bytes) = nullptr;
  int (*get_notifs)(NixlAgentHandle*, NixlNotes*, NixlOptArgs*) = nullptr;
  int (*gen_notif)(NixlAgentHandle*, const char* remote_agent, const void* data, std::size_t bytes,
                   NixlOptArgs*) = nullptr;
};

// Loads libnixl_capi.so from `folder`, or from where the dynamic linker looks if that is empty; it is never closed.
// kUnavailable: it is not there, or lacks one of the functions.
Result<NixlApi> load_nixl_api(const std::filesystem::path& folder);

}  // namespace kvpush
