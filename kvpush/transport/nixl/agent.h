#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvpush/base/descriptor.h"
#include "kvpush/base/error.h"
#include "kvpush/transport/nixl/capi.h"
#include "kvpush/transport/nixl/nixl.h"
#include "kvpush/transport/region_table.h"

namespace kvpush {

enum class NixlWriteState : std::uint8_t { kRunning, kDone, kFailed };

// A message from another agent.
struct NixlNote {
  std::string from;
  std::vector<std::byte> bytes;
};

// An agent of NIXL with one backend, whose bytes are moved by a thread of NIXL's that sleeps while nothing happens.
//
// Job: says in our types what the C interface offers, and frees what it hands out.
// Not here: which request belongs to whom.
// Owner: NixlTransport. All its requests are released before it is destroyed.
// Thread: agent role.
// Invariant: when its destructor has returned, nothing reads or writes the registered memory through it any more.
class NixlAgent {
 public:
  // With a name that no other agent has, ever: NIXL does not replace what it knows of a name.
  // kUnavailable: no such plugin, or it finds no device.
  static Result<std::unique_ptr<NixlAgent>> open(const NixlApi& api, const NixlOptions& options);
  ~NixlAgent();
  NixlAgent(const NixlAgent&) = delete;
  NixlAgent& operator=(const NixlAgent&) = delete;

  const std::string& name() const { return name_; }

  Result<void> register_region(const Region& region);
  void deregister_region(const Region& region);

  // How to reach this agent, without any key.
  std::span<const std::byte> contact() const { return contact_; }
  // The same with the keys of what is registered by now. Empty if NIXL cannot say.
  std::vector<std::byte> metadata() const;
  // Connects to the agent `name` that made the contact or metadata; of one that is connected already it takes the keys.
  Result<void> load(std::span<const std::byte> metadata, const std::string& name);

  // Sends a connected agent a message. False once NIXL knows that it is gone.
  bool send(const std::string& to, std::span<const std::byte> note);
  // What has arrived since the last call.
  std::vector<NixlNote> take_notes();

  // One request for all descriptors, of which none may be empty; null if NIXL refuses.
  NixlRequest* post(const std::string& to, std::span<const Descriptor> descriptors);
  NixlWriteState state(NixlRequest* request);
  // Also of a request that runs: then NIXL forgets it, and its bytes may move until the agent is destroyed.
  void release(NixlRequest* request);

 private:
  NixlAgent(const NixlApi& api, std::string name) : api_(api), name_(std::move(name)) {}

  Result<void> start(const NixlOptions& options);

  NixlTransferList* list_of(std::span<const Descriptor> descriptors, std::uint64_t Descriptor::* address) const;

  const NixlApi api_;
  const std::string name_;
  std::vector<std::byte> contact_;
  NixlAgentHandle* agent_ = nullptr;
  NixlBackend* backend_ = nullptr;
  NixlOptArgs* options_ = nullptr;  // this backend, and no merging: our runs are merged already
  NixlNotes* notes_ = nullptr;
};

}  // namespace kvpush
