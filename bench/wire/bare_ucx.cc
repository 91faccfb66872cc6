// The barest programs that move the same bytes with UCX: one put for each descriptor and a flush, or active messages
// that the target copies to their place and answers once. bench/wire/wire.py asks.
#include <poll.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <span>
#include <vector>

#include "bench/common/pair.h"
#include "bench/wire/load.h"
#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"

namespace kvpush {
namespace {

constexpr unsigned kPiece = 0;
constexpr unsigned kAnswer = 1;
// What fits into one of UCX's buffers for TCP (8 KiB) with its headers and ours: larger messages are put together by
// UCX before they are handed out, which costs a copy.
constexpr std::uint64_t kPieceBytesMax = 7680;
// As many requests as kvpush may have in flight to one peer.
constexpr std::size_t kRequestsInFlightMax = kBatchDescriptorsMax * kBatchesInFlightMax;

struct PieceHeader {
  std::uint64_t place = 0;
  std::uint64_t is_last = 0;
};

void must(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  std::fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
  std::_Exit(1);
}

// One process's side of UCX, with its memory registered.
struct Side {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  std::span<std::byte> memory;
  ucp_mem_h registered = nullptr;
  int event_fd = -1;
  std::size_t in_flight = 0;

  Side() {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    must(ucp_init(&params, nullptr, &context), "ucp_init");
    ucp_worker_params_t worker_params{};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    must(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
    must(ucp_worker_get_efd(worker, &event_fd), "ucp_worker_get_efd");
    memory = allocate(kMemoryBytes);
    ucp_mem_map_params_t map{};
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    map.address = memory.data();
    map.length = memory.size();
    must(ucp_mem_map(context, &map, &registered), "ucp_mem_map");
  }

  void receive(unsigned id, ucp_am_recv_callback_t callback, void* argument) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = id;
    param.cb = callback;
    param.arg = argument;
    must(ucp_worker_set_am_recv_handler(worker, &param), "ucp_worker_set_am_recv_handler");
  }

  ucp_request_param_t counted(std::uint32_t fields = 0) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | fields;
    param.user_data = this;
    param.cb.send = [](void* request, ucs_status_t status, void* self) {
      must(status, "a request");
      --static_cast<Side*>(self)->in_flight;
      ucp_request_free(request);
    };
    return param;
  }

  void started(ucs_status_ptr_t request) {
    if (request == nullptr) return;
    must(UCS_PTR_IS_ERR(request) ? UCS_PTR_STATUS(request) : UCS_OK, "posting");
    ++in_flight;
    drain(kRequestsInFlightMax - 1);
  }
  void drain(std::size_t left) {
    while (in_flight > left) progress();
  }
  // Sleeps when there is nothing to do, as kvpush does: a loop that spins would take the core that the other side or
  // the kernel's network needs.
  void progress() {
    if (ucp_worker_progress(worker) != 0 || ucp_worker_arm(worker) != UCS_OK) return;
    pollfd request{event_fd, POLLIN, 0};
    poll(&request, 1, -1);
  }
};

// In the target's process.
ucs_status_t take_piece(void* side, const void* header, std::size_t, void* data, std::size_t length,
                        const ucp_am_recv_param_t* param) {
  PieceHeader piece;
  std::memcpy(&piece, header, sizeof piece);
  KVPUSH_CHECK((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0, "pieces are sent eagerly");
  std::memcpy(reinterpret_cast<void*>(piece.place), data, length);
  if (piece.is_last == 0) return UCS_OK;
  Side& self = *static_cast<Side*>(side);
  const ucp_request_param_t answer = self.counted();
  self.started(ucp_am_send_nbx(param->reply_ep, kAnswer, nullptr, 0, nullptr, 0, &answer));
  return UCS_OK;
}

template <typename T>
std::span<const std::byte> bytes_of(const T* first, std::size_t count) {
  return std::as_bytes(std::span(first, count));
}

[[noreturn]] void be_the_target(const Pipe& to_parent) {
  Side side;
  side.receive(kPiece, take_piece, &side);
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  must(ucp_worker_get_address(side.worker, &address, &size), "ucp_worker_get_address");
  to_parent.send({reinterpret_cast<const std::byte*>(address), size});
  void* key = nullptr;
  must(ucp_rkey_pack(side.context, side.registered, &key, &size), "ucp_rkey_pack");
  to_parent.send({static_cast<const std::byte*>(key), size});
  const auto place = reinterpret_cast<std::uint64_t>(side.memory.data());
  to_parent.send(bytes_of(&place, 1));
  for (;;) side.progress();
}

// The writer's side: an endpoint to the target.
struct Writer {
  Side side;
  ucp_ep_h endpoint = nullptr;
  ucp_rkey_h key = nullptr;
  std::uint64_t target_memory = 0;
  bool answered = false;
  std::deque<PieceHeader> headers;  // UCX reads them until their message was sent

  explicit Writer(const Child& target) {
    const std::vector<std::byte> address = target.from().receive();
    const std::vector<std::byte> packed_key = target.from().receive();
    const std::vector<std::byte> place = target.from().receive();
    KVPUSH_CHECK(place.size() == sizeof target_memory, "the target does not start");
    std::memcpy(&target_memory, place.data(), sizeof target_memory);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    must(ucp_ep_create(side.worker, &params, &endpoint), "ucp_ep_create");
    must(ucp_ep_rkey_unpack(endpoint, packed_key.data(), &key), "ucp_ep_rkey_unpack");
    side.receive(kAnswer, take_answer, this);
  }

  Spent put(std::span<const Descriptor> descriptors) {
    const auto begin = Clock::now();
    ucp_request_param_t param = side.counted(UCP_OP_ATTR_FIELD_MEMH);
    param.memh = side.registered;
    for (const Descriptor& each : descriptors) {
      side.started(
          ucp_put_nbx(endpoint, reinterpret_cast<void*>(each.local), each.length_bytes, each.remote, key, &param));
    }
    const Seconds posting = Clock::now() - begin;
    const ucp_request_param_t flush = side.counted();
    side.started(ucp_ep_flush_nbx(endpoint, &flush));
    side.drain(0);
    return {.posting = posting, .total = Clock::now() - begin};
  }

  Spent send(std::span<const Descriptor> descriptors);

  static ucs_status_t take_answer(void* self, const void*, std::size_t, void*, std::size_t,
                                  const ucp_am_recv_param_t*) {
    static_cast<Writer*>(self)->answered = true;
    return UCS_OK;
  }
};

Spent Writer::send(std::span<const Descriptor> descriptors) {
  const auto begin = Clock::now();
  answered = false;
  headers.clear();
  ucp_request_param_t param = side.counted(UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMH);
  param.memh = side.registered;
  param.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  for (const Descriptor& each : descriptors) {
    for (std::uint64_t offset = 0; offset < each.length_bytes; offset += kPieceBytesMax) {
      const std::uint64_t length = std::min(kPieceBytesMax, each.length_bytes - offset);
      const bool last = &each == &descriptors.back() && offset + length == each.length_bytes;
      const PieceHeader& header = headers.emplace_back(PieceHeader{.place = each.remote + offset, .is_last = last});
      side.started(ucp_am_send_nbx(endpoint, kPiece, &header, sizeof header,
                                   reinterpret_cast<void*>(each.local + offset), length, &param));
    }
  }
  const Seconds posting = Clock::now() - begin;
  while (!answered) side.progress();
  side.drain(0);
  return {.posting = posting, .total = Clock::now() - begin};
}

int run() {
  const Child target([](const Pipe&, const Pipe& to_parent) { be_the_target(to_parent); });
  Writer writer(target);
  const Shape shape(reinterpret_cast<std::uint64_t>(writer.side.memory.data()), writer.target_memory);
  std::vector<Way> ways{
      {.name = "put", .move = [&](auto descriptors) { return writer.put(descriptors); }, .shape = shape},
      {.name = "message", .move = [&](auto descriptors) { return writer.send(descriptors); }, .shape = shape}};
  serve(ways);
  return 0;
}

}  // namespace
}  // namespace kvpush

int main() {
  return kvpush::run();
}
