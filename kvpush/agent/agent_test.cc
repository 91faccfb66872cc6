#include "kvpush/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvpush/base/limits.h"
#include "kvpush/directory/server.h"
#include "kvpush/http/client.h"
#include "kvpush/transport/loopback.h"

namespace kvpush {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kBlocks = 8;
constexpr std::uint32_t kBlockTokens = 4;
constexpr std::uint64_t kRowBytes = 32;
constexpr Duration kLong = 20s;  // a test that waits so long has failed

// An engine with one plane, its agent and its directory.
class Engine {
 public:
  Engine(const std::string& name, LoopbackNetwork& network, ProtocolOptions protocol = {},
         const std::string& secret_file = "")
      : memory_(kBlocks * kBlockTokens * kRowBytes) {
    AgentOptions options{.engine_id = name, .secret_file = secret_file, .protocol = protocol};
    options.transports.push_back(
        [&network, name]() -> Result<std::unique_ptr<Transport>> { return network.open(name); });
    agent_ = Agent::open(options, layout(), regions()).value();
    directory_ = DirectoryServer::open({"127.0.0.1", 0}).value();
    EXPECT_TRUE(directory_->set_ranks({agent_->document()}));
  }
  ~Engine() {
    (void)agent_->stop(kLong);
    directory_->stop();
  }

  RankLayout layout() {
    return {{Plane{.layer = "layers.0",
                   .component = Component::kLatent,
                   .group = 0,
                   .dtype = "uint8",
                   .element_bytes = 1,
                   .block_tokens = kBlockTokens,
                   .block_count = kBlocks,
                   .heads = {},
                   .base = reinterpret_cast<std::uint64_t>(memory_.data()),
                   .block_stride_bytes = kBlockTokens * kRowBytes,
                   .head_stride_bytes = kRowBytes,
                   .token_stride_bytes = kRowBytes,
                   .inner_bytes = kRowBytes}}};
  }
  std::vector<MemoryRange> regions() { return {{reinterpret_cast<std::uint64_t>(memory_.data()), memory_.size()}}; }

  void send(const std::string& id, std::vector<BlockId> blocks) {
    const auto tokens = static_cast<std::uint32_t>(blocks.size()) * kBlockTokens;
    submit(Send{"send-" + id, id, tokens, {pack(blocks)}});
  }
  void receive(const std::string& id, std::vector<BlockId> blocks, const Engine& producer) {
    const auto tokens = static_cast<std::uint32_t>(blocks.size()) * kBlockTokens;
    submit(Receive{"receive-" + id, id, producer.directory(), {0, tokens}, {pack(blocks)}});
  }
  void submit(Command command) {
    std::vector<Command> commands{std::move(command)};
    ASSERT_TRUE(agent_->submit(commands));
  }
  template <class Event>
  Event next() {
    while (events_.empty()) {
      if (!agent_->wait(kLong)) {
        ADD_FAILURE() << "no event came";
        return {};
      }
      agent_->take_events(events_);
    }
    const EngineEvent event = events_.front();
    events_.erase(events_.begin());
    EXPECT_TRUE(std::holds_alternative<Event>(event));
    return std::holds_alternative<Event>(event) ? std::get<Event>(event) : Event{};
  }

  std::span<std::byte> block(std::uint32_t index) {
    return std::span(memory_).subspan(index * kBlockTokens * kRowBytes, kBlockTokens * kRowBytes);
  }
  // Until the directory shows a live transfer in that state.
  void wait_until_live(const std::string& state) {
    boost::asio::io_context context;
    HttpClient http(context);
    bool is_live = false;
    std::function<void()> ask = [&] {
      http.collect({.address = {"127.0.0.1", directory_->port()}, .target = "/kvpush/v1/transfers"},
                   [&](Result<HttpAnswer> answer) {
                     is_live = answer && answer->body.find("\"" + state + "\"") != std::string::npos;
                     is_live ? context.stop() : ask();
                   });
    };
    ask();
    context.run_for(kLong);
    EXPECT_TRUE(is_live) << "no transfer became " << state;
  }
  Endpoint directory() const { return {"127.0.0.1", directory_->port()}; }
  Agent& agent() { return *agent_; }

 private:
  std::vector<std::byte> memory_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<DirectoryServer> directory_;
  std::vector<EngineEvent> events_;
};

void fill(std::span<std::byte> bytes, int value) {
  std::ranges::fill(bytes, static_cast<std::byte>(value));
}

// Shows B3.
TEST(Agent, DeliversWhateverSideComesFirst) {
  LoopbackNetwork network;
  Engine producer("p", network);
  Engine consumer("d", network);
  fill(producer.block(1), 11);
  fill(producer.block(2), 22);

  producer.send("prefill-first", {BlockId{1}});
  consumer.receive("prefill-first", {BlockId{5}}, producer);
  EXPECT_EQ(consumer.next<ReceiveEnded>().error, std::nullopt);
  EXPECT_EQ(producer.next<SendEnded>().error, std::nullopt);
  consumer.receive("decode-first", {BlockId{0}, BlockId{7}}, producer);
  producer.send("decode-first", {BlockId{2}, BlockId{1}});
  const auto received = consumer.next<ReceiveEnded>();
  EXPECT_EQ(producer.next<SendEnded>().error, std::nullopt);

  EXPECT_EQ(received.error, std::nullopt);
  EXPECT_EQ(received.bytes, 2 * kBlockTokens * kRowBytes);
  EXPECT_THAT(consumer.block(5), testing::Each(std::byte{11}));
  EXPECT_THAT(consumer.block(0), testing::Each(std::byte{22}));
  EXPECT_THAT(consumer.block(7), testing::Each(std::byte{11}));
  EXPECT_THAT(consumer.block(6), testing::Each(std::byte{0}));
}

TEST(Agent, IsProducerAndConsumerAtOnce) {
  LoopbackNetwork network;
  Engine a("a", network);
  Engine b("b", network);
  fill(a.block(0), 1);
  fill(b.block(0), 2);

  a.send("from-a", {BlockId{0}});
  b.send("from-b", {BlockId{0}});
  a.receive("from-b", {BlockId{3}}, b);
  b.receive("from-a", {BlockId{3}}, a);

  for (Engine* engine : {&a, &b}) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(engine->agent().wait(kLong));
      std::vector<EngineEvent> events;
      engine->agent().take_events(events);
      i += static_cast<int>(events.size()) - 1;
    }
  }
  EXPECT_THAT(a.block(3), testing::Each(std::byte{2}));
  EXPECT_THAT(b.block(3), testing::Each(std::byte{1}));
}

TEST(Agent, AnswersACommandItCannotCarryOutWithAnErrorEvent) {
  LoopbackNetwork network;
  Engine producer("p", network);
  Engine consumer("d", network);

  consumer.receive("x", {BlockId{kBlocks}}, producer);
  EXPECT_EQ(consumer.next<ReceiveEnded>().error, ErrorCode::kBadMessage);
  producer.send("held", {BlockId{0}});
  producer.send("held", {BlockId{0}});
  EXPECT_EQ(producer.next<SendEnded>().error, ErrorCode::kBusy);
}

TEST(Agent, FailsAReceiveWhoseProducerIsNotThere) {
  LoopbackNetwork network;
  Engine consumer("d", network, {.session_limit = 50ms});

  consumer.submit(Receive{"r", "t", {"127.0.0.1", 1}, {0, kBlockTokens}, {pack(std::vector{BlockId{0}})}});

  const auto ended = consumer.next<ReceiveEnded>();
  EXPECT_EQ(ended.error, ErrorCode::kTimeout);
}

TEST(Agent, GivesBlocksBackThatNobodyAsksForAfterTheHoldTimeout) {
  LoopbackNetwork network;
  Engine producer("p", network, {.hold_timeout = 1ms});

  producer.send("forgotten", {BlockId{0}});

  EXPECT_EQ(producer.next<SendEnded>().error, ErrorCode::kTimeout);
}

// Shows A1, A6.
TEST(Agent, EndsAnAbandonedReceiveOnlyWhenNothingCanLand) {
  LoopbackNetwork network;
  Engine producer("p", network);
  Engine consumer("d", network);
  fill(producer.block(0), 9);
  network.hold("p");
  consumer.receive("x", {BlockId{4}}, producer);
  producer.send("x", {BlockId{0}});

  consumer.submit(Abandon{"receive-x"});
  producer.submit(Cancel{"send-x"});
  network.release("p");
  const auto received = consumer.next<ReceiveEnded>();
  const std::vector<std::byte> then(consumer.block(4).begin(), consumer.block(4).end());
  producer.next<SendEnded>();

  // Either everything had been written before or nothing comes afterwards.
  EXPECT_TRUE(std::ranges::equal(then, consumer.block(4)));
  if (!received.error) {
    EXPECT_THAT(then, testing::Each(std::byte{9}));
  }
}

// Shows B1.
TEST(Agent, WritesAgainInANewSessionWhatFailed) {
  LoopbackNetwork network;
  Engine producer("p", network);
  Engine consumer("d", network);
  fill(producer.block(0), 5);
  network.fail_next_write("p", {ErrorCode::kTransportFailed, "a test says so"});
  consumer.receive("x", {BlockId{4}}, producer);
  producer.send("x", {BlockId{0}});

  EXPECT_EQ(consumer.next<ReceiveEnded>().error, std::nullopt);
  EXPECT_EQ(producer.next<SendEnded>().error, std::nullopt);
  EXPECT_THAT(consumer.block(4), testing::Each(std::byte{5}));
}

// Shows C8.
TEST(Agent, StopsWithWorkInFlight) {
  LoopbackNetwork network;
  Engine producer("p", network);
  Engine consumer("d", network);
  network.hold("p");
  consumer.receive("x", {BlockId{4}}, producer);
  producer.send("x", {BlockId{0}});
  producer.wait_until_live("writing");

  EXPECT_EQ(producer.agent().stop(1ms).error().code, ErrorCode::kTimeout);
  EXPECT_EQ(producer.next<SendEnded>().error, ErrorCode::kStopped);
  std::vector<Command> late{Cancel{"send-x"}};
  EXPECT_EQ(producer.agent().submit(late).error().code, ErrorCode::kStopped);
  // The consumer's side ends as well: its peer is gone.
  EXPECT_TRUE(consumer.next<ReceiveEnded>().error);
}

TEST(Agent, StopsAtOnceWhenRequestsOnlyWait) {
  LoopbackNetwork network;
  Engine producer("p", network);
  producer.send("held", {BlockId{1}});
  producer.wait_until_live("held");

  EXPECT_TRUE(producer.agent().stop(kLong));
  EXPECT_EQ(producer.next<SendEnded>().error, ErrorCode::kStopped);
}

// Shows C8.
TEST(Agent, EndsWhatItHasAcceptedThoughItIsStoppedBeforeItLooks) {
  LoopbackNetwork network;
  Engine producer("p", network);
  std::vector<Command> commands;
  for (int i = 0; i < 1000; ++i) {
    commands.push_back(
        Send{"send " + std::to_string(i), "x" + std::to_string(i), kBlockTokens, {pack(std::vector{BlockId{0}})}});
  }

  ASSERT_TRUE(producer.agent().submit(commands));
  EXPECT_TRUE(producer.agent().stop(kLong));

  std::vector<EngineEvent> events;
  producer.agent().take_events(events);
  EXPECT_EQ(events.size(), 1000u);
}

TEST(Agent, TakesAllCommandsOfAStepOrNone) {
  LoopbackNetwork network;
  Engine engine("e", network);
  std::vector<Command> commands(kMailboxCommandsMax + 1, Cancel{"unknown"});

  EXPECT_EQ(engine.agent().submit(commands).error().code, ErrorCode::kFull);
  EXPECT_EQ(commands.size(), kMailboxCommandsMax + 1);
}

TEST(Agent, RefusesALeaseThatIsAllMargin) {
  LoopbackNetwork network;
  Engine engine("e", network);
  const AgentOptions options{.engine_id = "other", .protocol = {.lease = 1s, .lease_margin = 1s}};

  EXPECT_EQ(Agent::open(options, engine.layout(), engine.regions()).error().code, ErrorCode::kBadConfig);
}

// Shows E4.
TEST(Agent, RefusesMemoryThatTheRegionsDoNotHold) {
  LoopbackNetwork network;
  Engine engine("e", network);
  AgentOptions options{.engine_id = "other"};
  std::vector<MemoryRange> regions = engine.regions();
  regions[0].size_bytes -= 1;

  EXPECT_EQ(Agent::open(options, engine.layout(), regions).error().code, ErrorCode::kOutOfRegion);
  EXPECT_EQ(Agent::open(options, {}, {}).error().code, ErrorCode::kLayoutMismatch);
  EXPECT_EQ(Agent::open({}, engine.layout(), engine.regions()).error().code, ErrorCode::kBadConfig);
  EXPECT_EQ(Agent::open(options, engine.layout(), engine.regions()).error().code, ErrorCode::kUnavailable);
}

TEST(Agent, KeepsARegistrationThatWaitsForSeveralLeases) {
  const ProtocolOptions protocol{.lease = 500ms, .lease_margin = 100ms};
  LoopbackNetwork network;
  Engine producer("p", network, protocol);
  Engine consumer("d", network, protocol);
  fill(producer.block(0), 8);

  consumer.receive("x", {BlockId{4}}, producer);
  EXPECT_FALSE(consumer.agent().wait(2s)) << "nothing ends by itself";
  producer.send("x", {BlockId{0}});

  EXPECT_EQ(consumer.next<ReceiveEnded>().error, std::nullopt);
  EXPECT_EQ(producer.next<SendEnded>().error, std::nullopt);
  EXPECT_THAT(consumer.block(4), testing::Each(std::byte{8}));
}

// Shows E8.
TEST(Agent, UsesNoCpuWhileSessionsAreOpenAndNothingMoves) {
  LoopbackNetwork network;
  Engine producer("p", network);
  Engine consumer("d", network);
  producer.send("x", {BlockId{0}});
  consumer.receive("x", {BlockId{0}}, producer);
  consumer.next<ReceiveEnded>();
  producer.next<SendEnded>();

  // Nobody moves anything while this waits for an event that does not come.
  const std::clock_t before = std::clock();
  EXPECT_FALSE(consumer.agent().wait(1s));
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;

  EXPECT_LT(used, 0.02) << "two agents and two directories, 1 % of a core for each agent";
}

std::string write_secret(char letter) {
  const std::string path = testing::TempDir() + "kvpush_agent_" + letter + std::to_string(getpid());
  std::ofstream(path) << std::string(32, letter);
  EXPECT_EQ(chmod(path.c_str(), 0600), 0);
  return path;
}

TEST(Agent, DeliversToAPeerThatKnowsTheSecret) {
  LoopbackNetwork network;
  const std::string secret = write_secret('s');
  Engine producer("p", network, {}, secret);
  Engine consumer("d", network, {}, secret);
  fill(producer.block(1), 11);

  producer.send("one", {BlockId{1}});
  consumer.receive("one", {BlockId{5}}, producer);

  EXPECT_EQ(consumer.next<ReceiveEnded>().error, std::nullopt);
  EXPECT_EQ(consumer.block(5)[0], std::byte{11});
}

TEST(Agent, FailsARequestAtOnceWhenItsPeerKnowsNoOrAnotherSecret) {
  LoopbackNetwork network;
  const std::string secret = write_secret('s');
  const std::string other = write_secret('o');
  Engine producer("p", network, {}, secret);
  Engine stranger("d1", network, {}, other);
  Engine plain("d2", network);

  for (Engine* consumer : {&stranger, &plain}) {
    consumer->receive("one", {BlockId{5}}, producer);
    EXPECT_EQ(consumer->next<ReceiveEnded>().error, ErrorCode::kUnauthenticated);
  }
}

TEST(Agent, IsRefusedWhereOtherMachinesReachItWithoutASecret) {
  LoopbackNetwork network;
  Engine engine("p", network);
  AgentOptions options{.engine_id = "other", .control = {"0.0.0.0", 0}};
  options.transports.push_back([&network]() -> Result<std::unique_ptr<Transport>> { return network.open("other"); });
  const auto agent = Agent::open(options, engine.layout(), engine.regions());
  ASSERT_FALSE(agent.has_value());
  EXPECT_EQ(agent.error().code, ErrorCode::kBadConfig);
  EXPECT_THAT(agent.error().what, testing::HasSubstr("secret_file"));
}

}  // namespace
}  // namespace kvpush
