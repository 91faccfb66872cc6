#include "kvpush/transport/ucx/peer.h"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/log.h"
#include "kvpush/transport/address.h"
#include "kvpush/transport/ucx/wires.h"

namespace kvpush {
namespace {

constexpr std::string_view kHelloMagic = "KVPUCXHI";
// A forced close needs no peer and was seen to take tens of calls of ucp_worker_progress(); one that never ends would
// leave writes in an unknown state.
constexpr std::size_t kCloseTurnsMax = 1u << 24;
// How long a peer that is to be closed is given to finish connecting: ten times a slow round trip between hosts.
constexpr int kConnectingWaits = 10;
constexpr int kConnectingWaitMilliseconds = 10;

static_assert(std::endian::native == std::endian::little, "headers go over the wire as they are");

// Active messages of ours, by UCX's number for them.
constexpr unsigned kHelloMessage = 0;
constexpr unsigned kWriteMessage = 1;
constexpr unsigned kAnswerMessage = 2;
// Bytes of one write message: with its headers it fits into one of UCX's TCP segments (8 KiB), so that the target
// stores it straight from there. 64 KiB, which UCX puts together first, was a third slower.
constexpr std::uint64_t kMessageBytesMax = 7680;

ucp_request_param_t calls_back(ucp_send_nbx_callback_t callback, void* argument) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = callback;
  param.user_data = argument;
  return param;
}

ucp_request_param_t sends_and_calls_back(ucp_send_nbx_callback_t callback, void* argument) {
  ucp_request_param_t param = calls_back(callback, argument);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  return param;
}

// Data that is not here yet (a rendezvous) is not what our writers send.
bool is_here(const ucp_am_recv_param_t& param) {
  return (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
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

UcxPeer::UcxPeer(const UcxMemory& memory, std::unique_ptr<UcxWorker> worker, RegionTable regions,
                 std::vector<std::vector<std::byte>> keys)
    : memory_(memory), worker_(std::move(worker)), regions_(std::move(regions)), packed_keys_(std::move(keys)) {
  worker_->receive(kHelloMessage, &on_hello_message, this);
  worker_->receive(kWriteMessage, &on_write_message, this);
  worker_->receive(kAnswerMessage, &on_answer_message, this);
}

UcxPeer::~UcxPeer() {
  close({ErrorCode::kPeerLost, "the transport is closed"});
}

Result<void> UcxPeer::greet(std::span<const std::byte> worker_address) {
  if (auto opened = open_endpoint(worker_address); !opened) return opened;
  send_hello();
  return {};
}

Result<void> UcxPeer::write(std::span<const Descriptor> descriptors, WriteToken token) {
  if (failure_) return fail(ErrorCode::kPeerLost, "the peer is gone");
  if (auto checked = check_descriptors(descriptors, memory_.regions(), regions_); !checked) return checked;
  if (batches_.size() + ended_.size() >= kBatchesInFlightMax) {
    return fail(ErrorCode::kFull, "too many batches in flight to this peer");
  }
  Batch& batch = batches_.emplace_back(Batch{.peer = this, .token = token, .number = next_batch_++});
  batch.descriptors.assign(descriptors.begin(), descriptors.end());
  batch.self = std::prev(batches_.end());
  if (has_met_) post(batch);
  return {};
}

bool UcxPeer::reads(const Region& region) const {
  return std::ranges::any_of(batches_,
                             [&region](const Batch& batch) { return reads_region(batch.descriptors, region); });
}

std::size_t UcxPeer::progress(std::size_t work_max) {
  std::size_t work = 0;
  while (work < work_max && !failure_ && heard_.empty() && ucp_worker_progress(worker_->get()) != 0) ++work;
  // Not from within UCX's progress, since it makes an endpoint.
  if (!heard_.empty() && !failure_) {
    meet(std::exchange(heard_, {}));
    ++work;
  }
  return work;
}

std::size_t UcxPeer::take_ends(std::vector<WriteCompletion>& completions) {
  const std::size_t ends = ended_.size();
  completions.insert(completions.end(), ended_.begin(), ended_.end());
  ended_.clear();
  return ends;
}

bool UcxPeer::arm() {
  return ended_.empty() && (!is_open() || (!failure_ && ucp_worker_arm(worker_->get()) == UCS_OK));
}

void UcxPeer::close(const Error& error) {
  if (!is_open()) return;
  const bool was_lost = failure_.has_value();
  if (!was_lost) failure_ = error;  // from here on nothing is stored
  if (endpoint_ != nullptr) {
    if (!was_lost && !outlives_connecting_peers()) let_connect();
    close_endpoint();
  }
  for (const ucp_rkey_h key : std::exchange(keys_, {})) ucp_rkey_destroy(key);
  worker_.reset();
  for (Batch& batch : batches_) ended_.push_back({batch.token, batch.error.value_or(error)});
  batches_.clear();
}

void UcxPeer::on_batch_request_end(void* request, ucs_status_t status, void* batch) {
  Batch& part_of = *static_cast<Batch*>(batch);
  part_of.peer->ended(request);
  part_of.peer->request_ended(part_of, status);
}

void UcxPeer::on_answer_sent(void* request, ucs_status_t /*status*/, void* answer) {
  const Answer& sent = *static_cast<Answer*>(answer);
  sent.peer->ended(request);
  sent.peer->answers_.erase(sent.self);
}

void UcxPeer::on_connected(void* request, ucs_status_t /*status*/, void* peer) {
  auto& self = *static_cast<UcxPeer*>(peer);
  self.ended(request);
  self.is_connecting_ = false;
}

void UcxPeer::on_hello_sent(void* request, ucs_status_t /*status*/, void* peer) {
  static_cast<UcxPeer*>(peer)->ended(request);
}

// UCX calls this from its progress, where the endpoint may not be closed yet.
void UcxPeer::on_endpoint_error(void* peer, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  log(LogLevel::kDebug, std::string("a ucx endpoint failed: ") + ucs_status_string(status));
  auto& self = *static_cast<UcxPeer*>(peer);
  if (!self.failure_) self.failure_ = Error{ErrorCode::kPeerLost, "the ucx endpoint failed"};
}

ucs_status_t UcxPeer::on_hello_message(void* peer, const void* /*header*/, std::size_t /*header_bytes*/, void* data,
                                       std::size_t size, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxPeer*>(peer);
  if (self.has_met_ || !is_here(*param)) return UCS_OK;
  const auto* first = static_cast<const std::byte*>(data);
  self.heard_.assign(first, first + std::min(size, kTransportAddressBytesMax));
  return UCS_OK;
}

ucs_status_t UcxPeer::on_write_message(void* peer, const void* header, std::size_t header_bytes, void* data,
                                       std::size_t size, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxPeer*>(peer);
  WriteHeader read;
  // The first may come with the hello that is answered to ours, before meet() has read that.
  const bool is_heard = self.endpoint_ != nullptr && !self.failure_;
  if (!is_heard || !is_here(*param) || header_bytes != sizeof read) return UCS_OK;
  std::memcpy(&read, header, sizeof read);
  self.store(read, {static_cast<const std::byte*>(data), size});
  return UCS_OK;
}

ucs_status_t UcxPeer::on_answer_message(void* peer, const void* header, std::size_t header_bytes, void* /*data*/,
                                        std::size_t /*size*/, const ucp_am_recv_param_t* /*param*/) {
  auto& self = *static_cast<UcxPeer*>(peer);
  AnswerHeader read;
  if (header_bytes != sizeof read) return UCS_OK;
  std::memcpy(&read, header, sizeof read);
  self.answered(read);
  return UCS_OK;
}

Result<void> UcxPeer::open_endpoint(std::span<const std::byte> worker_address) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &on_endpoint_error, .arg = this};
  if (worker_address.empty() || ucp_ep_create(worker_->get(), &params, &endpoint_) != UCS_OK) {
    endpoint_ = nullptr;
    return fail(ErrorCode::kUnavailable, "UCX has no transport to this peer that reports its failure");
  }
  // The flush of an endpoint that has sent nothing ends when it has connected.
  const ucp_request_param_t param = calls_back(&on_connected, this);
  is_connecting_ = is_running(ucp_ep_flush_nbx(endpoint_, &param));

  wires_ = wires_of(endpoint_);
  if (!std::ranges::all_of(wires_, close_fences)) {
    return fail(ErrorCode::kUnavailable, "UCX chose a wire that cannot be fenced");
  }
  by_messages_ = wires_.empty() || std::ranges::any_of(wires_, target_moves);
  return unpack_keys();
}

Result<void> UcxPeer::unpack_keys() {
  for (const std::vector<std::byte>& packed : packed_keys_) {
    ucp_rkey_h key = nullptr;
    if (packed.empty() || ucp_ep_rkey_unpack(endpoint_, packed.data(), &key) != UCS_OK) {
      return fail(ErrorCode::kBadMessage, "a ucx address holds a key that UCX does not know");
    }
    keys_.push_back(key);
  }
  return {};
}

void UcxPeer::send_hello() {
  AddressWriter hello(kHelloMagic);
  hello.put_sized(worker_->address());
  hello_ = hello.take();
  const ucp_request_param_t param = sends_and_calls_back(&on_hello_sent, this);
  // If it cannot be sent, the endpoint has failed and says so by itself.
  is_running(ucp_am_send_nbx(endpoint_, kHelloMessage, nullptr, 0, hello_.data(), hello_.size(), &param));
}

void UcxPeer::meet(std::span<const std::byte> hello) {
  AddressReader reader(hello, kHelloMagic);
  const auto worker_address = reader.sized();
  Result<void> met;
  if (!reader.ended()) met = fail(ErrorCode::kBadMessage, "a ucx peer's hello is none");
  if (met && waits()) met = greet(worker_address);
  if (!met) {
    failure_ = met.error();
    return;
  }
  has_met_ = true;
  for (auto next = batches_.begin(); next != batches_.end();) post(*next++);
}

void UcxPeer::post(Batch& batch) {
  batch.requests = 1;
  if (by_messages_) {
    post_messages(batch);
  } else {
    post_puts(batch);
  }
  request_ended(batch, UCS_OK);
}

void UcxPeer::post_puts(Batch& batch) {
  const ucp_request_param_t flush = calls_back(&on_batch_request_end, &batch);
  ucp_request_param_t put = flush;
  put.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
  for (const Descriptor& descriptor : batch.descriptors) {
    if (descriptor.length_bytes == 0) continue;
    const Region* source = memory_.regions().holder(descriptor.local, descriptor.length_bytes);
    const Region* target = regions_.holder(descriptor.remote, descriptor.length_bytes);
    put.memh = memory_.handle(source->id);
    took(batch, ucp_put_nbx(endpoint_, reinterpret_cast<const void*>(descriptor.local), descriptor.length_bytes,
                            descriptor.remote, keys_[target->id.value], &put));
  }
  took(batch, ucp_ep_flush_nbx(endpoint_, &flush));
}

// A batch of no bytes is one message of none: its answer still says that the target is there.
void UcxPeer::post_messages(Batch& batch) {
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

  const ucp_request_param_t param = sends_and_calls_back(&on_batch_request_end, &batch);
  batch.unanswered = true;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    took(batch, ucp_am_send_nbx(endpoint_, kWriteMessage, &batch.headers[i], sizeof(WriteHeader),
                                reinterpret_cast<const void*>(pieces[i].local), pieces[i].length_bytes, &param));
  }
}

void UcxPeer::store(const WriteHeader& header, std::span<const std::byte> bytes) {
  // More batches than a writer may have in flight: not one of ours, and not worth memory.
  if (!incoming_.contains(header.batch) && incoming_.size() >= kBatchesInFlightMax) return;
  Incoming& batch = incoming_[header.batch];
  batch.bytes += bytes.size();
  if (bytes.empty()) {
  } else if (memory_.regions().holder(header.remote, bytes.size()) == nullptr) {
    batch.refused = true;
  } else {
    std::memcpy(reinterpret_cast<void*>(header.remote), bytes.data(), bytes.size());
  }
  if (batch.bytes < header.batch_bytes) return;
  answer({header.batch, batch.refused ? 1u : 0u});
  incoming_.erase(header.batch);
}

void UcxPeer::answer(const AnswerHeader& header) {
  Answer& kept = answers_.emplace_back(Answer{.peer = this, .header = header});
  kept.self = std::prev(answers_.end());
  const ucp_request_param_t param = sends_and_calls_back(&on_answer_sent, &kept);
  // If it cannot be sent, the endpoint has failed and says so by itself.
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kAnswerMessage, &kept.header, sizeof kept.header, nullptr, 0, &param);
  if (!is_running(request)) answers_.erase(kept.self);
}

void UcxPeer::answered(const AnswerHeader& header) {
  const auto batch = std::ranges::find(batches_, header.batch, &Batch::number);
  if (batch == batches_.end()) return;
  batch->unanswered = false;
  if (header.refused != 0) batch->error = Error{ErrorCode::kOutOfRegion, "the target has no such region any more"};
  end_if_done(*batch);
}

bool UcxPeer::is_running(ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) return false;
  ++requests_;
  return true;
}

void UcxPeer::ended(void* request) {
  ucp_request_free(request);
  --requests_;
}

void UcxPeer::took(Batch& batch, ucs_status_ptr_t request) {
  if (is_running(request)) {
    ++batch.requests;
  } else if (UCS_PTR_IS_ERR(request) && !batch.error) {
    batch.error = error_of(UCS_PTR_STATUS(request));
  }
}

void UcxPeer::request_ended(Batch& batch, ucs_status_t status) {
  if (status != UCS_OK && !batch.error) batch.error = error_of(status);
  --batch.requests;
  end_if_done(batch);
}

void UcxPeer::end_if_done(Batch& batch) {
  if (batch.requests > 0 || (batch.unanswered && !batch.error)) return;
  ended_.push_back({batch.token, batch.error});
  batches_.erase(batch.self);
}

// Else UCX over TCP ends the process of a peer (an assertion of its own) when we close while the two still connect.
void UcxPeer::let_connect() {
  for (int waits = 0; is_connecting_ && waits < kConnectingWaits; ++waits) {
    while (ucp_worker_progress(worker_->get()) != 0) {
    }
    pollfd request{worker_->event_fd(), POLLIN, 0};
    if (ucp_worker_arm(worker_->get()) == UCS_OK) ::poll(&request, 1, kConnectingWaitMilliseconds);
  }
}

// By force: it asks nobody.
void UcxPeer::close_endpoint() {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
  const auto closing = [request] {
    return UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS;
  };
  std::size_t turns = 0;
  while (closing() || requests_ > 0) {
    ucp_worker_progress(worker_->get());
    KVPUSH_CHECK(++turns < kCloseTurnsMax, "UCX has not ended a forced close: the fate of its writes is unknown");
  }
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

}  // namespace kvpush
