#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kvpush/base/descriptor.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/transport/region_table.h"
#include "kvpush/transport/transport.h"
#include "kvpush/transport/ucx/memory.h"
#include "kvpush/transport/ucx/worker.h"

namespace kvpush {

// The way to one peer and back: a worker of its own and, once both sides have each other's address, an endpoint.
//
// Closing an endpoint leaves its connection to UCX, which goes on sending what was posted and, in UCX 1.13, can crash
// over it. Destroying the worker leaves nothing.
//
// Where the adapter stores the bytes (RDMA), a descriptor is a put and a batch ends with a flush of the endpoint. Where
// the target's software does, both are messages of our own: UCX would send puts as messages too, but a target whose
// writer dies while it acknowledges one is ended by UCX (ucp_rma_sw_send_cmpl: "Fatal: unexpected error").
//
// Job: meets the peer, posts batches, counts the requests of each, stores what arrives.
// Not here: who waits for whom (UcxTransport), which wire UCX takes (its own choice among those allowed), and retrying
// on a failed endpoint.
// Owner: UcxTransport; UCX holds pointers to it.
// Thread: agent role.
// Invariant: a batch ends only when UCX has ended every request of it, so none of them reads local memory any more.
class UcxPeer {
 public:
  // `memory` is ours and outlives it; `regions` and their packed `keys` are the peer's.
  UcxPeer(const UcxMemory& memory, std::unique_ptr<UcxWorker> worker, RegionTable regions,
          std::vector<std::vector<std::byte>> keys);
  ~UcxPeer();
  UcxPeer(const UcxPeer&) = delete;
  UcxPeer& operator=(const UcxPeer&) = delete;

  // Connects to the worker of a peer that waits for us. kUnavailable: it cannot be reached, or not by a wire that can
  // be fenced. kBadMessage: a key that is none.
  Result<void> greet(std::span<const std::byte> worker_address);
  bool is_open() const { return worker_ != nullptr; }
  // Open, and it is the peer who has to greet.
  bool waits() const { return is_open() && endpoint_ == nullptr; }
  // Both have greeted; batches wait for that.
  bool has_met() const { return has_met_; }
  // Of the worker; only while open.
  int event_fd() const { return worker_->event_fd(); }
  std::span<const std::byte> worker_address() const { return worker_->address(); }
  const std::set<std::string>& wires() const { return wires_; }

  // As Transport::write().
  Result<void> write(std::span<const Descriptor> descriptors, WriteToken token);
  bool reads(const Region& region) const;

  // At most `work_max` calls of UCX's progress. Returns the work done.
  std::size_t progress(std::size_t work_max);
  // Appends what has ended, and returns how many.
  std::size_t take_ends(std::vector<WriteCompletion>& completions);
  // True: nothing to do until event_fd() is readable.
  bool arm();
  // Why there is no way any more; close() is due.
  const std::optional<Error>& failure() const { return failure_; }

  // Ends all batches, with `error` where nothing else ended them. Nothing of the peer's lands any more.
  void close(const Error& error);

 private:
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
  struct Batch {
    UcxPeer* peer = nullptr;
    WriteToken token;
    std::uint64_t number = 0;
    std::vector<Descriptor> descriptors{};
    std::vector<WriteHeader> headers{};  // UCX reads them until their message is sent
    std::size_t requests = 0;            // UCX has not ended; one more while they are posted
    bool unanswered = false;             // by the target
    std::optional<Error> error{};
    std::list<Batch>::iterator self{};
  };
  // A batch that is arriving here.
  struct Incoming {
    std::uint64_t bytes = 0;
    bool refused = false;
  };
  struct Answer {
    UcxPeer* peer = nullptr;
    AnswerHeader header;  // UCX reads it until it is sent
    std::list<Answer>::iterator self{};
  };

  static void on_batch_request_end(void* request, ucs_status_t status, void* batch);
  static void on_answer_sent(void* request, ucs_status_t status, void* answer);
  static void on_connected(void* request, ucs_status_t status, void* peer);
  static void on_hello_sent(void* request, ucs_status_t status, void* peer);
  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t on_hello_message(void* peer, const void* header, std::size_t header_bytes, void* data,
                                       std::size_t size, const ucp_am_recv_param_t* param);
  static ucs_status_t on_write_message(void* peer, const void* header, std::size_t header_bytes, void* data,
                                       std::size_t size, const ucp_am_recv_param_t* param);
  static ucs_status_t on_answer_message(void* peer, const void* header, std::size_t header_bytes, void* data,
                                        std::size_t size, const ucp_am_recv_param_t* param);

  Result<void> open_endpoint(std::span<const std::byte> worker_address);
  Result<void> unpack_keys();
  void send_hello();
  void meet(std::span<const std::byte> hello);
  void post(Batch& batch);
  void post_puts(Batch& batch);
  void post_messages(Batch& batch);
  void store(const WriteHeader& header, std::span<const std::byte> bytes);
  void answer(const AnswerHeader& header);
  void answered(const AnswerHeader& header);
  // Counts what UCX has not ended; its callback calls ended().
  bool is_running(ucs_status_ptr_t request);
  void ended(void* request);
  void took(Batch& batch, ucs_status_ptr_t request);
  void request_ended(Batch& batch, ucs_status_t status);
  void end_if_done(Batch& batch);
  void let_connect();
  void close_endpoint();

  const UcxMemory& memory_;
  std::unique_ptr<UcxWorker> worker_;  // null once closed
  const RegionTable regions_;
  const std::vector<std::vector<std::byte>> packed_keys_;
  std::vector<ucp_rkey_h> keys_;  // by number of the region
  ucp_ep_h endpoint_ = nullptr;
  std::set<std::string> wires_;
  bool by_messages_ = true;
  bool is_connecting_ = false;
  std::vector<std::byte> hello_;  // UCX reads it until it is sent
  std::vector<std::byte> heard_;  // a hello of the peer's that meet() has not read yet
  bool has_met_ = false;
  std::size_t requests_ = 0;  // of all kinds that UCX has not ended
  std::list<Batch> batches_;  // UCX holds pointers to them, and to answers
  std::uint64_t next_batch_ = 0;
  std::map<std::uint64_t, Incoming> incoming_;
  std::list<Answer> answers_;
  std::vector<WriteCompletion> ended_;  // not handed out
  std::optional<Error> failure_;
};

}  // namespace kvpush
