#include "kvpush/transport/nixl/agent.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "kvpush/base/log.h"
#include "kvpush/base/random.h"

namespace kvpush {
namespace {

// NIXL's thread sleeps until something arrives, and looks by itself after this long. With 0, the default of its Python
// package, it never sleeps.
constexpr std::uint64_t kProgressPauseUs = 100'000;

}  // namespace

Result<std::unique_ptr<NixlAgent>> NixlAgent::open(const NixlApi& api, const NixlOptions& options) {
  std::unique_ptr<NixlAgent> made(
      new NixlAgent(api, fmt::format("kvpush-{:016x}{:016x}", read_entropy(), read_entropy())));
  if (const Result<void> started = made->start(options); !started) return std::unexpected(started.error());
  return made;
}

Result<void> NixlAgent::start(const NixlOptions& options) {
  const NixlAgentConfig config{.progress_thread = true, .progress_pause_us = kProgressPauseUs};
  if (api_.create_configured_agent(name_.c_str(), &config, &agent_) != kNixlSuccess) {
    return fail(ErrorCode::kUnavailable, "NIXL cannot make an agent");
  }
  NixlMemoryKinds* kinds = nullptr;
  NixlParams* params = nullptr;
  if (api_.get_plugin_params(agent_, options.plugin.c_str(), &kinds, &params) != kNixlSuccess) {
    return fail(ErrorCode::kUnavailable, "NIXL has no such plugin, or a library that the plugin needs is missing");
  }
  for (const auto& [key, value] : parameters_of(options)) api_.params_add(params, key.c_str(), value.c_str());
  const int created = api_.create_backend(agent_, options.plugin.c_str(), params, &backend_);
  api_.destroy_params(params);
  api_.destroy_mem_list(kinds);
  if (created != kNixlSuccess) return fail(ErrorCode::kUnavailable, "NIXL's plugin does not start");
  const bool prepared = api_.create_opt_args(&options_) == kNixlSuccess &&
                        api_.opt_args_add_backend(options_, backend_) == kNixlSuccess &&
                        api_.opt_args_set_skip_desc_merge(options_, true) == kNixlSuccess &&
                        api_.create_notif_map(&notes_) == kNixlSuccess;
  if (!prepared) return fail(ErrorCode::kUnavailable, "NIXL does not take its options");
  contact_ = metadata();
  if (contact_.empty()) return fail(ErrorCode::kUnavailable, "NIXL does not say how to reach its agent");
  return {};
}

NixlAgent::~NixlAgent() {
  if (notes_ != nullptr) api_.destroy_notif_map(notes_);
  if (options_ != nullptr) api_.destroy_opt_args(options_);
  if (backend_ != nullptr) api_.destroy_backend(backend_);
  if (agent_ != nullptr) api_.destroy_agent(agent_);
}

Result<void> NixlAgent::register_region(const Region& region) {
  NixlRegisteredList* list = nullptr;
  const bool registered =
      api_.create_reg_dlist(kNixlHostMemory, &list, false) == kNixlSuccess &&
      api_.reg_dlist_add_desc(list, region.base, region.size_bytes, 0, nullptr, 0) == kNixlSuccess &&
      api_.register_mem(agent_, list, options_) == kNixlSuccess;
  if (list != nullptr) api_.destroy_reg_dlist(list);
  if (registered) return {};
  return fail(ErrorCode::kUnavailable, "NIXL cannot register the memory (is the limit of locked memory too low?)");
}

void NixlAgent::deregister_region(const Region& region) {
  NixlRegisteredList* list = nullptr;
  const bool deregistered =
      api_.create_reg_dlist(kNixlHostMemory, &list, false) == kNixlSuccess &&
      api_.reg_dlist_add_desc(list, region.base, region.size_bytes, 0, nullptr, 0) == kNixlSuccess &&
      api_.deregister_mem(agent_, list, options_) == kNixlSuccess;
  if (list != nullptr) api_.destroy_reg_dlist(list);
  if (!deregistered) log(LogLevel::kWarning, "NIXL has not given back registered memory");
}

std::vector<std::byte> NixlAgent::metadata() const {
  void* data = nullptr;
  std::size_t size_bytes = 0;
  if (api_.get_local_md(agent_, &data, &size_bytes) != kNixlSuccess) return {};
  const auto* first = static_cast<const std::byte*>(data);
  std::vector<std::byte> copied(first, first + size_bytes);
  std::free(data);
  return copied;
}

Result<void> NixlAgent::load(std::span<const std::byte> metadata, const std::string& name) {
  char* loaded = nullptr;
  if (api_.load_remote_md(agent_, metadata.data(), metadata.size(), &loaded) != kNixlSuccess) {
    return fail(ErrorCode::kUnavailable, "NIXL cannot connect to the peer with this plugin");
  }
  const bool same = name == loaded;
  std::free(loaded);
  if (same) return {};
  return fail(ErrorCode::kBadMessage, "NIXL's metadata is of another agent than the one that is named");
}

bool NixlAgent::send(const std::string& to, std::span<const std::byte> note) {
  return api_.gen_notif(agent_, to.c_str(), note.data(), note.size(), options_) == kNixlSuccess;
}

std::vector<NixlNote> NixlAgent::take_notes() {
  std::vector<NixlNote> taken;
  std::size_t agents = 0;
  if (api_.get_notifs(agent_, notes_, options_) != kNixlSuccess) return taken;
  api_.notif_map_size(notes_, &agents);
  for (std::size_t agent = 0; agent < agents; ++agent) {
    const char* from = nullptr;
    std::size_t count = 0;
    if (api_.notif_map_get_agent_at(notes_, agent, &from) != kNixlSuccess) continue;
    api_.notif_map_get_notifs_size(notes_, from, &count);
    for (std::size_t note = 0; note < count; ++note) {
      const void* data = nullptr;
      std::size_t size_bytes = 0;
      if (api_.notif_map_get_notif(notes_, from, note, &data, &size_bytes) != kNixlSuccess) continue;
      const auto* first = static_cast<const std::byte*>(data);
      taken.push_back({from, {first, first + size_bytes}});
    }
  }
  api_.notif_map_clear(notes_);
  return taken;
}

NixlRequest* NixlAgent::post(const std::string& to, std::span<const Descriptor> descriptors) {
  NixlTransferList* const local = list_of(descriptors, &Descriptor::local);
  NixlTransferList* const remote = list_of(descriptors, &Descriptor::remote);
  NixlRequest* request = nullptr;
  const bool made =
      local != nullptr && remote != nullptr &&
      api_.create_xfer_req(agent_, kNixlWrite, local, remote, to.c_str(), &request, options_) == kNixlSuccess;
  if (local != nullptr) api_.destroy_xfer_dlist(local);
  if (remote != nullptr) api_.destroy_xfer_dlist(remote);
  if (!made) return nullptr;
  if (api_.post_xfer_req(agent_, request, nullptr) >= kNixlSuccess) return request;
  release(request);
  return nullptr;
}

NixlWriteState NixlAgent::state(NixlRequest* request) {
  switch (api_.get_xfer_status(agent_, request)) {
    case kNixlSuccess: return NixlWriteState::kDone;
    case kNixlInProgress: return NixlWriteState::kRunning;
    default: return NixlWriteState::kFailed;
  }
}

void NixlAgent::release(NixlRequest* request) {
  if (api_.release_xfer_req(agent_, request) != kNixlSuccess) {
    log(LogLevel::kWarning, "NIXL has not released a request");
  }
  api_.destroy_xfer_req(request);
}

NixlTransferList* NixlAgent::list_of(std::span<const Descriptor> descriptors,
                                     std::uint64_t Descriptor::* address) const {
  NixlTransferList* list = nullptr;
  if (api_.create_xfer_dlist(kNixlHostMemory, &list, false) != kNixlSuccess) return nullptr;
  for (const Descriptor& descriptor : descriptors) {
    api_.xfer_dlist_add_desc(list, descriptor.*address, descriptor.length_bytes, 0);
  }
  return list;
}

}  // namespace kvpush
