#include "bench/common/pair.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/transport/choice.h"

namespace kvpush {
namespace {

// Progress until there is none, then sleep until there may be some. Returns the time inside Transport::poll().
Seconds progress(Transport& transport, TransportEvents& events) {
  const auto begin = Clock::now();
  const std::size_t done = transport.poll(events);
  const Seconds polling = Clock::now() - begin;
  if (done > 0 || !transport.arm()) return polling;
  pollfd request{transport.event_fd(), POLLIN, 0};
  ::poll(&request, 1, -1);
  return polling;
}

[[noreturn]] void be_the_target(const std::function<Result<std::unique_ptr<Transport>>()>& open, std::size_t size_bytes,
                                const Pipe& from_parent, const Pipe& to_parent) {
  const std::span<std::byte> memory = allocate(size_bytes);
  const auto transport = open();
  if (!transport || !(*transport)->register_region(memory)) std::_Exit(1);
  const auto place = reinterpret_cast<std::uint64_t>(memory.data());
  to_parent.send(std::as_bytes(std::span(&place, 1)));
  to_parent.send((*transport)->address());
  if (!(*transport)->connect(from_parent.receive())) std::_Exit(1);
  TransportEvents events;
  for (;;) progress(**transport, events);
}

}  // namespace

std::span<std::byte> allocate(std::size_t size_bytes) {
  void* memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  KVPUSH_CHECK(memory != MAP_FAILED, "no memory for the benchmark");
  std::memset(memory, 1, size_bytes);
  return {static_cast<std::byte*>(memory), size_bytes};
}

Pipe::Pipe() {
  std::array<int, 2> ends{};
  KVPUSH_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0, "no pipe");
  out_ = ends[0];
  in_ = ends[1];
}

void Pipe::send(std::span<const std::byte> bytes) const {
  const std::uint64_t size = bytes.size();
  KVPUSH_CHECK(write(in_, &size, sizeof size) == sizeof size, "the other process is gone");
  KVPUSH_CHECK(write(in_, bytes.data(), size) == static_cast<ssize_t>(size), "the other process is gone");
}

std::vector<std::byte> Pipe::receive() const {
  std::uint64_t size = 0;
  if (read(out_, &size, sizeof size) != sizeof size) return {};
  std::vector<std::byte> bytes(size);
  return read(out_, bytes.data(), size) == static_cast<ssize_t>(size) ? bytes : std::vector<std::byte>{};
}

void Pipe::hold_only_read_end() const {
  close(in_);
}

Child::Child(const std::function<void(const Pipe& from_parent, const Pipe& to_parent)>& main) : pid_(fork()) {
  KVPUSH_CHECK(pid_ >= 0, "no process");
  if (pid_ > 0) {
    up_.hold_only_read_end();
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  main(down_, up_);
  std::_Exit(0);
}

Child::~Child() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Pair::Pair(std::string_view wish, std::size_t size_bytes)
    : open(transport_factories(wish).value().front()),
      target([this, size_bytes](const Pipe& from_parent, const Pipe& to_parent) {
        be_the_target(open, size_bytes, from_parent, to_parent);
      }) {
  const std::vector<std::byte> place = target.from().receive();
  const std::vector<std::byte> address = target.from().receive();
  if (place.size() != sizeof target_memory || address.empty()) return;
  std::memcpy(&target_memory, place.data(), sizeof target_memory);
  Result<std::unique_ptr<Transport>> opened = open();
  if (!opened) return;
  memory = allocate(size_bytes);
  KVPUSH_CHECK((*opened)->register_region(memory), "not registered");
  const Result<PeerId> connected = (*opened)->connect(address);
  if (!connected) return;
  target.to().send((*opened)->address());
  peer = *connected;
  transport = std::move(*opened);
}

Spent write_all(Pair& pair, const std::function<std::span<const Descriptor>()>& next_batch) {
  Spent spent;
  TransportEvents events;
  std::size_t in_flight = 0;
  bool more = true;
  const auto begin = Clock::now();
  while (more || in_flight > 0) {
    while (more && in_flight < kBatchesInFlightMax) {
      const auto take = Clock::now();
      const std::span<const Descriptor> batch = next_batch();
      const auto post = Clock::now();
      spent.taking += post - take;
      more = !batch.empty();
      if (!more) break;
      KVPUSH_CHECK(pair.transport->write(pair.peer, batch, WriteToken{}), "not posted");
      spent.posting += Clock::now() - post;
      ++in_flight;
    }
    if (in_flight > 0) spent.polling += progress(*pair.transport, events);
    for (const WriteCompletion& completion : events.completions) {
      KVPUSH_CHECK(!completion.error, "a write has failed");
      --in_flight;
    }
    events.clear();
  }
  spent.total = Clock::now() - begin;
  return spent;
}

}  // namespace kvpush
