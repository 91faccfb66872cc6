// One transport of kvpush from process to process and, over cma, the barest programs that move the same bytes.
// bench/wire/wire.py asks.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "bench/common/pair.h"
#include "bench/wire/load.h"
#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/transport/copy_queue.h"

namespace kvpush {
namespace {

// In batches as Cursor makes them.
Spent write_in_batches(Pair& pair, std::span<const Descriptor> descriptors) {
  return write_all(pair, [&descriptors] {
    if (descriptors.empty()) return descriptors;
    const std::uint64_t fit = std::max<std::uint64_t>(1, kBatchBytesMax / descriptors.front().length_bytes);
    const auto batch = descriptors.first(std::min({kBatchDescriptorsMax, descriptors.size(), std::size_t{fit}}));
    descriptors = descriptors.subspan(batch.size());
    return batch;
  });
}

// As much in one call as cma takes, so that the two ask the kernel for the same. The kernel may write less than it is
// asked for: `done_bytes` of the first descriptor are behind.
void write_bare(pid_t pid, std::span<const Descriptor> descriptors) {
  std::array<iovec, kSlicePiecesMax> local;
  std::array<iovec, kSlicePiecesMax> remote;
  std::uint64_t done_bytes = 0;
  while (!descriptors.empty()) {
    std::size_t count = 0;
    for (std::uint64_t bytes = 0; count < descriptors.size() && count < local.size(); ++count) {
      const std::uint64_t skip = count == 0 ? done_bytes : 0;
      const std::uint64_t length = descriptors[count].length_bytes - skip;
      bytes += length;
      if (count > 0 && bytes > kSliceBytesMax) break;
      local[count] = {reinterpret_cast<void*>(descriptors[count].local + skip), length};
      remote[count] = {reinterpret_cast<void*>(descriptors[count].remote + skip), length};
    }
    const ssize_t written = process_vm_writev(pid, local.data(), count, remote.data(), count, 0);
    KVPUSH_CHECK(written > 0, "not written");
    done_bytes += static_cast<std::uint64_t>(written);
    for (; !descriptors.empty() && done_bytes >= descriptors.front().length_bytes;
         descriptors = descriptors.subspan(1)) {
      done_bytes -= descriptors.front().length_bytes;
    }
  }
}

void copy(std::span<const Descriptor> descriptors) {
  for (const Descriptor& each : descriptors) {
    std::memcpy(reinterpret_cast<void*>(each.remote), reinterpret_cast<const void*>(each.local), each.length_bytes);
  }
}

Spent timed(const auto& move) {
  const auto begin = Clock::now();
  move();
  return {.total = Clock::now() - begin};
}

int run(std::string_view wish) {
  Pair pair(wish, kMemoryBytes);
  if (pair.transport == nullptr) {
    std::puts("unavailable");
    return 0;
  }
  const auto local = reinterpret_cast<std::uint64_t>(pair.memory.data());
  std::vector<Way> ways{{.name = "kvpush",
                         .move = [&](auto descriptors) { return write_in_batches(pair, descriptors); },
                         .shape = {local, pair.target_memory}}};
  if (wish == "cma") {
    const auto bare = [&](auto descriptors) { return timed([&] { write_bare(pair.target.pid(), descriptors); }); };
    const auto within = [](auto descriptors) { return timed([&] { copy(descriptors); }); };
    const auto sink = reinterpret_cast<std::uint64_t>(allocate(kMemoryBytes).data());
    ways.push_back({.name = "writev", .move = bare, .shape = {local, pair.target_memory}});
    ways.push_back({.name = "memcpy", .move = within, .shape = {local, sink}});
  }
  serve(ways);
  return 0;
}

}  // namespace
}  // namespace kvpush

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: bench_wires cma|ucx|nixl\n", stderr);
    return 2;
  }
  return kvpush::run(argv[1]);
}
