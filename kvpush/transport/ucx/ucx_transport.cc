#include "kvpush/transport/ucx/ucx_transport.h"

#include <poll.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/log.h"
#include "kvpush/transport/address.h"
#include "kvpush/transport/region_table.h"
#include "kvpush/transport/ucx/wires.h"
#include "kvpush/transport/ucx/worker.h"

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

static_assert(std::endian::native == std::endian::little, "the headers below go over the wire as they are");

// Active messages of ours, by UCX's number for them.
constexpr unsigned kWriteMessage = 1;
constexpr unsigned kAnswerMessage = 2;
// Bytes of one write message: with its headers it fits into one of UCX's TCP segments (8 KiB), so that the target
// stores it straight from there. 64 KiB, which UCX puts together first, was a third slower.
constexpr std::uint64_t kMessageBytesMax = 7680;

// Before the bytes that go to `remote`.
struct WriteHeader {
  std::uint64_t batch = 0;        // the writer's number
  std::uint64_t batch_bytes = 0;  // of all its messages
  std::uint64_t remote = 0;
};

// All bytes of the batch have arrived.
struct AnswerHeader {
  std::uint64_t batch = 0;
  std::uint64_t refused = 0;  // not 0: some were outside the regions and are not stored
};

// The Transport contract over UCX.
//
// Where the adapter stores the bytes (RDMA), a descriptor is a put and a batch ends with a flush of the endpoint. Where
// the target's software does, both are messages of our own: UCX would send puts as messages too, but a target whose
// writer dies while it acknowledges one is ended by UCX (ucp_rma_sw_send_cmpl: "Fatal: unexpected error").
//
// Job: maps memory, keeps endpoints in peer-error mode, counts the requests of each batch, stores what arrives.
// Not here: which wire UCX takes (its own choice among those allowed), and retrying on a failed endpoint.
// Owner: Agent.
// Thread: agent role.
// Invariant: a batch ends only when UCX has ended every request of it, so none of them reads local memory any more.
class UcxTransport final : public Transport {
 public:
  UcxTransport(std::unique_ptr<UcxWorker> worker, std::vector<std::byte> worker_address);
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
  // A batch that is arriving here.
  struct Incoming {
    std::uint64_t bytes = 0;
    bool refused = false;
  };
  struct Peer {
    UcxTransport* transport = nullptr;
    PeerId id;
    ucp_ep_h endpoint = nullptr;  // null once closed
    RegionTable regions;
    std::vector<ucp_rkey_h> keys;  // by number of the region
    bool by_messages = true;
    std::size_t in_flight = 0;  // batches not handed out
    std::map<std::uint64_t, Incoming> incoming;
    bool connecting = true;
    bool failed = false;
  };
  struct Batch {
    UcxTransport* transport = nullptr;
    PeerId peer;
    WriteToken token;
    std::uint64_t number = 0;
    std::vector<Descriptor> descriptors;
    std::vector<WriteHeader> headers;  // UCX reads them until their message is sent
    std::size_t requests = 0;          // UCX has not ended; one more while write() runs
    bool unanswered = false;           // by the target
    std::optional<Error> error;
    std::list<Batch>::iterator self;
  };
  struct Answer {
    UcxTransport* transport = nullptr;
    AnswerHeader header;  // UCX reads it until it is sent
    std::list<Answer>::iterator self;
  };
  struct Ended {
    PeerId peer;
    WriteCompletion completion;
  };

  static void on_request_end(void* request, ucs_status_t status, void* batch);
  static void on_answer_sent(void* request, ucs_status_t status, void* answer);
  static ucs_status_t on_write_message(void* transport, const void* header, std::size_t header_bytes, void* data,
                                       std::size_t size, const ucp_am_recv_param_t* param);
  static ucs_status_t on_answer_message(void* transport, const void* header, std::size_t header_bytes, void* data,
                                        std::size_t size, const ucp_am_recv_param_t* param);
  static void on_connected(void* request, ucs_status_t status, void* peer);
  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  Result<void> open_endpoint(Peer& peer, std::span<const std::byte> worker_address);
  Result<void> unpack_keys(Peer& peer, AddressReader& reader);
  void post_puts(Peer& peer, Batch& batch);
  void post_messages(Peer& peer, Batch& batch);
  // The peer at the other end of the endpoint that a message came by; null if we do not know it or have closed it.
  Peer* sender(const ucp_am_recv_param_t& param) const;
  void store(Peer& peer, const WriteHeader& header, std::span<const std::byte> bytes);
  void answer(Peer& peer, const AnswerHeader& header);
  void answered(PeerId peer, const AnswerHeader& header);
  void took(Batch& batch, ucs_status_ptr_t request);
  void request_ended(Batch& batch, ucs_status_t status);
  void end_if_done(Batch& batch);
  // Closes by force: afterwards every batch of the peer has ended.
  void close(Peer& peer);
  void let_connect(const Peer& peer);
  bool has_requests(PeerId peer) const;
  // False if closing the peer's endpoint would not stop what the peer has sent.
  bool note_wires(Peer& peer);
  std::size_t report_losses(TransportEvents& events);
  void wake_if_armed();

  const std::unique_ptr<UcxWorker> worker_;
  const std::vector<std::byte> worker_address_;
  RegionTable regions_;
  std::map<RegionId, Mapped> mapped_;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;    // UCX holds pointers to them
  std::unordered_map<ucp_ep_h, Peer*> by_endpoint_;  // those not closed
  std::uint32_t next_peer_ = 0;
  std::list<Batch> batches_;  // UCX holds pointers to them
  std::uint64_t next_batch_ = 0;
  std::list<Answer> answers_;  // being sent; UCX holds pointers to them
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

UcxTransport::UcxTransport(std::unique_ptr<UcxWorker> worker, std::vector<std::byte> worker_address)
    : worker_(std::move(worker)), worker_address_(std::move(worker_address)) {
  worker_->receive(kWriteMessage, &on_write_message, this);
  worker_->receive(kAnswerMessage, &on_answer_message, this);
}

UcxTransport::~UcxTransport() {
  while (!peers_.empty()) disconnect(peers_.begin()->first);
  for (const auto& [id, mapped] : mapped_) ucp_mem_unmap(worker_->context(), mapped.handle);
}

// They hold for every wire that connect() accepts, so that they may be asked for before the first peer.
TransportFacts UcxTransport::facts() const {
  return {.disconnect_fences = true, .writes_die_with_writer = false, .target_must_progress = true};
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
  if (unpacked && !note_wires(*peer)) {
    unpacked = fail(ErrorCode::kUnavailable, "UCX chose a wire that cannot be fenced");
  }
  by_endpoint_.emplace(peer->endpoint, peer.get());
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
  batch.number = next_batch_++;
  batch.descriptors.assign(descriptors.begin(), descriptors.end());
  batch.self = std::prev(batches_.end());
  batch.requests = 1;
  if (to.by_messages) {
    post_messages(to, batch);
  } else {
    post_puts(to, batch);
  }
  request_ended(batch, UCS_OK);
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

void UcxTransport::on_answer_sent(void* request, ucs_status_t /*status*/, void* answer) {
  ucp_request_free(request);
  const Answer& sent = *static_cast<Answer*>(answer);
  sent.transport->answers_.erase(sent.self);
}

ucs_status_t UcxTransport::on_write_message(void* transport, const void* header, std::size_t header_bytes, void* data,
                                            std::size_t size, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxTransport*>(transport);
  Peer* const peer = self.sender(*param);
  WriteHeader read;
  // Data that is not here yet (a rendezvous) is not what our writers send.
  const bool is_here = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  if (peer == nullptr || !is_here || header_bytes != sizeof read) return UCS_OK;
  std::memcpy(&read, header, sizeof read);
  self.store(*peer, read, {static_cast<const std::byte*>(data), size});
  return UCS_OK;
}

ucs_status_t UcxTransport::on_answer_message(void* transport, const void* header, std::size_t header_bytes,
                                             void* /*data*/, std::size_t /*size*/, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxTransport*>(transport);
  const Peer* const peer = self.sender(*param);
  AnswerHeader read;
  if (peer == nullptr || header_bytes != sizeof read) return UCS_OK;
  std::memcpy(&read, header, sizeof read);
  self.answered(peer->id, read);
  return UCS_OK;
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

void UcxTransport::post_puts(Peer& peer, Batch& batch) {
  ucp_request_param_t flush{};
  flush.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  flush.cb.send = &on_request_end;
  flush.user_data = &batch;
  ucp_request_param_t put = flush;
  put.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
  for (const Descriptor& descriptor : batch.descriptors) {
    if (descriptor.length_bytes == 0) continue;
    const Region* source = regions_.holder(descriptor.local, descriptor.length_bytes);
    const Region* target = peer.regions.holder(descriptor.remote, descriptor.length_bytes);
    put.memh = mapped_.at(source->id).handle;
    took(batch, ucp_put_nbx(peer.endpoint, reinterpret_cast<const void*>(descriptor.local), descriptor.length_bytes,
                            descriptor.remote, peer.keys[target->id.value], &put));
  }
  took(batch, ucp_ep_flush_nbx(peer.endpoint, &flush));
}

// A batch of no bytes is one message of none: its answer still says that the target is there.
void UcxTransport::post_messages(Peer& peer, Batch& batch) {
  std::vector<Descriptor> pieces;
  std::uint64_t batch_bytes = 0;
  for (const Descriptor& whole : batch.descriptors) {
    batch_bytes += whole.length_bytes;
    for (std::uint64_t at = 0; at < whole.length_bytes; at += kMessageBytesMax) {
      pieces.push_back({whole.local + at, whole.remote + at, std::min(kMessageBytesMax, whole.length_bytes - at)});
    }
  }
  if (pieces.empty()) pieces.emplace_back();
  for (const Descriptor& piece : pieces) batch.headers.push_back({batch.number, batch_bytes, piece.remote});

  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &on_request_end;
  param.user_data = &batch;
  batch.unanswered = true;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    took(batch, ucp_am_send_nbx(peer.endpoint, kWriteMessage, &batch.headers[i], sizeof(WriteHeader),
                                reinterpret_cast<const void*>(pieces[i].local), pieces[i].length_bytes, &param));
  }
}

UcxTransport::Peer* UcxTransport::sender(const ucp_am_recv_param_t& param) const {
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  const auto found = by_endpoint_.find(param.reply_ep);
  return found == by_endpoint_.end() ? nullptr : found->second;
}

void UcxTransport::store(Peer& peer, const WriteHeader& header, std::span<const std::byte> bytes) {
  // More batches than a writer may have in flight: not one of ours, and not worth memory.
  if (!peer.incoming.contains(header.batch) && peer.incoming.size() >= kBatchesInFlightMax) return;
  Incoming& batch = peer.incoming[header.batch];
  batch.bytes += bytes.size();
  if (bytes.empty()) {
  } else if (regions_.holder(header.remote, bytes.size()) == nullptr) {
    batch.refused = true;
  } else {
    std::memcpy(reinterpret_cast<void*>(header.remote), bytes.data(), bytes.size());
  }
  if (batch.bytes < header.batch_bytes) return;
  answer(peer, {header.batch, batch.refused ? 1u : 0u});
  peer.incoming.erase(header.batch);
}

void UcxTransport::answer(Peer& peer, const AnswerHeader& header) {
  Answer& kept = answers_.emplace_back(Answer{this, header, {}});
  kept.self = std::prev(answers_.end());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &on_answer_sent;
  param.user_data = &kept;
  // If it cannot be sent, the endpoint has failed and says so by itself.
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(peer.endpoint, kAnswerMessage, &kept.header, sizeof kept.header, nullptr, 0, &param);
  if (!UCS_PTR_IS_PTR(request)) answers_.erase(kept.self);
}

void UcxTransport::answered(PeerId peer, const AnswerHeader& header) {
  const auto batch = std::ranges::find(batches_, header.batch, &Batch::number);
  if (batch == batches_.end() || batch->peer != peer) return;
  batch->unanswered = false;
  if (header.refused != 0) batch->error = Error{ErrorCode::kOutOfRegion, "the target has no such region any more"};
  end_if_done(*batch);
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
  --batch.requests;
  end_if_done(batch);
}

void UcxTransport::end_if_done(Batch& batch) {
  if (batch.requests > 0 || (batch.unanswered && !batch.error)) return;
  ended_.push_back({batch.peer, {batch.token, batch.error}});
  batches_.erase(batch.self);
}

void UcxTransport::close(Peer& peer) {
  if (peer.endpoint == nullptr) return;
  by_endpoint_.erase(peer.endpoint);  // from here on nothing of this peer is stored
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
  while (closing() || peer.connecting || has_requests(peer.id)) {
    ucp_worker_progress(worker_->worker());
    KVPUSH_CHECK(++turns < kCloseTurnsMax, "UCX has not ended a forced close: the fate of its writes is unknown");
  }
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  for (auto next = batches_.begin(); next != batches_.end();) {
    Batch& batch = *next++;
    if (batch.peer != peer.id) continue;
    if (!batch.error) batch.error = Error{ErrorCode::kPeerLost, "the ucx endpoint was closed"};
    end_if_done(batch);
  }
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

bool UcxTransport::has_requests(PeerId peer) const {
  return std::ranges::any_of(batches_, [peer](const Batch& batch) { return batch.peer == peer && batch.requests > 0; });
}

bool UcxTransport::note_wires(Peer& peer) {
  std::set<std::string> wires = wires_of(peer.endpoint);
  peer.by_messages = wires.empty() || std::ranges::any_of(wires, target_moves);
  const bool fence = std::ranges::all_of(wires, close_fences);
  wires_.merge(wires);
  wire_.clear();
  for (const std::string& wire : wires_) wire_ += (wire_.empty() ? "" : ",") + wire;
  if (wire_.empty()) wire_ = "unknown";
  return fence;
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
