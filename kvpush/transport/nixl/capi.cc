#include "kvpush/transport/nixl/capi.h"

#include <dlfcn.h>

#include <string>

#include "kvpush/base/log.h"

namespace kvpush {
namespace {

// Finds functions of one library, and remembers whether one was missing.
struct Finder {
  void* library;
  bool complete = true;

  template <class Function>
  void operator()(const char* name, Function*& into) {
    into = reinterpret_cast<Function*>(dlsym(library, (std::string("nixl_capi_") + name).c_str()));
    if (into == nullptr) complete = false;
  }
};

}  // namespace

Result<NixlApi> load_nixl_api(const std::filesystem::path& folder) {
  void* const library = dlopen((folder / kNixlLibrary).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    log(LogLevel::kInfo, std::string("nixl is not available: ") + dlerror());
    return fail(ErrorCode::kUnavailable, "libnixl_capi.so, or a library that it needs, cannot be loaded");
  }
  NixlApi api;
  Finder find{library};
  find("create_configured_agent", api.create_configured_agent);
  find("destroy_agent", api.destroy_agent);
  find("get_plugin_params", api.get_plugin_params);
  find("params_add", api.params_add);
  find("create_backend", api.create_backend);
  find("destroy_mem_list", api.destroy_mem_list);
  find("destroy_params", api.destroy_params);
  find("destroy_backend", api.destroy_backend);
  find("create_opt_args", api.create_opt_args);
  find("opt_args_add_backend", api.opt_args_add_backend);
  find("opt_args_set_skip_desc_merge", api.opt_args_set_skip_desc_merge);
  find("destroy_opt_args", api.destroy_opt_args);
  find("create_reg_dlist", api.create_reg_dlist);
  find("reg_dlist_add_desc", api.reg_dlist_add_desc);
  find("destroy_reg_dlist", api.destroy_reg_dlist);
  find("register_mem", api.register_mem);
  find("deregister_mem", api.deregister_mem);
  find("get_local_md", api.get_local_md);
  find("load_remote_md", api.load_remote_md);
  find("invalidate_remote_md", api.invalidate_remote_md);
  find("create_xfer_dlist", api.create_xfer_dlist);
  find("xfer_dlist_add_desc", api.xfer_dlist_add_desc);
  find("destroy_xfer_dlist", api.destroy_xfer_dlist);
  find("create_xfer_req", api.create_xfer_req);
  find("post_xfer_req", api.post_xfer_req);
  find("get_xfer_status", api.get_xfer_status);
  find("release_xfer_req", api.release_xfer_req);
  find("destroy_xfer_req", api.destroy_xfer_req);
  find("create_notif_map", api.create_notif_map);
  find("notif_map_clear", api.notif_map_clear);
  find("destroy_notif_map", api.destroy_notif_map);
  find("notif_map_size", api.notif_map_size);
  find("notif_map_get_agent_at", api.notif_map_get_agent_at);
  find("notif_map_get_notifs_size", api.notif_map_get_notifs_size);
  find("notif_map_get_notif", api.notif_map_get_notif);
  find("get_notifs", api.get_notifs);
  find("gen_notif", api.gen_notif);
  if (!find.complete) return fail(ErrorCode::kUnavailable, "libnixl_capi.so is of another version than 1.5");
  return api;
}

}  // namespace kvpush
