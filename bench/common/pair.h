// Two processes and one transport between them, for the benchmarks that move bytes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kvpush/base/descriptor.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Private memory that lives as long as the process, every page of it touched.
std::span<std::byte> allocate(std::size_t size_bytes);

// One direction between two processes.
//
// Thread: value type; the descriptors are never closed, since the processes end with the benchmark.
class Pipe {
 public:
  Pipe();
  void send(std::span<const std::byte> bytes) const;
  // Empty if the other process is gone.
  std::vector<std::byte> receive() const;
  void hold_only_read_end() const;

 private:
  int out_ = -1;
  int in_ = -1;
};

// A process forked from this one, killed with it.
//
// Job: runs `main` in the child, which may not return; ends the child.
// Thread: value type; to be made before this process starts threads or opens a transport.
class Child {
 public:
  explicit Child(const std::function<void(const Pipe& from_parent, const Pipe& to_parent)>& main);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  const Pipe& to() const { return down_; }
  const Pipe& from() const { return up_; }

 private:
  Pipe down_;
  Pipe up_;
  pid_t pid_;
};

// A transport of this process, connected with one of a child that makes progress all the time. Both have memory of the
// same size.
struct Pair {
  // `wish` is one that transport_factories() knows.
  Pair(std::string_view wish, std::size_t size_bytes);

  std::function<Result<std::unique_ptr<Transport>>()> open;
  Child target;
  std::span<std::byte> memory;
  std::uint64_t target_memory = 0;
  std::unique_ptr<Transport> transport;  // null if either cannot open its own
  PeerId peer{};
};

// Where the time of one transfer went.
struct Spent {
  Seconds taking{};   // until the batches were there
  Seconds posting{};  // inside Transport::write()
  Seconds polling{};  // inside Transport::poll()
  Seconds total{};
};

// Posts and polls as the agent does, with a bounded number of batches in flight, until `next_batch` gives an empty one
// and all have completed.
Spent write_all(Pair& pair, const std::function<std::span<const Descriptor>()>& next_batch);

}  // namespace kvpush
