#include "kvpush/agent/core.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kvpush/agent/exchange.h"
#include "kvpush/control/control.h"
#include "kvpush/transport/loopback.h"

namespace kvpush {
namespace {

constexpr ConnectionId kConsumer{1};
constexpr std::uint32_t kPromptTokens = 4;
constexpr std::uint64_t kTokenBytes = 32;

// Keeps what the core says and closes.
class RecordingControl : public Control {
 public:
  std::uint16_t port() const override { return 1; }
  const ControlCounters& counters() const override { return counters_; }
  ConnectionId connect(const Endpoint&) override { return ConnectionId{99}; }
  void send(ConnectionId, const Message& message) override { sent.push_back(message); }
  void close(ConnectionId connection) override { closed.push_back(connection); }
  void stop() override {}

  std::vector<Message> sent;
  std::vector<ConnectionId> closed;

 private:
  ControlCounters counters_;
};

RankLayout layout_of(const std::vector<std::byte>& memory) {
  return {{Plane{.layer = "layers.0",
                 .component = Component::kLatent,
                 .group = 0,
                 .dtype = "uint8",
                 .element_bytes = 1,
                 .block_tokens = kPromptTokens,
                 .block_count = 1,
                 .heads = {},
                 .base = reinterpret_cast<std::uint64_t>(memory.data()),
                 .block_stride_bytes = memory.size(),
                 .head_stride_bytes = kTokenBytes,
                 .token_stride_bytes = kTokenBytes,
                 .inner_bytes = kTokenBytes}}};
}

// A producer's core with a consumer that the test plays, on the test's own time.
class Core : public testing::Test {
 protected:
  Core() {
    Transports transports;
    transports.push_back(network_.open("producer"));
    EXPECT_TRUE(transports.back()->register_region(source_));
    EXPECT_TRUE(there_->register_region(target_));
    core_.emplace(RankName{"P", Incarnation{1}, 0, 1}, layout_of(source_), std::move(transports), ProtocolOptions{},
                  Random{1},
                  AgentCore::Surroundings{exchange_, control_, [](const Endpoint&) {},
                                          [this] { return now_ += time_between_readings_; }});
    core_->on_accepted(kConsumer, now_);
    say(Hello{kProtocolVersion,
              {"C", Incarnation{2}, 0, 1},
              SessionNumber{1},
              layout_of(target_),
              {{std::string(there_->name()), there_->address()}}});
    const auto& welcome = std::get<Welcome>(control_.sent.back());
    EXPECT_TRUE(there_->connect(welcome.transports.front().address));
    say(Assign{{{.producer_plane = 0, .consumer_plane = 0, .head_count = 1}}, std::string(there_->name()), {}});
    say(Renewed{std::get<Renew>(control_.sent.back()).stamp});
  }

  void say(const Message& message) { core_->on_message(kConsumer, message, now_); }
  // Both sides want the transfer, and its batch is posted.
  void begin_writing(RegistrationNumber number, const TransferId& transfer_id) {
    say(Register{number, transfer_id, {0, kPromptTokens}, {pack(std::vector{BlockId{0}})}});
    std::vector<Command> commands{Send{"request", transfer_id, kPromptTokens, {pack(std::vector{BlockId{0}})}}};
    EXPECT_TRUE(exchange_.submit(commands));
    core_->turn(now_);
  }

  std::vector<EngineEvent> events() {
    std::vector<EngineEvent> events;
    exchange_.take_events(events, now_);
    return events;
  }

  Instant now_{};
  Duration time_between_readings_{};
  std::vector<std::byte> source_ = std::vector<std::byte>(kPromptTokens * kTokenBytes, std::byte{7});
  std::vector<std::byte> target_ = std::vector<std::byte>(source_.size());
  LoopbackNetwork network_;
  std::unique_ptr<Transport> there_ = network_.open("consumer");
  Exchange exchange_;
  RecordingControl control_;
  std::optional<AgentCore> core_;
};

// Shows C8.
TEST_F(Core, IsIdleWhenTheConsumerKnowsThatItsKvHasCome) {
  begin_writing(RegistrationNumber{1}, "x");
  while (!std::holds_alternative<Delivered>(control_.sent.back())) ASSERT_GT(core_->turn(now_), 0u);
  EXPECT_FALSE(core_->idle());

  say(Done{RegistrationNumber{1}});

  EXPECT_TRUE(core_->idle());
}

TEST_F(Core, B7TakesAWriteThatHasEndedWhenItsTimeIsOver) {
  network_.hold("producer");
  begin_writing(RegistrationNumber{1}, "x");
  say(Revoke{RegistrationNumber{1}});
  ASSERT_FALSE(std::holds_alternative<Revoked>(control_.sent.back())) << "its write is in flight";

  network_.release("producer");
  now_ += ProtocolOptions{}.drain_limit;
  core_->turn(now_);

  EXPECT_TRUE(std::holds_alternative<Revoked>(control_.sent.back()));
  EXPECT_TRUE(control_.closed.empty()) << "nobody had to be cut off";
}

TEST_F(Core, CutsOffAWriteThatHasNotEndedWhenItsTimeIsOver) {
  network_.hold("producer");
  begin_writing(RegistrationNumber{1}, "x");
  say(Revoke{RegistrationNumber{1}});

  now_ += ProtocolOptions{}.drain_limit;
  core_->turn(now_);

  EXPECT_EQ(control_.closed, std::vector{kConsumer});
}

// Shows F4.
TEST_F(Core, KnowsHowLongAWriteTookThatEndedInTheTurnThatPostedIt) {
  time_between_readings_ = std::chrono::microseconds(1);

  begin_writing(RegistrationNumber{1}, "x");

  const std::vector<EngineEvent> told = events();
  ASSERT_EQ(told.size(), 1u);
  const SendingTimes& times = std::get<SendEnded>(told.front()).times;
  ASSERT_TRUE(times.first_post && times.last_post && times.completed);
  EXPECT_LE(*times.first_post, *times.last_post);
  EXPECT_LT(*times.last_post, *times.completed);
  EXPECT_GT(std::get<Delivered>(control_.sent.back()).times.since_last_post, Duration{});
}

// Shows C8.
TEST_F(Core, AnswersAtItsEndEveryCommandThatItHasAccepted) {
  std::vector<Command> commands;
  for (int i = 0; i < 200; ++i) {
    commands.push_back(Send{"request " + std::to_string(i), "x" + std::to_string(i), kPromptTokens, {}});
  }
  ASSERT_TRUE(exchange_.submit(commands));

  core_->drain(now_);
  core_->fail_rest(now_);

  const std::vector<EngineEvent> told = events();
  EXPECT_EQ(told.size(), 200u);
  for (const EngineEvent& event : told) EXPECT_EQ(std::get<SendEnded>(event).error, ErrorCode::kStopped);
  std::vector<Command> late{Send{"late", "late", kPromptTokens, {}}};
  EXPECT_FALSE(exchange_.submit(late));
}

// Shows A1.
TEST_F(Core, ReadsNothingOfARequestThatItHasEndedAtItsEnd) {
  network_.hold("producer");
  begin_writing(RegistrationNumber{1}, "x");
  const std::vector<std::byte> before = target_;
  core_->drain(now_);

  EXPECT_EQ(core_->fail_rest(now_), 1u);
  ASSERT_EQ(std::get<SendEnded>(events().at(0)).error, ErrorCode::kStopped);
  TransportEvents seen;
  there_->poll(seen);

  ASSERT_EQ(seen.lost.size(), 1u) << "the endpoint is gone when the engine hears that the blocks are its own again";
  EXPECT_TRUE(seen.lost.front().writer_gone);
  EXPECT_EQ(target_, before);
}

}  // namespace
}  // namespace kvpush
