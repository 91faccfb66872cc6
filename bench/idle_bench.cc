// CPU of agents with nothing to do: two agents and a directory in one process, a session open, one prompt pushed.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvpush/agent/agent.h"
#include "kvpush/base/check.h"
#include "kvpush/directory/server.h"
#include "kvpush/transport/choice.h"
#include "kvpush/transport/ucx/ucx.h"

namespace kvpush {
namespace {

using namespace std::chrono_literals;

constexpr Duration kIdle = 10s;
constexpr Duration kLimit = 20s;
constexpr std::uint64_t kBytes = 1 << 20;

struct Engine {
  Engine(std::string name, std::vector<TransportFactory> transports) : memory(kBytes) {
    const auto base = reinterpret_cast<std::uint64_t>(memory.data());
    const RankLayout layout{{Plane{.layer = "layers.0",
                                   .component = Component::kLatent,
                                   .group = 0,
                                   .dtype = "uint8",
                                   .element_bytes = 1,
                                   .block_tokens = 16,
                                   .block_count = 64,
                                   .heads = {},
                                   .base = base,
                                   .block_stride_bytes = kBytes / 64,
                                   .head_stride_bytes = kBytes / 1024,
                                   .token_stride_bytes = kBytes / 1024,
                                   .inner_bytes = kBytes / 1024}}};
    agent = Agent::open({.engine_id = std::move(name), .transports = std::move(transports)}, layout, {{base, kBytes}})
                .value();
  }
  ~Engine() { (void)agent->stop(kLimit); }

  void submit(Command command) const {
    std::vector<Command> commands{std::move(command)};
    KVPUSH_CHECK(agent->submit(commands), "an idle agent takes a command");
  }
  EngineEvent next() const {
    std::vector<EngineEvent> events;
    KVPUSH_CHECK(agent->wait(kLimit), "the prompt arrives");
    agent->take_events(events);
    return events.front();
  }

  std::vector<std::byte> memory;
  std::unique_ptr<Agent> agent;
};

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

void measure(std::string_view transport, const std::vector<TransportFactory>& factories) {
  const Engine producer("p", factories);
  const Engine consumer("d", factories);
  const std::unique_ptr<DirectoryServer> directory = DirectoryServer::open({"127.0.0.1", 0}).value();
  KVPUSH_CHECK(directory->set_ranks({producer.agent->document()}), "the agent's document is one");
  producer.submit(Send{"send", "x", 16, {pack(std::vector{BlockId{0}})}});
  consumer.submit(Receive{"receive", "x", {"127.0.0.1", directory->port()}, {0, 16}, {pack(std::vector{BlockId{1}})}});
  KVPUSH_CHECK(!std::get<ReceiveEnded>(consumer.next()).error, "the prompt arrives whole");
  (void)producer.next();

  const double before = cpu_seconds();
  KVPUSH_CHECK(!consumer.agent->wait(kIdle), "nothing more happens");
  const double used = (cpu_seconds() - before) / std::chrono::duration<double>(kIdle).count();
  std::printf("%-9.*s %.3f %% of a core for each of two agents\n", static_cast<int>(transport.size()), transport.data(),
              100 * used / 2);
  (void)std::fflush(stdout);
  directory->stop();
}

}  // namespace
}  // namespace kvpush

int main() {
  std::printf("idle for %lld s after one transfer\n",
              static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(kvpush::kIdle).count()));
  kvpush::measure("loopback", kvpush::transport_factories("loopback").value());
  kvpush::measure("cma", kvpush::transport_factories("cma").value());
  kvpush::measure("ucx", {[] { return kvpush::open_ucx({.transports = "tcp", .module_path = KVPUSH_UCX_MODULE}); }});
}
