#include "kvpush/transport/ucx/ucx_transport.h"

#include <poll.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/log.h"
#include "kvpush/transport/address.h"
#include "kvpush/transport/region_table.h"
#include "kvpush/transport/ucx/wires.h"

namespace kvpush {
namespace {

constexpr std::string_view kMagic = "KVPUCX01";
// Shared memory and self refuse peer-error mode. dc has one target for all peers, so that closing an endpoint stops
// nobody; it is named only where it can be there, as UCX warns of names that mean nothing to it.
constexpr const char* kFenceableTransports = "^sm,self";
constexpr const char* kFenceableTransportsOfRdma = "^sm,self,dc";
constexpr const char* kRdmaDevices = "/sys/class/infiniband";
// Every session has a peer, and while it is replaced its successor has one too.
constexpr std::size_t kPeersMax = 2 * kSessionsMax;
// A forced close needs no peer and was seen to take tens of calls of ucp_worker_progress(); one that never ends would
// leave writes in an unknown state.
constexpr std::size_t kCloseTurnsMax = 1u << 24;
// How long a peer that is to be closed is given to finish connecting: ten times a slow round trip between hosts.
constexpr int kConnectingWaits = 10;
constexpr int kConnectingWaitMilliseconds = 10;

// The context and worker of one transport.
//
// Job: owns both.
// Thread: agent role.
class UcxWorker {
 public:
  static Result<std::unique_ptr<UcxWorker>> open(const char* transports);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }
  int event_fd() const { return event_fd_; }
  Result<std::vector<std::byte>> address() const;

 private:
  UcxWorker() = default;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
};

// The Transport contract over UCX: one put for each descriptor, one endpoint flush for each batch.
//
// Job: maps memory, keeps endpoints in peer-error mode, counts the requests of each batch.
// Not here: which wire UCX takes (its own choice among those allowed), and retrying on a failed endpoint.
// Owner: Agent.
// Thread: agent role.
// Invariant: a batch ends only when UCX has ended every request of it, so none of them reads local memory any more.
class UcxTransport final : public Transport {
 public:
  UcxTransport(std::unique_ptr<UcxWorker> worker, std::vector<std::byte> worker_address)
      : worker_(std::move(worker)), worker_address_(std::move(worker_address)) {}
  ~UcxTransport() override;

  std::string_view name() const override { return "ucx"; }
  std::string_view wire() const override { return wire_; }
  TransportFacts facts() const override;

  Result<RegionId> register_region(std::span<std::byte> memory) override;
  Result<void> deregister_region(RegionId region) override;
  std::vector<std::byte> address() const override;
  Result<PeerId> connect(std::span<const std::byte> address) override;
  void disconnect(PeerId peer) override;
  Result<void> write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) override;
  std::size_t poll(TransportEvents& events) override;
  int event_fd() const override { return worker_->event_fd(); }
  bool arm() override;

 private:
  struct Mapped {
    ucp_mem_h handle = nullptr;
    std::vector<std::byte> key;  // packed, for peers
  };
  struct Peer {
    UcxTransport* transport = nullptr;
    PeerId id;
    ucp_ep_h endpoint = nullptr;  // null once closed
    RegionTable regions;
    std::vector<ucp_rkey_h> keys;  // by number of the region
    std::size_t in_flight = 0;     // batches not handed out
    bool connecting = true;
    bool failed = false;
  };
  struct Batch {
    UcxTransport* transport = nullptr;
    PeerId peer;
    WriteToken token;
    std::vector<Descriptor> descriptors;
    std::size_t requests = 0;  // UCX has not ended; one more while write() runs
    std::optional<Error> error;
    std::list<Batch>::iterator self;
  };
  struct Ended {
    PeerId peer;
    WriteCompletion completion;
  };

  static void on_request_end(void* request, ucs_status_t status, void* batch);
  static void on_connected(void* request, ucs_status_t status, void* peer);
  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  Result<void> open_endpoint(Peer& peer, std::span<const std::byte> worker_address);
  Result<void> unpack_keys(Peer& peer, AddressReader& reader);
  void post(Peer& peer, Batch& batch);
  void took(Batch& batch, ucs_status_ptr_t request);
  void request_ended(Batch& batch, ucs_status_t status);
  // Closes by force: afterwards every batch of the peer has ended.
  void close(Peer& peer);
  void let_connect(const Peer& peer);
  bool has_batches(PeerId peer) const;
  void note_wires(const Peer& peer);
  std::size_t report_losses(TransportEvents& events);
  void wake_if_armed();

  const std::unique_ptr<UcxWorker> worker_;
  const std::vector<std::byte> worker_address_;
  RegionTable regions_;
  std::map<RegionId, Mapped> mapped_;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;  // UCX holds pointers to them
  std::uint32_t next_peer_ = 0;
  std::list<Batch> batches_;  // UCX holds pointers to them
  std::vector<Ended> ended_;
  std::vector<PeerId> failed_;  // not reported yet
  std::set<std::string> wires_;
  std::string wire_ = "not connected";
  bool armed_ = false;
};

std::set<std::string> wires_of(ucp_ep_h endpoint);
Error error_of(ucs_status_t status);

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options) {
  const bool rdma = access(kRdmaDevices, F_OK) == 0;
  const char* fenceable = rdma ? kFenceableTransportsOfRdma : kFenceableTransports;
  auto worker = UcxWorker::open(options.transports.empty() ? fenceable : options.transports.c_str());
  if (!worker) return std::unexpected(worker.error());
  Result<std::vector<std::byte>> address = (*worker)->address();
  if (!address) return std::unexpected(address.error());
  return std::make_unique<UcxTransport>(std::move(*worker), std::move(*address));
}

namespace {

Result<std::unique_ptr<UcxWorker>> UcxWorker::open(const char* transports) {
  ucp_config_t* config = nullptr;
  if (ucp_config_read(nullptr, nullptr, &config) != UCS_OK) {
    return fail(ErrorCode::kUnavailable, "UCX cannot read its configuration");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  std::unique_ptr<UcxWorker> self(new UcxWorker);
  const bool configured = ucp_config_modify(config, "TLS", transports) == UCS_OK;
  const ucs_status_t opened = configured ? ucp_init(&params, config, &self->context_) : UCS_ERR_INVALID_PARAM;
  ucp_config_release(config);
  if (opened != UCS_OK) return fail(ErrorCode::kUnavailable, "UCX finds no device for the transports allowed");

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  if (ucp_worker_create(self->context_, &worker_params, &self->worker_) != UCS_OK ||
      ucp_worker_get_efd(self->worker_, &self->event_fd_) != UCS_OK) {
    return fail(ErrorCode::kUnavailable, "UCX cannot make a worker that can be waited for");
  }
  return self;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

Result<std::vector<std::byte>> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  if (ucp_worker_get_address(worker_, &address, &size) != UCS_OK) {
    return fail(ErrorCode::kUnavailable, "UCX does not tell its address");
  }
  const auto* first = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> bytes(first, first + size);
  ucp_worker_release_address(worker_, address);
  return bytes;
}

UcxTransport::~UcxTransport() {
  while (!peers_.empty()) disconnect(peers_.begin()->first);
  for (const auto& [id, mapped] : mapped_) ucp_mem_unmap(worker_->context(), mapped.handle);
}

// Before the first peer, and where UCX does not tell, the weaker promise.
TransportFacts UcxTransport::facts() const {
  return {.disconnect_fences = !wires_.empty() && std::ranges::all_of(wires_, close_fences),
          .writes_die_with_writer = false,
          .target_must_progress = wires_.empty() || std::ranges::any_of(wires_, target_moves)};
}

Result<RegionId> UcxTransport::register_region(std::span<std::byte> memory) {
  const auto base = reinterpret_cast<std::uint64_t>(memory.data());
  const Result<RegionId> id = regions_.add(base, memory.size());
  if (!id) return id;
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  Mapped mapped;
  void* key = nullptr;
  std::size_t key_bytes = 0;
  if (ucp_mem_map(worker_->context(), &params, &mapped.handle) != UCS_OK) {
    regions_.remove(*id);
    return fail(ErrorCode::kUnavailable, "UCX cannot register the memory (is the limit of locked memory too low?)");
  }
  const bool packed = ucp_rkey_pack(worker_->context(), mapped.handle, &key, &key_bytes) == UCS_OK;
  if (packed) {
    const auto* first = static_cast<const std::byte*>(key);
    mapped.key.assign(first, first + key_bytes);
    ucp_rkey_buffer_release(key);
  }
  mapped_.emplace(*id, std::move(mapped));
  if (packed && address().size() <= kTransportAddressBytesMax) return id;
  ucp_mem_unmap(worker_->context(), mapped_.at(*id).handle);
  mapped_.erase(*id);
  regions_.remove(*id);
  return fail(ErrorCode::kFull, "the keys of so many regions do not fit into an address");
}

Result<void> UcxTransport::deregister_region(RegionId region) {
  const Region* found = regions_.find(region);
  if (found == nullptr) return fail(ErrorCode::kBadConfig, "no such region");
  const auto reads = [found](const Batch& batch) { return reads_region(batch.descriptors, *found); };
  if (std::ranges::any_of(batches_, reads)) return fail(ErrorCode::kBusy, "a posted write reads the region");
  ucp_mem_unmap(worker_->context(), mapped_.at(region).handle);
  mapped_.erase(region);
  regions_.remove(region);
  return {};
}

std::vector<std::byte> UcxTransport::address() const {
  AddressWriter address(kMagic);
  address.put_u32(static_cast<std::uint32_t>(worker_address_.size()));
  address.put_bytes(worker_address_);
  put_regions(regions_, address);
  for (const Region& region : regions_.all()) {
    const std::vector<std::byte>& key = mapped_.at(region.id).key;
    address.put_u32(static_cast<std::uint32_t>(key.size()));
    address.put_bytes(key);
  }
  return address.take();
}

Result<PeerId> UcxTransport::connect(std::span<const std::byte> address) {
  AddressReader reader(address, kMagic);
  const auto worker_address = reader.bytes(reader.u32());
  Result<RegionTable> regions = read_regions(reader);
  if (!regions) return std::unexpected(regions.error());
  if (worker_address.empty()) return fail(ErrorCode::kBadMessage, "a ucx address names no worker");
  if (peers_.size() >= kPeersMax) return fail(ErrorCode::kFull, "too many peers");

  auto peer = std::make_unique<Peer>();
  peer->transport = this;
  peer->id = PeerId{next_peer_++};
  peer->regions = std::move(*regions);
  if (auto opened = open_endpoint(*peer, worker_address); !opened) return std::unexpected(opened.error());
  auto unpacked = unpack_keys(*peer, reader);
  if (unpacked && !reader.ended()) unpacked = fail(ErrorCode::kBadMessage, "a ucx address is too long");
  const PeerId id = peer->id;
  note_wires(*peer);
  peers_.emplace(id, std::move(peer));
  if (!unpacked) {
    disconnect(id);
    return std::unexpected(unpacked.error());
  }
  return id;
}

void UcxTransport::disconnect(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  close(*found->second);
  for (const ucp_rkey_h key : found->second->keys) ucp_rkey_destroy(key);
  peers_.erase(found);
  std::erase(failed_, peer);
  wake_if_armed();
}

Result<void> UcxTransport::write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) {
  KVPUSH_CHECK(descriptors.size() <= kBatchDescriptorsMax, "a batch has more descriptors than one batch may have");
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second->failed) return fail(ErrorCode::kPeerLost, "the peer is gone");
  Peer& to = *found->second;
  if (auto checked = check_descriptors(descriptors, regions_, to.regions); !checked) return checked;
  if (to.in_flight >= kBatchesInFlightMax) return fail(ErrorCode::kFull, "too many batches in flight to this peer");
  ++to.in_flight;
  Batch& batch = batches_.emplace_back();
  batch.transport = this;
  batch.peer = peer;
  batch.token = token;
  batch.descriptors.assign(descriptors.begin(), descriptors.end());
  batch.self = std::prev(batches_.end());
  post(to, batch);
  wake_if_armed();
  return {};
}

std::size_t UcxTransport::poll(TransportEvents& events) {
  armed_ = false;
  std::size_t work = 0;
  while (work < kTurnWorkMax && failed_.empty() && ucp_worker_progress(worker_->worker()) != 0) ++work;
  work += report_losses(events);
  for (const Ended& ended : ended_) {
    events.completions.push_back(ended.completion);
    if (const auto peer = peers_.find(ended.peer); peer != peers_.end()) --peer->second->in_flight;
  }
  work += ended_.size();
  ended_.clear();
  return work;
}

bool UcxTransport::arm() {
  armed_ = ended_.empty() && failed_.empty() && ucp_worker_arm(worker_->worker()) == UCS_OK;
  return armed_;
}

void UcxTransport::on_request_end(void* request, ucs_status_t status, void* batch) {
  ucp_request_free(request);
  Batch& ended = *static_cast<Batch*>(batch);
  ended.transport->request_ended(ended, status);
}

void UcxTransport::on_connected(void* request, ucs_status_t /*status*/, void* peer) {
  ucp_request_free(request);
  static_cast<Peer*>(peer)->connecting = false;
}

// UCX calls this from its progress, where the endpoint may not be closed yet.
void UcxTransport::on_endpoint_error(void* peer, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  Peer& failed = *static_cast<Peer*>(peer);
  log(LogLevel::kDebug, std::string("a ucx endpoint failed: ") + ucs_status_string(status));
  failed.failed = true;
  failed.transport->failed_.push_back(failed.id);
}

Result<void> UcxTransport::open_endpoint(Peer& peer, std::span<const std::byte> worker_address) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &on_endpoint_error, .arg = &peer};
  if (ucp_ep_create(worker_->worker(), &params, &peer.endpoint) != UCS_OK) {
    return fail(ErrorCode::kUnavailable, "UCX has no transport to this peer that reports its failure");
  }
  // The flush of an endpoint that has sent nothing ends when it has connected.
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &on_connected;
  param.user_data = &peer;
  peer.connecting = UCS_PTR_IS_PTR(ucp_ep_flush_nbx(peer.endpoint, &param));
  return {};
}

Result<void> UcxTransport::unpack_keys(Peer& peer, AddressReader& reader) {
  while (peer.keys.size() < peer.regions.all().size()) {
    const auto packed = reader.bytes(reader.u32());
    ucp_rkey_h key = nullptr;
    if (packed.empty() || ucp_ep_rkey_unpack(peer.endpoint, packed.data(), &key) != UCS_OK) {
      return fail(ErrorCode::kBadMessage, "a ucx address holds a key that UCX does not know");
    }
    peer.keys.push_back(key);
  }
  return {};
}

void UcxTransport::post(Peer& peer, Batch& batch) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &on_request_end;
  param.user_data = &batch;
  ucp_request_param_t put = param;
  put.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
  batch.requests = 1;
  for (const Descriptor& descriptor : batch.descriptors) {
    if (descriptor.length_bytes == 0) continue;
    const Region* source = regions_.holder(descriptor.local, descriptor.length_bytes);
    const Region* target = peer.regions.holder(descriptor.remote, descriptor.length_bytes);
    put.memh = mapped_.at(source->id).handle;
    took(batch, ucp_put_nbx(peer.endpoint, reinterpret_cast<const void*>(descriptor.local), descriptor.length_bytes,
                            descriptor.remote, peer.keys[target->id.value], &put));
  }
  took(batch, ucp_ep_flush_nbx(peer.endpoint, &param));
  request_ended(batch, UCS_OK);
}

void UcxTransport::took(Batch& batch, ucs_status_ptr_t request) {
  if (UCS_PTR_IS_PTR(request)) {
    ++batch.requests;
  } else if (UCS_PTR_IS_ERR(request) && !batch.error) {
    batch.error = error_of(UCS_PTR_STATUS(request));
  }
}

void UcxTransport::request_ended(Batch& batch, ucs_status_t status) {
  if (status != UCS_OK && !batch.error) batch.error = error_of(status);
  if (--batch.requests > 0) return;
  ended_.push_back({batch.peer, {batch.token, batch.error}});
  batches_.erase(batch.self);
}

void UcxTransport::close(Peer& peer) {
  if (peer.endpoint == nullptr) return;
  let_connect(peer);
  peer.failed = true;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(peer.endpoint, &param);
  peer.endpoint = nullptr;
  const auto closing = [request] {
    return UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS;
  };
  std::size_t turns = 0;
  while (closing() || peer.connecting || has_batches(peer.id)) {
    ucp_worker_progress(worker_->worker());
    KVPUSH_CHECK(++turns < kCloseTurnsMax, "UCX has not ended a forced close: the fate of its writes is unknown");
  }
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

// UCX 1.13 over TCP ends the process of a peer (an assertion of its own) when we close while the two still connect.
void UcxTransport::let_connect(const Peer& peer) {
  for (int waits = 0; peer.connecting && !peer.failed && waits < kConnectingWaits; ++waits) {
    while (ucp_worker_progress(worker_->worker()) != 0) {
    }
    pollfd request{worker_->event_fd(), POLLIN, 0};
    if (ucp_worker_arm(worker_->worker()) == UCS_OK) ::poll(&request, 1, kConnectingWaitMilliseconds);
  }
}

bool UcxTransport::has_batches(PeerId peer) const {
  return std::ranges::any_of(batches_, [peer](const Batch& batch) { return batch.peer == peer; });
}

void UcxTransport::note_wires(const Peer& peer) {
  wires_.merge(wires_of(peer.endpoint));
  wire_.clear();
  for (const std::string& wire : wires_) wire_ += (wire_.empty() ? "" : ",") + wire;
  if (wire_.empty()) wire_ = "unknown";
}

std::size_t UcxTransport::report_losses(TransportEvents& events) {
  const std::vector<PeerId> failed = std::exchange(failed_, {});
  for (const PeerId id : failed) {
    close(*peers_.at(id));
    events.lost.push_back({id, {ErrorCode::kPeerLost, "the ucx endpoint failed"}, false});
  }
  return failed.size();
}

// An owner that may be waiting already needs a push; one that is busy calls arm() first and hears it there.
void UcxTransport::wake_if_armed() {
  if (armed_) ucp_worker_signal(worker_->worker());
}

std::set<std::string> wires_of(ucp_ep_h endpoint) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::set<std::string> wires = wires_in({text, size});
  std::free(text);
  return wires;
}

// In peer-error mode every other status means that the endpoint has failed or was closed.
Error error_of(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE: return {ErrorCode::kTransportFailed, "UCX lacks memory for a write"};
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_UNSUPPORTED: return {ErrorCode::kTransportFailed, "UCX cannot do this write"};
    default: return {ErrorCode::kPeerLost, "the ucx endpoint failed or was closed"};
  }
}

}  // namespace
}  // namespace kvpush
