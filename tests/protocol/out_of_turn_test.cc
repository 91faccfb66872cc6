// Every message in every state of a session. Most come out of turn: they are refused or counted, and nothing breaks.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kvpush/sim/world.h"
#include "tests/protocol/text.h"

namespace kvpush::sim {
namespace {

using namespace std::chrono_literals;

// One of each kind, about a registration that exists where the session is ready.
const std::vector<std::string> kMessages = {"Hello session 1",
                                            "Welcome",
                                            "Assign over fencing",
                                            "Assigned",
                                            "Refused timeout too late",
                                            "Register 9 for x9, tokens 0-0",
                                            "Writing 1",
                                            "Delivered 1, 64 bytes",
                                            "Failed 1 aborted",
                                            "Quiet 1",
                                            "Revoke 1",
                                            "Revoked 1",
                                            "Unwanted x9",
                                            "Done up to 1",
                                            "Goodbye",
                                            "Renew 0",
                                            "Renewed 0",
                                            "Expect x9",
                                            "Admitted x9"};

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Whatever was said, a consumer can have KV afterwards.
void expect_recovery(World& world, Rank& consumer) {
  world.deliver_all();
  world.advance_to(world.now() + 20s);
  world.deliver_all();
  world.advance_to(world.now() + 20s);
  for (Rank* producer : world.ranks_of("P")) world.send(*producer, {"s-after", "x-after", {0, 8}});
  world.receive(consumer, {"r-after", "x-after", {0, 8}}, "P");
  for (int turn = 0; turn < 8; ++turn) {
    world.deliver_all();
    while (!world.writes().empty()) world.complete(world.writes().front());
    world.advance_to(world.now() + 1s);
  }
  EXPECT_EQ(consumer.complete_count, 1u) << join(world.take_lines());
  EXPECT_EQ(join(world.faults()), "");
}

struct ProducerCase {
  const char* state;
  std::vector<const char*> said_before;
  std::vector<const char*> in_turn;  // the beginnings of messages that are not refused
};

TEST(ProducerSession, RefusesMessagesOutOfTurnAndGoesOn) {
  const std::vector<ProducerCase> cases = {
      {"new", {}, {"Hello", "Goodbye", "Refused"}},
      {"welcomed", {"Hello session 1"}, {"Assign over", "Goodbye", "Refused"}},
      {"ready",
       {"Hello session 1", "Assign over fencing"},
       {"Register", "Revoke 1", "Unwanted", "Done", "Goodbye", "Refused", "Renewed", "Expect"}}};
  for (const ProducerCase& state : cases) {
    for (const std::string& message : kMessages) {
      SCOPED_TRACE(fmt::format("{} in a session that is {}", message, state.state));
      World world({});
      world.add({.name = "P", .role = World::Role::kProducer});
      world.add({.name = "C"});
      world.add({.name = "D"});
      Rank& producer = *world.ranks_of("P").front();
      world.open(*world.ranks_of("C").front(), producer);
      for (const char* words : state.said_before) world.say("C", "P", parse_message(words));

      world.say("C", "P", parse_message(message));

      const bool is_in_turn =
          std::ranges::any_of(state.in_turn, [&](const char* words) { return message.starts_with(words); });
      EXPECT_EQ(producer.producer->counters().bad_messages, is_in_turn ? 0u : 1u);
      expect_recovery(world, *world.ranks_of("D").front());
    }
  }
}

struct ConsumerCase {
  const char* state;
  std::vector<const char*> delivered_to;  // after the consumer has asked
  std::vector<const char*> in_turn;
};

TEST(ConsumerSession, RefusesMessagesOutOfTurnAndGoesOn) {
  // Two producer ranks, so that one session can be ahead of the other.
  const std::vector<ConsumerCase> cases = {
      {"greeting", {"C"}, {"Refused"}},  // this Welcome names nobody
      {"welcomed",
       {"C", "P0", "C"},
       {"Writing", "Delivered", "Failed", "Quiet", "Revoked 1", "Goodbye", "Refused", "Renew ", "Admitted"}},
      {"assigning",
       {"C", "P0", "P1", "C"},
       {"Assigned", "Writing", "Delivered", "Failed", "Quiet", "Revoked 1", "Goodbye", "Refused", "Renew ",
        "Admitted"}},
      {"ready", {""}, {"Writing", "Delivered", "Failed", "Goodbye", "Refused", "Renew ", "Admitted"}}};
  for (const ConsumerCase& state : cases) {
    for (const std::string& message : kMessages) {
      SCOPED_TRACE(fmt::format("{} in a session that is {}", message, state.state));
      World world({});
      world.add({.name = "P", .role = World::Role::kProducer, .rank_count = 2});
      world.add({.name = "C"});
      Rank& consumer = *world.ranks_of("C").front();
      world.receive(consumer, {"r1", "x1", {0, 8}}, "P");
      for (const char* rank : state.delivered_to) world.deliver_all(rank);

      world.say("P0", "C", parse_message(message));

      const bool is_in_turn =
          std::ranges::any_of(state.in_turn, [&](const char* words) { return message.starts_with(words); });
      const ConsumerCounters& counters = consumer.consumer->counters();
      const bool is_refused = counters.bad_messages > 0 || counters.sessions_refused > 0 || counters.sessions_lost > 0;
      EXPECT_EQ(is_refused, !is_in_turn || message.starts_with("Refused")) << join(world.take_lines());
      world.abandon(consumer, "r1");
      if (message != "Goodbye" && !message.starts_with("Delivered")) expect_recovery(world, consumer);
    }
  }
}

}  // namespace
}  // namespace kvpush::sim
