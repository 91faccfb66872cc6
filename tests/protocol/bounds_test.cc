// Full is an answer: what happens when each table of the protocol machines holds as much as it may.
#include <string>

#include <gtest/gtest.h>

#include "kvpush/base/limits.h"
#include "kvpush/sim/world.h"
#include "tests/protocol/text.h"

namespace kvpush::sim {
namespace {

// A producer with one consumer whose session is ready, and what it last said to that one.
class Bounds : public ::testing::Test {
 protected:
  Bounds() {
    const Blocks consumer(2, 0, 1, "bfloat16", {});
    hear(Hello{kProtocolVersion, {"C", {7}, 0, 1}, {1}, consumer.layout(), {{kFencing, {}}}});
    hear(Assign{{}, kFencing});
    Actions out;
    producer_.on_peer(kConnection, Peer{0, {1}}, {}, out);
  }

  void hear(const Message& message) {
    Actions out;
    if (!is_accepted_) producer_.on_accepted(kConnection, {});
    is_accepted_ = true;
    producer_.on(kConnection, message, {}, out);
    said_.clear();
    for (const Action& action : out) {
      if (const auto* send = std::get_if<SendMessage>(&action)) said_ += text(send->message) + "\n";
    }
  }

  static constexpr ConnectionId kConnection{1};
  const Blocks blocks_{1, 0, 1, "bfloat16", {}};
  const std::vector<TransportView> views_{{.name = kFencing, .address = {}, .disconnect_fences = true}};
  Producer producer_{{"P", {1}, 0, 1}, blocks_.layout(), views_, {}};
  bool is_accepted_ = false;
  std::string said_;
};

// Shows E2.
TEST_F(Bounds, OfRegistrationsThatWaitFailTheNextOne) {
  for (std::uint64_t number = 1; number <= kRegistrationsMax; ++number) {
    hear(Register{{number}, "x" + std::to_string(number), {}, {}});
  }
  EXPECT_EQ(said_, "");

  hear(Register{{kRegistrationsMax + 1}, "one too many", {}, {}});

  EXPECT_EQ(said_, "Failed 8193 full\n");
}

// Shows E2.
TEST_F(Bounds, OfBlocksThatWaitFailTheNextOne) {
  BlockTable separate;
  for (std::uint32_t block = 0; block < kBlocksPerTableMax; ++block) separate.spans.push_back({BlockId{2 * block}, 1});
  const std::uint64_t as_many_as_fit = kSpansWaitingMax / kBlocksPerTableMax;
  for (std::uint64_t number = 1; number <= as_many_as_fit; ++number) hear(Register{{number}, "x1", {}, {separate}});
  EXPECT_EQ(said_, "");

  hear(Register{{as_many_as_fit + 1}, "x1", {}, {separate}});
  EXPECT_EQ(said_, "Failed 33 full\n");

  hear(Revoke{{1}});
  hear(Register{{as_many_as_fit + 2}, "x1", {}, {separate}});
  EXPECT_EQ(said_, "") << "there is room again";
}

TEST_F(Bounds, OfOutcomesEndTheSessionOfAConsumerThatNeverSaysDone) {
  Actions out;
  producer_.on(Withdraw{"x1"}, {}, out);
  for (std::uint64_t number = 1; number <= kOutcomesMax; ++number) hear(Register{{number}, "x1", {}, {}});
  EXPECT_EQ(said_, "Failed 65536 aborted\n");

  hear(Register{{kOutcomesMax + 1}, "x1", {}, {}});

  EXPECT_EQ(said_, "Refused full: outcomes pile up: the consumer does not send Done\n");
}

TEST_F(Bounds, OfOutcomesAreNeverMetByAConsumerThatSaysDone) {
  Actions out;
  producer_.on(Withdraw{"x1"}, {}, out);
  for (std::uint64_t number = 1; number <= 2 * kOutcomesMax; ++number) {
    hear(Register{{number}, "x1", {}, {}});
    hear(Done{{number}});
  }

  hear(Register{{2 * kOutcomesMax + 1}, "x1", {}, {}});

  EXPECT_EQ(said_, "Failed 131073 aborted\n");
}

TEST(ConsumerBounds, OfPeersAreNoReasonToCallTheProducerUnreachable) {
  const Blocks blocks(2, 0, 1, "bfloat16", {});
  const std::vector<TransportView> views{{.name = kFencing, .address = {}, .disconnect_fences = true}};
  Consumer consumer({"C", {7}, 0, 1}, blocks.layout(), views, {}, Random(1));
  const Endpoint directory{"P", 80};
  const ConnectionId connection{1};
  Actions out;
  ASSERT_TRUE(consumer.on(Receive{"r1", "x1", directory, {0, 4}, {pack(std::vector{BlockId{0}})}}, {}, out));
  consumer.on_resolved(directory, ProducerEngine{"P", {1}, {{"P", 81}}}, {}, out);
  consumer.on_dialled(directory, 0, connection);
  consumer.on_connected(connection, {}, out);
  consumer.on(connection, Welcome{kProtocolVersion, {"P", {1}, 0, 1}, blocks.layout(), {{kFencing, {}}}}, {}, out);
  ASSERT_TRUE(std::holds_alternative<ConnectPeer>(out.back()));

  out.clear();
  consumer.on_peer(connection, fail(ErrorCode::kFull, "no descriptor is left"), {}, out);

  for (const Action& action : out)
    EXPECT_FALSE(std::holds_alternative<TellEngine>(action)) << "r1 waits for better times";
  EXPECT_EQ(consumer.waiting().size(), 1u);
  ASSERT_TRUE(std::holds_alternative<SendMessage>(out.front()));
  EXPECT_EQ(text(std::get<SendMessage>(out.front()).message),
            "Refused full: the consumer has no room for a peer: no descriptor is left");
  out.clear();
  consumer.tick(*consumer.deadline(), out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ResolveEngine>(out.front()));
}

TEST_F(Bounds, OfConsumersRefuseTheNextOne) {
  Actions out;
  for (std::uint64_t number = 2; number <= kSessionsMax + 1; ++number) {
    producer_.on_accepted({number}, {});
    out.clear();
    producer_.on({number}, Hello{kProtocolVersion, {"C", {number + 100}, 0, 1}, {1}, blocks_.layout(), {}}, {}, out);
  }

  ASSERT_FALSE(out.empty());
  const auto* refused = std::get_if<SendMessage>(&out[1]);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(text(refused->message), "Refused full: the producer knows too many consumers");
}

TEST_F(Bounds, OfRequestsThatHoldTheirBlocksRefuseTheNextOne) {
  Actions out;
  const auto send = [&](const std::string& name) { return producer_.on(Send{name, name, 0, {{}}}, {}, out); };
  for (std::size_t i = 0; i < kRequestsMax; ++i) ASSERT_TRUE(send("s" + std::to_string(i)));

  const Result<void> refused = send("one too many");

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFull);
}

TEST_F(Bounds, OfTransferIdsRefuseARequest) {
  Actions out;
  const auto send = [&](const std::string& transfer_id) {
    return producer_.on(Send{"r" + transfer_id, transfer_id, 0, {{}}}, {}, out);
  };

  EXPECT_EQ(send("").error().code, ErrorCode::kBadParams);
  EXPECT_EQ(send(std::string(kTransferIdBytesMax + 1, 'x')).error().code, ErrorCode::kBadParams);
  EXPECT_TRUE(send(std::string(kTransferIdBytesMax, 'x')));
}

TEST_F(Bounds, OfRequestsThatWaitForTheirKvRefuseTheNextOne) {
  Consumer consumer({"C", {7}, 0, 1}, blocks_.layout(), views_, {}, Random(1));
  Actions out;
  const auto receive = [&](const std::string& name) {
    return consumer.on(Receive{name, name, {"P", 80}, {}, {}}, {}, out);
  };
  for (std::size_t i = 0; i < kRequestsMax; ++i) ASSERT_TRUE(receive("r" + std::to_string(i)));

  const Result<void> refused = receive("one too many");

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFull);
}

TEST_F(Bounds, OfMessagesRefuseARequestWhoseTablesCannotBeSent) {
  Consumer consumer({"C", {7}, 0, 1}, blocks_.layout(), views_, {}, Random(1));
  const BlockTable used{{{BlockId{0}, 2}}};
  const struct {
    const char* what;
    TokenRange tokens;
    BlockTables tables;
  } cases[] = {
      {"an empty span that no token needs", {}, {BlockTable{{{BlockId{3}, 0}}}}},
      {"ids that wrap around in a table that no plane uses", {0, 4}, {used, BlockTable{{{BlockId{0xfffffffe}, 2}}}}},
      {"too many blocks in a table that no plane uses", {0, 4}, {used, BlockTable{{{{}, kBlocksPerTableMax + 1}}}}},
      {"too many tables", {0, 4}, BlockTables(kGroupsMax + 1, used)},
  };
  for (const auto& bad : cases) {
    Actions out;

    const Result<void> refused = consumer.on(Receive{"r", "x", {"P", 80}, bad.tokens, bad.tables}, {}, out);

    ASSERT_FALSE(refused) << bad.what;
    EXPECT_EQ(refused.error().code, ErrorCode::kBadMessage) << bad.what;
    EXPECT_TRUE(out.empty()) << bad.what;
  }
  Actions out;
  EXPECT_TRUE(consumer.on(Receive{"r", "x", {"P", 80}, {0, 4}, {used, used}}, {}, out));
}

TEST_F(Bounds, OfProducerEnginesRefuseRequestsToTheNextOne) {
  Consumer consumer({"C", {7}, 0, 1}, blocks_.layout(), views_, {}, Random(1));
  Actions out;
  const auto receive = [&](std::size_t engine) {
    const Endpoint directory{"P", static_cast<std::uint16_t>(1 + engine)};
    return consumer.on(Receive{"r" + std::to_string(engine), "x", directory, {}, {}}, {}, out);
  };
  for (std::size_t i = 0; i < kSessionsMax; ++i) ASSERT_TRUE(receive(i));

  const Result<void> refused = receive(kSessionsMax);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFull);
}

}  // namespace
}  // namespace kvpush::sim
