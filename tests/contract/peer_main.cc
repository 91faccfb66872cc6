// The other process of the contract tests: prints its address and memory, then obeys lines from stdin until it ends.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "kvpush/transport/transport.h"
#include "tests/contract/backends.h"
#include "tests/contract/peer.h"

namespace kvpush {
namespace {

// Job: one transport, its memory and the stream it was told to write.
// Thread: value type.
class Peer {
 public:
  explicit Peer(std::unique_ptr<Transport> transport) : memory_(kPeerMemoryBytes), transport_(std::move(transport)) {
    if (!transport_->register_region(memory_)) std::exit(1);
    std::cout << hex_of(transport_->address()) << ' ' << reinterpret_cast<std::uint64_t>(memory_.data()) << std::endl;
  }

  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    std::string value;
    words >> verb >> value;
    if (verb == "connect") {
      const auto peer = transport_->connect(bytes_of(value));
      std::cout << (peer ? "connected" : peer.error().what) << std::endl;
      peer_ = peer.value_or(PeerId{});
    } else if (verb == "rest") {
      std::cout << "resting" << std::endl;
    } else {
      remote_ = std::stoull(value);
      write_next();
    }
  }

  // Until there is nothing to do and it may sleep.
  void run() {
    while (transport_->poll(events_) > 0 || !transport_->arm()) {
      const bool written = !events_.completions.empty() && !events_.completions.front().error;
      events_.clear();
      if (written) write_next();
    }
    events_.clear();
  }

  int event_fd() const { return transport_->event_fd(); }

 private:
  void write_next() {
    ++round_;
    std::ranges::fill(memory_, static_cast<std::byte>(round_ % 200 + 1));
    const Descriptor whole{reinterpret_cast<std::uint64_t>(memory_.data()), remote_, memory_.size()};
    // Refused once the peer is lost, and then there is nothing more to do.
    static_cast<void>(transport_->write(peer_, {&whole, 1}, WriteToken{round_}));
  }

  std::vector<std::byte> memory_;  // outlives the transport, which may still write to it
  std::unique_ptr<Transport> transport_;
  TransportEvents events_;
  PeerId peer_{};
  std::uint64_t remote_ = 0;
  std::uint64_t round_ = 0;
};

int peer_main(const std::string& name) {
  const auto backends = contract_backends();
  const auto backend = std::ranges::find(backends, name, &Backend::name);
  if (backend == backends.end()) return 2;
  auto transport = backend->open();
  if (!transport) return 1;
  Peer peer(std::move(*transport));
  std::string input;
  for (;;) {
    peer.run();
    std::array<pollfd, 2> waits{{{STDIN_FILENO, POLLIN, 0}, {peer.event_fd(), POLLIN, 0}}};
    poll(waits.data(), waits.size(), -1);
    if (waits[0].revents == 0) continue;
    std::array<char, 4096> part;
    const ssize_t size = read(STDIN_FILENO, part.data(), part.size());
    if (size <= 0) return 0;
    input.append(part.data(), static_cast<std::size_t>(size));
    for (std::size_t end = input.find('\n'); end != std::string::npos; end = input.find('\n')) {
      peer.obey(input.substr(0, end));
      input.erase(0, end + 1);
    }
  }
}

}  // namespace
}  // namespace kvpush

int main(int argc, char** argv) {
  return argc == 2 ? kvpush::peer_main(argv[1]) : 2;
}
