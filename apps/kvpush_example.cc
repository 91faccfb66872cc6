// How an engine uses the library, in one file: a producer and a consumer process on this machine, one prompt's KV
// pushed from one to the other and compared byte by byte. Exits with 0 if it is right.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "apps/flags.h"
#include "kvpush/agent/agent.h"
#include "kvpush/base/check.h"
#include "kvpush/directory/server.h"
#include "kvpush/transport/choice.h"

namespace {

using namespace kvpush;
using namespace std::chrono_literals;

constexpr std::uint32_t kLayers = 8;
constexpr std::uint32_t kBlocks = 256;
constexpr std::uint32_t kBlockTokens = 16;
constexpr std::uint32_t kHeads = 3;
constexpr std::uint64_t kInnerBytes = 128;  // one token of one head: 64 elements of bfloat16
constexpr std::uint64_t kRowsBytes = kBlockTokens * kInnerBytes;
constexpr std::uint64_t kBlockBytes = 2 * kRowsBytes * kHeads;  // for each head: the rows of K, then those of V
constexpr std::uint64_t kLayerBytes = kBlocks * kBlockBytes;

// What can go wrong here is shown and ends the process; an engine would act on the code.
template <class T>
T must(Result<T> result, const char* what) {
  if (!result) {
    fmt::print(stderr, "{}: {} ({})\n", what, result.error().what, error_name(result.error().code));
    std::exit(2);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// The KV cache of a small engine: a pool of blocks for each layer.
struct Cache {
  std::byte* memory = static_cast<std::byte*>(
      mmap(nullptr, kLayers* kLayerBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

  RankLayout layout() const {
    RankLayout layout;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const Component component : {Component::kKey, Component::kValue}) {
        const std::uint64_t offset = layer * kLayerBytes + (component == Component::kValue ? kRowsBytes : 0);
        layout.planes.push_back({.layer = fmt::format("layers.{}", layer),
                                 .component = component,
                                 .group = 0,
                                 .dtype = "bfloat16",
                                 .element_bytes = 2,
                                 .block_tokens = kBlockTokens,
                                 .block_count = kBlocks,
                                 .heads = {0, kHeads, kHeads},
                                 .base = reinterpret_cast<std::uint64_t>(memory) + offset,
                                 .block_stride_bytes = kBlockBytes,
                                 .head_stride_bytes = 2 * kRowsBytes,
                                 .token_stride_bytes = kInnerBytes,
                                 .inner_bytes = kInnerBytes});
      }
    }
    return layout;
  }
  std::vector<MemoryRange> regions() const {
    return {{reinterpret_cast<std::uint64_t>(memory), kLayers * kLayerBytes}};
  }
  // The KV of one token in one plane and head.
  std::byte* row(const Plane& plane, BlockId block, std::uint32_t slot, std::uint32_t head) const {
    return reinterpret_cast<std::byte*>(plane.base) + block.value * plane.block_stride_bytes +
           slot * plane.token_stride_bytes + head * plane.head_stride_bytes;
  }
};

// Calls `visit(bytes of a row, what they must be)` for each plane, head and token of a prompt.
template <class Visit>
void for_each_row(const Cache& cache, const std::vector<BlockId>& blocks, std::uint32_t tokens, Visit visit) {
  const RankLayout layout = cache.layout();
  for (std::uint32_t plane = 0; plane < layout.planes.size(); ++plane) {
    for (std::uint32_t token = 0; token < tokens; ++token) {
      for (std::uint32_t head = 0; head < kHeads; ++head) {
        const std::uint32_t seed = ((plane * tokens + token) * kHeads + head + 1) * 2654435761u;
        std::byte expected[kInnerBytes];
        for (std::uint64_t i = 0; i < kInnerBytes; ++i) expected[i] = std::byte((seed + i * 97) >> 8);
        visit(cache.row(layout.planes[plane], blocks[token / kBlockTokens], token % kBlockTokens, head), expected);
      }
    }
  }
}

struct Flags {
  std::string transport = "auto";
  std::string secret_file;
  std::uint32_t tokens = 1000;
};

std::unique_ptr<Agent> open_agent(const std::string& name, const Flags& flags, const Cache& cache) {
  AgentOptions options{.engine_id = name, .secret_file = flags.secret_file};
  options.transports = must(transport_factories(flags.transport), "the transport");
  return must(Agent::open(options, cache.layout(), cache.regions()), "the agent");
}

EngineEvent wait_for_event(Agent& agent) {
  std::vector<EngineEvent> events;
  if (agent.wait(20s)) agent.take_events(events);
  if (events.size() == 1) return events.front();
  fmt::print(stderr, "no event came within 20 seconds\n");
  std::exit(1);
}

void submit(Agent& agent, Command command) {
  std::vector<Command> commands{std::move(command)};
  must(agent.submit(commands), "the command");
}

// The blocks that a pool happens to give: the producer's are in order, the consumer's are every other one, backwards.
std::vector<BlockId> producer_blocks(std::uint32_t tokens) {
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i * kBlockTokens < tokens; ++i) blocks.push_back(BlockId{i});
  return blocks;
}
std::vector<BlockId> consumer_blocks(std::uint32_t tokens) {
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i * kBlockTokens < tokens; ++i) blocks.push_back(BlockId{kBlocks - 1 - 2 * i});
  return blocks;
}

int run_producer(const Flags& flags, int to_consumer) {
  const Cache cache;
  const std::vector<BlockId> blocks = producer_blocks(flags.tokens);
  for_each_row(cache, blocks, flags.tokens,
               [](std::byte* row, const std::byte* bytes) { memcpy(row, bytes, kInnerBytes); });

  const std::unique_ptr<Agent> agent = open_agent("producer", flags, cache);
  const std::unique_ptr<DirectoryServer> directory = must(DirectoryServer::open({"127.0.0.1", 0}), "the directory");
  must(directory->set_ranks({agent->document()}), "the directory");
  const std::uint16_t port = directory->port();
  if (write(to_consumer, &port, sizeof port) != sizeof port) return 1;

  submit(*agent, Send{"prefill-1", "transfer-1", flags.tokens, {pack(blocks)}});
  const auto ended = std::get<SendEnded>(wait_for_event(*agent));
  fmt::print("producer: {} bytes of {} tokens, {}\n", ended.bytes, ended.tokens,
             ended.error ? error_name(*ended.error) : "delivered");
  int status = 1;
  wait(&status);
  const bool is_stopped = agent->stop(5s).has_value();
  directory->stop();
  return !ended.error && is_stopped && status == 0 ? 0 : 1;
}

int run_consumer(const Flags& flags, int from_producer) {
  std::uint16_t port = 0;
  if (read(from_producer, &port, sizeof port) != sizeof port) return 1;
  const Cache cache;
  const std::vector<BlockId> blocks = consumer_blocks(flags.tokens);
  const std::unique_ptr<Agent> agent = open_agent("consumer", flags, cache);

  submit(*agent, Receive{"decode-1", "transfer-1", {"127.0.0.1", port}, {0, flags.tokens}, {pack(blocks)}});
  const auto ended = std::get<ReceiveEnded>(wait_for_event(*agent));
  std::size_t wrong = 0;
  for_each_row(cache, blocks, flags.tokens, [&](const std::byte* row, const std::byte* bytes) {
    wrong += memcmp(row, bytes, kInnerBytes) != 0 ? 1 : 0;
  });
  fmt::print("consumer: {} bytes of {} tokens, {}, {:.3f} ms from request to ready, {} rows differ\n", ended.bytes,
             ended.tokens, ended.error ? error_name(*ended.error) : "delivered",
             std::chrono::duration<double, std::milli>(*ended.times.ended - ended.times.received).count(), wrong);
  const bool is_stopped = agent->stop(5s).has_value();
  return !ended.error && is_stopped && wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Pushes one prompt's KV from one process to another and compares every byte."};
  Flags flags;
  app.add_option("--transport", flags.transport, "auto, cma, nixl or ucx")->capture_default_str();
  app.add_option("--secret-file", flags.secret_file, "what both must know; docs/authentication.md");
  app.add_option("--tokens", flags.tokens, "length of the prompt")->check(CLI::Range(1u, kBlocks / 2 * kBlockTokens));
  if (const auto status = parse_flags(app, argc, argv, "kvpush-example")) return *status;

  int pipe_ends[2];
  KVPUSH_CHECK(pipe(pipe_ends) == 0, "the process has file descriptors left");
  // Before any thread: the child makes its own agent.
  const pid_t child = fork();
  KVPUSH_CHECK(child >= 0, "the machine has room for a second process");
  return child == 0 ? run_consumer(flags, pipe_ends[0]) : run_producer(flags, pipe_ends[1]);
}
