// A transport in another process, for tests in which a process dies.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvpush {

// The memory of the other process: it is written to, and it streams from it.
inline constexpr std::size_t kPeerMemoryBytes = 4u << 20;

// A running peer_main, told what to do line by line.
//
// Job: starts it, asks it, kills it.
// Thread: value type.
class PeerProgram {
 public:
  // `backend` is one of contract_backends(). Fails the test and is not running() if it does not start.
  explicit PeerProgram(const std::string& backend);
  ~PeerProgram();
  PeerProgram(const PeerProgram&) = delete;
  PeerProgram& operator=(const PeerProgram&) = delete;

  bool running() const { return pid_ > 0; }
  const std::vector<std::byte>& address() const { return address_; }
  std::uint64_t memory() const { return memory_; }

  // It connects to that address.
  void connect(const std::vector<std::byte>& address);
  // It writes its memory to `remote` again and again, each time filled with another byte; returns after the first.
  // It stops when it loses its peer.
  void stream(std::uint64_t remote);
  // It stops where it is and does nothing until thawed or killed.
  void freeze();
  // It goes on.
  void thaw();
  // Returns when it has nothing to do.
  void await_rest();
  // It ends as a crashed process does; returns when it is gone.
  void kill();

 private:
  void say(const std::string& line) const;
  // The next line it prints; fails the test and is empty if none comes in time.
  std::string hear();

  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string heard_;
  std::vector<std::byte> address_;
  std::uint64_t memory_ = 0;
};

std::string hex_of(const std::vector<std::byte>& bytes);
std::vector<std::byte> bytes_of(const std::string& hex);

}  // namespace kvpush
