// What the lease is for: rows A4, A7 and B9 of the fault matrix, and silent peers. Silence is time without deliveries.
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvpush/sim/world.h"
#include "tests/protocol/text.h"

namespace kvpush::sim {
namespace {

using namespace std::chrono_literals;

constexpr ProtocolOptions kOptions;
// Counted from the last Renew that was answered.
constexpr Duration kPostingEnds = kOptions.lease - kOptions.lease_margin;

// A producer and a consumer whose session is ready.
class Leases : public ::testing::Test {
 protected:
  explicit Leases(const std::string& transport = kFencing) : world_({.transports = {transport}}) {
    world_.add({.name = "P", .role = World::Role::kProducer});
    world_.add({.name = "C"});
    world_.add({.name = "D"});
    world_.decline(consumer(), "x0", "P");
    world_.deliver_all();
    world_.withdraw(producer(), "x0");
  }

  Rank& producer() { return *world_.ranks_of("P").front(); }
  Rank& consumer() { return *world_.ranks_of("C").front(); }
  const ProducerCounters& sent() { return producer().producer->counters(); }
  const ConsumerCounters& got() { return consumer().consumer->counters(); }

  // Both sides ask; nothing has been delivered.
  void ask(const TransferId& transfer_id) {
    world_.send(producer(), {"s-" + transfer_id, transfer_id, {0, 8}});
    world_.receive(consumer(), {"r-" + transfer_id, transfer_id, {0, 8}}, "P");
  }
  // All that can be delivered is, at once, while time passes.
  void pass(Duration duration) {
    const Instant end = world_.now() + duration;
    world_.deliver_all();
    for (auto due = world_.deadline(); due && *due <= end; due = world_.deadline()) {
      world_.advance_to(*due);
      world_.deliver_all();
    }
    world_.advance_to(end);
  }
  void pass_in_silence(Duration duration) { world_.advance_to(world_.now() + duration); }
  // Both sides ask, nothing of it is written, and the consumer is gone for good.
  void ask_and_lose_consumer(const TransferId& transfer_id) {
    world_.set_full(producer(), true);
    ask(transfer_id);
    world_.deliver_all();
    world_.set_stopped(consumer(), true);
    world_.cut(world_.connections().back(), true);
  }
  void complete_writes() {
    while (!world_.writes().empty()) world_.complete(world_.writes().front());
    world_.deliver_all();
  }
  // The processes that are stopped go on, and a request after that is served.
  void expect_recovery() {
    for (Rank* rank : world_.ranks()) {
      if (rank->is_stopped) world_.set_stopped(*rank, false);
    }
    pass(20s);
    ask("x-after");
    for (int turn = 0; turn < 4; ++turn) {
      pass(1s);
      complete_writes();
    }
    EXPECT_GE(consumer().complete_count, 1u);
    EXPECT_TRUE(consumer().requests.empty());
    EXPECT_TRUE(producer().requests.empty());
  }
  void TearDown() override {
    std::string lines;
    for (const std::string& line : world_.take_lines()) lines += "\n" + line;
    for (const std::string& fault : world_.faults()) ADD_FAILURE() << fault << ", after" << lines;
  }

  World world_;
};

// Shows C4.
TEST_F(Leases, ARequestWhoseSessionIsLostIsWrittenNoMoreUntilTheNextOne) {
  const auto is_writing = [this] { return consumer().consumer->waiting().front().writing; };
  ask("x1");
  world_.deliver_all();
  ASSERT_TRUE(is_writing());

  world_.cut(world_.connections().back(), true);
  world_.deliver_all();

  EXPECT_FALSE(is_writing());
  complete_writes();
  pass(200ms);
  EXPECT_TRUE(is_writing()) << "in the next session";
  complete_writes();
  EXPECT_EQ(consumer().complete_count, 1u);
}

TEST_F(Leases, A4WhatWaitsBehindAStalledTransportIsNotPostedWhenTheLeaseIsOver) {
  world_.set_full(producer(), true);
  ask("x1");
  world_.deliver_all();

  pass_in_silence(kPostingEnds);
  world_.set_full(producer(), false);

  EXPECT_TRUE(world_.writes().empty());
  EXPECT_EQ(sent().leases_expired, 1u);
  EXPECT_EQ(sent().sessions_lost, 0u);
}

TEST_F(Leases, A4WhatWaitsIsPostedUntilTheLastMoment) {
  world_.set_full(producer(), true);
  ask("x1");
  world_.deliver_all();

  pass_in_silence(kPostingEnds - 1ns);
  world_.set_full(producer(), false);

  EXPECT_EQ(world_.writes().size(), 1u);
  EXPECT_EQ(sent().leases_expired, 0u);
}

TEST_F(Leases, A4WhatWasHeldBackIsPostedInTheSameSessionWhenTheConsumerAnswersAgain) {
  world_.set_full(producer(), true);
  ask("x1");
  ask("x2");
  world_.deliver_all();
  pass_in_silence(kPostingEnds);
  world_.set_full(producer(), false);

  world_.deliver_all();

  EXPECT_EQ(world_.writes().size(), 2u);
  EXPECT_THAT(world_.take_lines(),
              ::testing::Contains(::testing::HasSubstr("renews its lease late: 2 registrations have waited for it")));
  complete_writes();
  EXPECT_EQ(consumer().complete_count, 2u);
  EXPECT_EQ(sent().sessions_lost, 0u);
  EXPECT_EQ(sent().leases_expired, 1u) << "once for all that waits";
}

TEST_F(Leases, A4AnAnswerThatComesTooLateBringsNothingBack) {
  world_.set_full(producer(), true);
  ask("x1");
  world_.deliver_all();
  pass_in_silence(kPostingEnds);  // with two more Renews on their way
  world_.set_full(producer(), false);
  world_.deliver_all("C");

  pass_in_silence(kOptions.lease);
  world_.deliver_all("P");

  EXPECT_TRUE(world_.writes().empty());
  EXPECT_EQ(sent().sessions_silent, 1u);
}

// The check and the post are one call, so what is stopped here lies between the plan and the check. Between the check
// and the post only the transport can help: tests/contract.
class StoppedProducer : public Leases, public ::testing::WithParamInterface<const char*> {
 protected:
  StoppedProducer() : Leases(GetParam()) {
    world_.set_full(producer(), true);
    ask("x1");
    world_.deliver_all();
    world_.set_stopped(producer(), true);
    producer().is_full = false;
  }
};

TEST_P(StoppedProducer, A7PostsNothingWhenItGoesOnAfterThreeLeases) {
  pass(3 * kOptions.lease);

  world_.set_stopped(producer(), false);

  EXPECT_TRUE(world_.writes().empty());
  expect_recovery();
}

TEST_P(StoppedProducer, IsLostAfterOneLeaseAndNoEarlier) {
  pass(kOptions.lease - 1ns);
  EXPECT_EQ(got().sessions_lost, 0u);

  pass(1ns);

  EXPECT_EQ(got().sessions_lost, 1u);
  EXPECT_EQ(got().sessions_silent, 1u);
  EXPECT_EQ(consumer().failed_count, 0u);  // it may be back at once

  pass(kOptions.drain_limit);

  // A fence is proof; without one the silent process may write yet, and the blocks are withheld.
  const bool is_fencing = GetParam() == std::string(kFencing);
  EXPECT_EQ(consumer().failed_count, is_fencing ? 1u : 0u);
  EXPECT_EQ(consumer().consumer->gauges().quarantined, is_fencing ? 0u : 1u);
  expect_recovery();
}

INSTANTIATE_TEST_SUITE_P(Over, StoppedProducer, ::testing::Values(kFencing, kPlain),
                         [](const auto& test) { return std::string(test.param); });

// Shows E10.
TEST_F(Leases, OfAProducerThatStopsAreOverForARequestThatOnlyWaitsInTheQueue) {
  const auto told = [this] {
    std::string lines;
    for (const std::string& line : world_.take_lines()) lines += line + "\n";
    return lines.find("C: x1 need not be awaited any more") != std::string::npos;
  };
  world_.await(consumer(), "x1", "P");
  pass(3 * kOptions.lease);
  EXPECT_EQ(got().sessions_lost, 0u) << "it renews the lease of who only waits";
  EXPECT_FALSE(told());

  world_.set_stopped(producer(), true);
  pass(kOptions.lease);

  EXPECT_EQ(got().sessions_silent, 1u);
  EXPECT_TRUE(told());
  expect_recovery();
}

TEST_F(Leases, OfAProducerThatHasAdmittedAreNotWaitedFor) {
  world_.await(consumer(), "x1", "P");
  world_.admit(producer(), "x1");
  world_.deliver_all();

  world_.set_stopped(producer(), true);
  pass(3 * kOptions.lease);

  EXPECT_EQ(got().sessions_silent, 0u) << "nothing is waited for";
}

TEST_F(Leases, B9BlocksReadForASilentConsumerAreBackAfterOneLeaseAndDrain) {
  ask("x1");
  world_.deliver_all();
  ASSERT_EQ(world_.writes().size(), 1u);
  world_.set_stopped(consumer(), true);  // and the write does not end by itself

  pass(kOptions.lease - 1ns);
  EXPECT_EQ(sent().sessions_silent, 0u);
  pass(1ns);
  EXPECT_EQ(sent().sessions_silent, 1u);
  EXPECT_EQ(producer().requests.size(), 1u) << "a posted write reads its blocks";
  pass(kOptions.drain_limit);
  world_.complete(world_.writes().front());  // it can only fail: its peer is disconnected
  pass(0s);

  EXPECT_TRUE(producer().requests.empty());
  EXPECT_EQ(producer().producer->gauges().transfers, 0u);
  expect_recovery();
}

TEST_F(Leases, B9BlocksOfADeadConsumerAreKeptForAnotherOneForALease) {
  ask_and_lose_consumer("x1");

  pass(kOptions.lease - 1ns);
  EXPECT_EQ(producer().requests.size(), 1u);
  pass(1ns);

  EXPECT_TRUE(producer().requests.empty());
}

TEST_F(Leases, B9AnotherConsumerThatComesInTimeGetsTheKv) {
  ask_and_lose_consumer("x1");
  pass(kOptions.lease - 1ns);

  Rank& other = *world_.ranks_of("D").front();
  world_.receive(other, {"d1", "x1", {0, 8}}, "P");
  world_.set_full(producer(), false);
  world_.deliver_all();
  complete_writes();

  EXPECT_EQ(other.complete_count, 1u);
  EXPECT_TRUE(producer().requests.empty());
}

TEST_F(Leases, AreRenewedForAsLongAsARegistrationWaitsForItsPrefill) {
  world_.receive(consumer(), {"r1", "x1", {0, 8}}, "P");
  world_.receive(consumer(), {"r2", "x2", {0, 8}}, "P");
  world_.deliver_all();
  world_.abandon(consumer(), "r2");
  pass(1min);
  EXPECT_EQ(consumer().requests.size(), 1u);
  EXPECT_EQ(got().sessions_lost + sent().sessions_lost, 0u);

  world_.send(producer(), {"s1", "x1", {0, 8}});

  EXPECT_EQ(world_.writes().size(), 1u) << "without waiting for an answer";
}

TEST_F(Leases, E8AreNotRenewedWhileNobodyNeedsThem) {
  ask("x1");
  world_.deliver_all();
  complete_writes();
  pass(kOptions.outcome_timeout);  // the last that is remembered of it
  world_.take_lines();

  pass(1min);

  EXPECT_TRUE(world_.take_lines().empty());
  EXPECT_EQ(world_.deadline(), std::nullopt);
}

TEST_F(Leases, AreAskedForAnewBeforeTheFirstBatchAfterAnIdleTime) {
  pass(1min);

  ask("x1");
  world_.deliver_all("P");
  EXPECT_TRUE(world_.writes().empty());
  EXPECT_EQ(sent().leases_expired, 0u) << "nobody failed to renew it";
  world_.deliver_all();

  EXPECT_EQ(world_.writes().size(), 1u);
}

TEST_F(Leases, AreNotRenewedWhenAnotherDeadlineOfTheSameTurnEndsTheLastRegistration) {
  world_.receive(consumer(), {"r1", "x1", {0, 8}}, "P");
  pass(kOptions.match_timeout - 1ns);  // a renewal was due in the last microsecond
  world_.set_stopped(producer(), true);
  pass(kOptions.lease / 2);  // by then the next renewal is due as well

  world_.set_stopped(producer(), false);
  pass(0s);

  EXPECT_EQ(consumer().failed_count, 1u);
  EXPECT_EQ(got().sessions_lost + sent().sessions_lost, 0u);
}

TEST_F(Leases, CannotBeMadeLongerByAnAnswerToWhatWasNotAsked) {
  pass(1min);
  ask("x1");
  world_.deliver_all("P");

  world_.say("C", "P", Renewed{world_.now() + 1ns});

  EXPECT_EQ(sent().bad_messages, 1u);
  EXPECT_TRUE(world_.writes().empty());
}

}  // namespace
}  // namespace kvpush::sim
