// Throughput from one process to another, for few large and for many small descriptors of the same bytes: each
// transport beside the barest program that moves the same bytes the same way.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/random.h"
#include "kvpush/transport/cma/cma.h"
#include "kvpush/transport/copy_queue.h"
#include "kvpush/transport/transport.h"
#include "kvpush/transport/ucx/ucx.h"

namespace kvpush {
namespace {

constexpr std::uint64_t kBytes = 256u << 20;
// 118 planes: one descriptor each where a prompt's blocks lie side by side, 160 each where every block is apart.
constexpr std::size_t kShapes[] = {118, 18880};
// Every way is run this often, in turns, and the best is taken: the rest is other people's noise.
constexpr int kRounds = 7;

using Open = std::function<Result<std::unique_ptr<Transport>>()>;

std::span<std::byte> allocate() {
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  KVPUSH_CHECK(memory != MAP_FAILED, "no memory for the benchmark");
  std::memset(memory, 1, kBytes);
  return {static_cast<std::byte*>(memory), kBytes};
}

// Pieces of equal size that cover both memories, in an order of their own on each side as paged blocks have.
std::vector<Descriptor> shape(std::size_t count, std::uint64_t local, std::uint64_t remote) {
  const std::uint64_t length_bytes = kBytes / count;
  std::vector<std::uint64_t> places(count);
  std::iota(places.begin(), places.end(), std::uint64_t{0});
  Random random(count);
  for (std::size_t i = count - 1; i > 0; --i) std::swap(places[i], places[random.below(i + 1)]);
  std::vector<Descriptor> descriptors;
  for (std::size_t i = 0; i < count; ++i) {
    descriptors.push_back({local + i * length_bytes, remote + places[i] * length_bytes, length_bytes});
  }
  return descriptors;
}

// One direction between the two processes.
struct Pipe {
  int out = -1;  // read from it
  int in = -1;   // write to it

  Pipe() {
    std::array<int, 2> ends{};
    KVPUSH_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0, "no pipe");
    out = ends[0];
    in = ends[1];
  }
  void send(const std::vector<std::byte>& bytes) const {
    const std::uint64_t size = bytes.size();
    KVPUSH_CHECK(write(in, &size, sizeof size) == sizeof size, "the other process is gone");
    KVPUSH_CHECK(write(in, bytes.data(), size) == static_cast<ssize_t>(size), "the other process is gone");
  }
  // Empty if the other process is gone.
  std::vector<std::byte> receive() const {
    std::uint64_t size = 0;
    if (read(out, &size, sizeof size) != sizeof size) return {};
    std::vector<std::byte> bytes(size);
    return read(out, bytes.data(), size) == static_cast<ssize_t>(size) ? bytes : std::vector<std::byte>{};
  }
};

// The process that is written to: memory and a transport that makes progress until it is killed.
//
// Job: starts the child, swaps addresses with it, ends it.
// Thread: value type.
class Target {
 public:
  // Before this process opens a transport: a child must not inherit one.
  explicit Target(const Open& open) : pid_(fork()) {
    KVPUSH_CHECK(pid_ >= 0, "no process");
    if (pid_ == 0) be_the_child(open);
    close(up_.in);
    const std::vector<std::byte> place = up_.receive();
    if (place.size() == sizeof memory_) std::memcpy(&memory_, place.data(), sizeof memory_);
    address_ = up_.receive();
  }
  ~Target() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  pid_t pid() const { return pid_; }
  std::uint64_t memory() const { return memory_; }
  // Empty if the child cannot open the transport.
  const std::vector<std::byte>& address() const { return address_; }
  void connect(const std::vector<std::byte>& address) const { down_.send(address); }

 private:
  [[noreturn]] void be_the_child(const Open& open) const;

  Pipe down_;
  Pipe up_;
  pid_t pid_;
  std::uint64_t memory_ = 0;
  std::vector<std::byte> address_;
};

void Target::be_the_child(const Open& open) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::span<std::byte> memory = allocate();
  const auto transport = open();
  if (!transport || !(*transport)->register_region(memory)) std::_Exit(1);
  const auto place = reinterpret_cast<std::uint64_t>(memory.data());
  std::vector<std::byte> place_bytes(sizeof place);
  std::memcpy(place_bytes.data(), &place, sizeof place);
  up_.send(place_bytes);
  up_.send((*transport)->address());
  if (!(*transport)->connect(down_.receive())) std::_Exit(1);
  TransportEvents events;
  for (;;) {
    if ((*transport)->poll(events) > 0 || !(*transport)->arm()) continue;
    pollfd request{(*transport)->event_fd(), POLLIN, 0};
    ::poll(&request, 1, -1);
  }
}

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Posts and polls as the agent does: bounded batches, a bounded number in flight. Returns the time spent posting.
Seconds write_all(Transport& transport, PeerId peer, std::span<const Descriptor> descriptors) {
  Seconds posting{};
  std::size_t posted = 0;
  std::size_t in_flight = 0;
  TransportEvents events;
  while (posted < descriptors.size() || in_flight > 0) {
    while (posted < descriptors.size() && in_flight < kBatchesInFlightMax) {
      const std::uint64_t fit = std::max<std::uint64_t>(1, kBatchBytesMax / descriptors[posted].length_bytes);
      const std::size_t count = std::min({kBatchDescriptorsMax, descriptors.size() - posted, std::size_t{fit}});
      const auto begin = Clock::now();
      KVPUSH_CHECK(transport.write(peer, descriptors.subspan(posted, count), WriteToken{posted}), "not posted");
      posting += Clock::now() - begin;
      posted += count;
      ++in_flight;
    }
    if (transport.poll(events) == 0 && transport.arm()) {
      pollfd request{transport.event_fd(), POLLIN, 0};
      ::poll(&request, 1, -1);
    }
    for (const WriteCompletion& completion : events.completions) {
      KVPUSH_CHECK(!completion.error, "a write has failed");
      --in_flight;
    }
    events.clear();
  }
  return posting;
}

void write_bare(pid_t pid, std::span<const Descriptor> descriptors) {
  std::array<iovec, 1024> local;
  std::array<iovec, 1024> remote;
  while (!descriptors.empty()) {
    // As much in one call as cma takes, so that the two ask the kernel for the same.
    std::size_t count = 0;
    for (std::uint64_t bytes = 0; count < descriptors.size() && count < local.size(); ++count) {
      bytes += descriptors[count].length_bytes;
      if (count > 0 && bytes > kSliceBytesMax) break;
      local[count] = {reinterpret_cast<void*>(descriptors[count].local), descriptors[count].length_bytes};
      remote[count] = {reinterpret_cast<void*>(descriptors[count].remote), descriptors[count].length_bytes};
    }
    KVPUSH_CHECK(process_vm_writev(pid, local.data(), count, remote.data(), count, 0) > 0, "not written");
    descriptors = descriptors.subspan(count);
  }
}

void copy(std::span<const Descriptor> descriptors) {
  for (const Descriptor& each : descriptors) {
    std::memcpy(reinterpret_cast<void*>(each.remote), reinterpret_cast<const void*>(each.local), each.length_bytes);
  }
}

double gigabytes_a_second(const std::function<void()>& move) {
  const auto begin = Clock::now();
  move();
  const Seconds seconds = Clock::now() - begin;
  return static_cast<double>(kBytes) / seconds.count() / 1e9;
}

// UCX's own program, with puts of this size over the same wire; 0 if it is not installed or fails.
double perftest(std::uint64_t length_bytes) {
  const std::string port = std::to_string(20000 + getpid() % 20000);
  const std::string program = "UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest -p " + port + " -f";
  const std::string client = program + " 127.0.0.1 -t ucp_put_bw -s " + std::to_string(length_bytes) + " -w 10 -n " +
                             std::to_string(kBytes / length_bytes);
  const std::string both = program + " >/dev/null 2>&1 & sleep 0.5; " + client + " 2>/dev/null; wait";
  std::FILE* output = popen(both.c_str(), "r");
  if (output == nullptr) return 0;
  // iterations, three times of one message in microseconds, two bandwidths in MiB/s, two message rates
  std::array<double, 6> fields{};
  std::array<char, 512> line;
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    std::sscanf(line.data(), "%lf %lf %lf %lf %lf %lf", &fields[0], &fields[1], &fields[2], &fields[3], &fields[4],
                &fields[5]);
  }
  pclose(output);
  return fields[5] * 1048576 / 1e9;
}

struct Way {
  std::string name;
  std::function<void()> move;
  double best = 0;
};

void report(std::string_view title, std::span<const Way> ways) {
  std::printf("%-34.*s", static_cast<int>(title.size()), title.data());
  for (const Way& way : ways) std::printf("  %s %5.2f GB/s", way.name.c_str(), way.best);
  for (std::size_t i = 1; i < ways.size(); ++i) {
    if (ways[i].best > 0) std::printf("  of %s %3.0f %%", ways[i].name.c_str(), 100 * ways[0].best / ways[i].best);
  }
  std::printf("\n");
}

void report_posting(Seconds best, std::size_t descriptors) {
  const double nanoseconds = 1e9 * best.count();
  std::printf("%-34s  %.1f us, %.1f ns for a descriptor\n", "  of which posting", nanoseconds / 1e3,
              nanoseconds / static_cast<double>(descriptors));
}

// The child's transport and ours, connected; the transport is null if there is none.
struct Pair {
  explicit Pair(const Open& open) : target(open) {
    if (target.address().empty()) return;
    transport = std::move(*open());
    KVPUSH_CHECK(transport->register_region(memory), "not registered");
    peer = transport->connect(target.address()).value();
    target.connect(transport->address());
  }

  Target target;
  std::span<std::byte> memory = allocate();
  std::unique_ptr<Transport> transport;
  PeerId peer{};
};

void measure(std::string_view title, std::vector<Way> ways) {
  for (int round = 0; round < kRounds; ++round) {
    for (Way& way : ways) way.best = std::max(way.best, gigabytes_a_second(way.move));
  }
  report(title, ways);
}

void measure_cma() {
  Pair pair([] { return open_cma(); });
  if (pair.transport == nullptr) return void(std::printf("cma is not available here\n"));
  const std::span<std::byte> sink = allocate();
  for (const std::size_t count : kShapes) {
    const auto local = reinterpret_cast<std::uint64_t>(pair.memory.data());
    const auto descriptors = shape(count, local, pair.target.memory());
    const auto within = shape(count, local, reinterpret_cast<std::uint64_t>(sink.data()));
    Seconds posting = Seconds::max();
    measure("cma, " + std::to_string(count) + " descriptors",
            {{"kvpush", [&] { posting = std::min(posting, write_all(*pair.transport, pair.peer, descriptors)); }},
             {"bare writev", [&] { write_bare(pair.target.pid(), descriptors); }},
             {"memcpy", [&] { copy(within); }}});
    report_posting(posting, count);
  }
}

void measure_ucx() {
  // The loopback interface, as perftest is told.
  setenv("UCX_NET_DEVICES", "lo", 1);
  Pair pair([] { return open_ucx({.transports = "tcp", .module_path = KVPUSH_UCX_MODULE}); });
  if (pair.transport == nullptr) return void(std::printf("ucx is not available here\n"));
  for (const std::size_t count : kShapes) {
    const auto local = reinterpret_cast<std::uint64_t>(pair.memory.data());
    const auto descriptors = shape(count, local, pair.target.memory());
    Seconds posting = Seconds::max();
    Way ours{"kvpush", [&] { posting = std::min(posting, write_all(*pair.transport, pair.peer, descriptors)); }};
    Way theirs{"perftest", {}};
    for (int round = 0; round < kRounds; ++round) {
      ours.best = std::max(ours.best, gigabytes_a_second(ours.move));
      if (round < 2) theirs.best = std::max(theirs.best, perftest(kBytes / count));  // it takes seconds
    }
    const Way ways[] = {ours, theirs};
    report("ucx over tcp, " + std::to_string(count) + " descriptors", ways);
    report_posting(posting, count);
  }
}

}  // namespace
}  // namespace kvpush

int main() {
  std::printf("%llu MiB from process to process, best of %d rounds\n",
              static_cast<unsigned long long>(kvpush::kBytes >> 20), kvpush::kRounds);
  kvpush::measure_cma();
  kvpush::measure_ucx();
}
