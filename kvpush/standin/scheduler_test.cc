#include "kvpush/standin/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvpush {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

const Endpoint kProducer{"10.0.0.1", 9100};

std::vector<Token> prompt_of(std::uint32_t tokens, std::uint32_t seed = 0) {
  std::vector<Token> prompt;
  for (std::uint32_t i = 0; i < tokens; ++i) prompt.push_back(Token{seed * 1000 + i});
  return prompt;
}

// A scheduler, and what it wanted so far. Every step's samples are the token 7.
class World {
 public:
  explicit World(SchedulerOptions options) : scheduler(options), blocks_(options.block_count) {}

  void arrive(const RequestId& id, std::vector<Token> prompt, std::uint32_t outputs = 1, Leg leg = {}) {
    scheduler.on(Arrival{id, std::move(prompt), outputs, std::move(leg)}, now, effects);
  }
  void abort(const RequestId& id) { scheduler.on(Abort{id}, now, effects); }
  void receive_ended(const RequestId& id, std::optional<ErrorCode> error = {}) {
    ReceiveEnded ended{};
    ended.request = id;
    ended.error = error;
    scheduler.on(EngineEvent(ended), now, effects);
  }
  void await_ended(const TransferId& transfer_id) {
    scheduler.on(EngineEvent(AwaitEnded{transfer_id, kProducer}), now, effects);
  }
  void send_ended(const RequestId& id) {
    SendEnded ended{};
    ended.request = id;
    scheduler.on(EngineEvent(ended), now, effects);
  }

  // Names and ends of what the step computes.
  std::vector<std::pair<RequestId, std::size_t>> begin() {
    now += 1ms;
    end_ = {};
    std::vector<std::pair<RequestId, std::size_t>> parts;
    for (const Work& work : scheduler.step(now, effects)) {
      parts.emplace_back(work.request, work.keys.size());
      if (work.samples) end_.samples.push_back({work.request, Token{7}});
    }
    return parts;
  }
  StepEnd& ending() { return end_; }
  void end() { scheduler.on(end_, now, effects); }
  std::vector<std::pair<RequestId, std::size_t>> step() {
    auto parts = begin();
    if (!parts.empty()) end();
    return parts;
  }
  void run() {
    for (int i = 0; i < 1000; ++i) {
      if (step().empty()) return;
    }
    FAIL() << "there is always something to compute";
  }

  template <class T>
  std::vector<T> told() const {
    std::vector<T> list;
    for (const Command& command : effects.commands) {
      if (const T* const one = std::get_if<T>(&command)) list.push_back(*one);
    }
    return list;
  }
  std::size_t finished() const {
    std::size_t count = 0;
    for (const Answer& answer : effects.answers) count += std::holds_alternative<AnswerEnded>(answer) ? 1 : 0;
    return count;
  }
  std::optional<Error> failure(const RequestId& id) const {
    for (const Answer& answer : effects.answers) {
      const auto* const failed = std::get_if<AnswerFailed>(&answer);
      if (failed != nullptr && failed->request == id) return failed->error;
    }
    return std::nullopt;
  }
  std::optional<ErrorCode> refusal(const RequestId& id) const {
    for (const Answer& answer : effects.answers) {
      const auto* const refused = std::get_if<AnswerRefused>(&answer);
      if (refused != nullptr && refused->request == id) return refused->error.code;
    }
    return std::nullopt;
  }
  bool is_empty() const {
    const Scheduler::Levels levels = scheduler.levels();
    return levels.waiting + levels.running + levels.receiving + levels.sending == 0 && levels.free_blocks == blocks_;
  }

  Scheduler scheduler;
  Effects effects;
  Instant now{};

 private:
  const std::size_t blocks_;
  StepEnd end_;
};

constexpr SchedulerOptions kSmall{.block_count = 8, .block_tokens = 4};

TEST(Scheduler, ComputesAPromptAndThenATokenAStep) {
  World world(kSmall);
  world.arrive("a", prompt_of(5), 3);

  EXPECT_THAT(world.step(), ElementsAre(std::pair("a", 5)));
  EXPECT_THAT(world.step(), ElementsAre(std::pair("a", 6)));
  EXPECT_THAT(world.step(), ElementsAre(std::pair("a", 7)));
  EXPECT_THAT(world.step(), IsEmpty());
  EXPECT_EQ(world.finished(), 1u);
  EXPECT_EQ(world.scheduler.counts().computed_prompt_tokens, 5u);
  EXPECT_EQ(world.scheduler.counts().generated_tokens, 3u);
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, SplitsALongPromptOverSteps) {
  SchedulerOptions options = kSmall;
  options.tokens_per_step_max = 4;
  World world(options);
  world.arrive("a", prompt_of(9));

  EXPECT_THAT(world.step(), ElementsAre(std::pair("a", 4)));
  EXPECT_THAT(world.step(), ElementsAre(std::pair("a", 8)));
  EXPECT_THAT(world.step(), ElementsAre(std::pair("a", 9)));
  EXPECT_EQ(world.finished(), 1u);
}

TEST(Scheduler, LetsANewRequestJoinThoseThatRun) {
  World world(kSmall);
  world.arrive("a", prompt_of(3), 3);
  world.step();
  world.arrive("b", prompt_of(4, 1), 1);

  EXPECT_THAT(world.step(), ElementsAre(std::pair("a", 4), std::pair("b", 4)));
}

TEST(Scheduler, ComputesOnlyWhatIsNotKnownFromBefore) {
  World world(kSmall);
  world.arrive("a", prompt_of(8));
  world.run();

  world.arrive("b", prompt_of(8));
  std::uint32_t first = 0;
  for (const Work& work : world.scheduler.step(world.now, world.effects)) first = work.first;

  EXPECT_EQ(first, 4u) << "the block with the last token is computed again, to have something to sample from";
  EXPECT_EQ(world.scheduler.counts().cached_prompt_tokens, 4u);
}

TEST(Scheduler, ComputesEverythingAgainWithoutPrefixCaching) {
  SchedulerOptions options = kSmall;
  options.caches_prefixes = false;
  World world(options);
  for (const char* id : {"a", "b"}) {
    world.arrive(id, prompt_of(8));
    world.run();
  }

  EXPECT_EQ(world.scheduler.counts().computed_prompt_tokens, 16u);
  EXPECT_EQ(world.scheduler.levels().known_prefixes, 0u);
}

TEST(Scheduler, PreemptsTheYoungestWhenBlocksRunOutAndComputesItAgain) {
  World world({.block_count = 4, .block_tokens = 4, .caches_prefixes = false});
  world.arrive("a", prompt_of(8), 6);
  world.arrive("b", prompt_of(8, 1), 6);
  world.step();

  EXPECT_THAT(world.step(), ElementsAre(std::pair("a", 9))) << "the ninth token needs the blocks of b";
  world.run();

  EXPECT_EQ(world.finished(), 2u);
  EXPECT_EQ(world.scheduler.counts().preemptions, 1u);
  EXPECT_EQ(world.scheduler.counts().generated_tokens, 12u) << "tokens that were generated are not generated again";
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, RefusesWhatCanNeverFit) {
  World world(kSmall);
  world.arrive("fits", prompt_of(30), 3);
  world.arrive("a", prompt_of(30), 4);

  EXPECT_EQ(world.refusal("a"), ErrorCode::kBadParams);
  world.run();
  EXPECT_EQ(world.finished(), 1u);
}

TEST(Scheduler, RefusesOneRequestTooMany) {
  SchedulerOptions options = kSmall;
  options.requests_max = 1;
  World world(options);
  world.arrive("a", prompt_of(1));
  world.arrive("b", prompt_of(1));

  EXPECT_EQ(world.refusal("b"), ErrorCode::kFull);
}

TEST(Scheduler, HoldsTheBlocksOfAPrefillLegUntilTheyAreSent) {
  World world(kSmall);
  world.arrive("p", prompt_of(5), 1, PrefillLeg{"t"});
  world.run();

  EXPECT_EQ(world.finished(), 1u);
  ASSERT_THAT(world.told<Send>(), SizeIs(1));
  EXPECT_EQ(world.told<Send>()[0].token_count, 5u);
  EXPECT_EQ(world.told<Send>()[0].tables[0].block_count(), 2u);
  EXPECT_EQ(world.scheduler.levels().free_blocks, 6u);

  world.send_ended("p");
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, DoesNotSendTheBlocksOfTheAnswer) {
  World world(kSmall);
  world.arrive("p", prompt_of(4), 6, PrefillLeg{"t"});
  world.run();

  EXPECT_EQ(world.told<Send>()[0].tables[0].block_count(), 1u);
  EXPECT_EQ(world.scheduler.levels().free_blocks, 7u);
}

TEST(Scheduler, ReceivesAllButTheLastTokenAndComputesThatOne) {
  World world(kSmall);
  world.arrive("d", prompt_of(9), 2, DecodeLeg{"t", kProducer});

  EXPECT_THAT(world.step(), IsEmpty());
  ASSERT_THAT(world.told<Receive>(), SizeIs(1));
  EXPECT_EQ(world.told<Receive>()[0].tokens, (TokenRange{0, 8}));
  EXPECT_EQ(world.told<Receive>()[0].tables[0].block_count(), 3u);

  world.receive_ended("d");
  const std::vector<Work> step = world.scheduler.step(world.now, world.effects);
  ASSERT_THAT(step, SizeIs(1));
  EXPECT_EQ(step[0].first, 8u);
  EXPECT_TRUE(step[0].samples);
}

TEST(Scheduler, CountsWhereTheTokensOfPromptsCameFrom) {
  World world(kSmall);
  for (const char* id : {"a", "b"}) {
    world.arrive(id, prompt_of(9), 1, DecodeLeg{id, kProducer});
    world.run();
    if (world.scheduler.levels().receiving > 0) world.receive_ended(id);
    world.run();
  }

  EXPECT_EQ(world.scheduler.counts().received_prompt_tokens, 8u);
  EXPECT_EQ(world.scheduler.counts().cached_prompt_tokens, 8u);
  EXPECT_EQ(world.scheduler.counts().computed_prompt_tokens, 2u);
  ASSERT_THAT(world.told<Decline>(), SizeIs(1)) << "all that b needs was here";
  EXPECT_EQ(world.told<Decline>()[0].transfer_id, "b");
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, ReceivesOnlyWhatItDoesNotKnow) {
  World world(kSmall);
  world.arrive("a", prompt_of(8));
  world.run();

  world.arrive("d", prompt_of(14), 1, DecodeLeg{"t", kProducer});
  world.step();

  EXPECT_EQ(world.told<Receive>()[0].tokens, (TokenRange{8, 13}));
}

TEST(Scheduler, DeclinesATransferOfOneToken) {
  World world(kSmall);
  world.arrive("d", prompt_of(1), 1, DecodeLeg{"t", kProducer});
  world.run();

  EXPECT_THAT(world.told<Receive>(), IsEmpty());
  EXPECT_THAT(world.told<Decline>(), SizeIs(1));
  EXPECT_EQ(world.finished(), 1u);
}

TEST(Scheduler, SharesNoBlockThatMayStillBeWrittenTo) {
  World world(kSmall);
  world.arrive("d", prompt_of(9), 1, DecodeLeg{"t", kProducer});
  world.step();

  world.arrive("same", prompt_of(9));
  const std::vector<Work> step = world.scheduler.step(world.now, world.effects);

  ASSERT_THAT(step, SizeIs(1));
  EXPECT_EQ(step[0].first, 0u);
}

TEST(Scheduler, FailsARequestWhoseKvDoesNotCome) {
  World world(kSmall);
  world.arrive("d", prompt_of(9), 1, DecodeLeg{"t", kProducer});
  world.step();

  world.receive_ended("d", ErrorCode::kPeerLost);

  EXPECT_EQ(world.failure("d")->code, ErrorCode::kPeerLost);
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, HoldsTheBlocksOfAnAbandonedRequestUntilNothingCanLand) {
  World world(kSmall);
  world.arrive("d", prompt_of(9), 1, DecodeLeg{"t", kProducer});
  world.step();

  world.abort("d");
  world.abort("d");

  EXPECT_THAT(world.told<Abandon>(), SizeIs(1));
  EXPECT_EQ(world.scheduler.levels().free_blocks, 5u);
  world.receive_ended("d");
  EXPECT_THAT(world.effects.answers, IsEmpty());
  EXPECT_THAT(world.step(), IsEmpty());
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, SaysWhatIsNotNeededOrWillNotComeWhenARequestIsAborted) {
  World world({.block_count = 2, .block_tokens = 4});
  world.arrive("p", prompt_of(5), 1, PrefillLeg{"tp"});
  world.begin();
  world.arrive("d", prompt_of(5), 1, DecodeLeg{"td", kProducer});

  world.abort("p");
  world.abort("d");
  world.end();

  ASSERT_THAT(world.told<Withdraw>(), SizeIs(1));
  EXPECT_EQ(world.told<Withdraw>()[0].transfer_id, "tp");
  ASSERT_THAT(world.told<Decline>(), SizeIs(1));
  EXPECT_EQ(world.told<Decline>()[0].transfer_id, "td");
  EXPECT_THAT(world.effects.answers, IsEmpty());
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, RefusesATransferThatAnotherRequestHasUntilThatOneHasEnded) {
  World world(kSmall);
  world.arrive("a", prompt_of(5), 1, DecodeLeg{"t", kProducer});
  world.arrive("b", prompt_of(5), 1, DecodeLeg{"t", kProducer});
  world.arrive("other producer", prompt_of(5), 1, DecodeLeg{"t", {"10.0.0.2", 1}});
  world.arrive("other side", prompt_of(5), 1, PrefillLeg{"t"});

  EXPECT_EQ(world.refusal("b"), ErrorCode::kBadParams);
  EXPECT_FALSE(world.refusal("other producer"));
  EXPECT_FALSE(world.refusal("other side"));
  world.abort("a");
  world.arrive("again", prompt_of(5), 1, DecodeLeg{"t", kProducer});
  EXPECT_FALSE(world.refusal("again"));
}

TEST(Scheduler, FailsARequestThatReadWrongKv) {
  World world(kSmall);
  world.arrive("p", prompt_of(5), 1, PrefillLeg{"t"});
  world.begin();
  world.ending().samples[0].token.reset();

  world.end();

  EXPECT_TRUE(world.failure("p"));
  EXPECT_THAT(world.told<Send>(), IsEmpty());
  EXPECT_THAT(world.told<Withdraw>(), SizeIs(1));
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, ComputesAReceivedPromptItselfAfterAPreemption) {
  World world({.block_count = 4, .block_tokens = 4, .caches_prefixes = false});
  world.arrive("old", prompt_of(8), 4);
  world.arrive("d", prompt_of(8, 1), 4, DecodeLeg{"t", kProducer});
  world.step();
  world.receive_ended("d");

  world.run();

  EXPECT_EQ(world.finished(), 2u);
  EXPECT_EQ(world.scheduler.counts().preemptions, 1u);
  EXPECT_THAT(world.told<Receive>(), SizeIs(1));
}

TEST(Scheduler, TellsWhatItSawOfEachLegOnce) {
  World world(kSmall);
  world.arrive("p", prompt_of(5), 1, PrefillLeg{"tp"});
  world.arrive("d", prompt_of(6, 1), 3, DecodeLeg{"td", kProducer});
  world.arrive("plain", prompt_of(5, 2), 1);
  world.step();
  world.receive_ended("d");
  world.run();
  world.send_ended("p");

  ASSERT_THAT(world.effects.scheduled, SizeIs(2));
  const Scheduled& p = world.effects.scheduled[0];
  EXPECT_EQ(p.side, Scheduled::Side::kProducer);
  EXPECT_TRUE(p.admitted && p.computed);
  const Scheduled& d = world.effects.scheduled[1];
  EXPECT_EQ(d.side, Scheduled::Side::kConsumer);
  EXPECT_EQ(d.producer, kProducer);
  EXPECT_TRUE(d.admitted && d.reported && d.first_step);
  EXPECT_TRUE(world.is_empty());
}

TEST(Scheduler, NamesEachBlockAsTakenBeforeItIsUsed) {
  World world(kSmall);
  world.arrive("a", prompt_of(5), 5);
  std::set<BlockId> used;
  for (;;) {
    const std::vector<Work> step = world.scheduler.step(world.now, world.effects);
    if (step.empty()) break;
    used.insert(step[0].blocks.begin(), step[0].blocks.end());
    world.scheduler.on(StepEnd{{{"a", Token{7}}}}, world.now, world.effects);
  }

  EXPECT_EQ(std::set<BlockId>(world.effects.taken.begin(), world.effects.taken.end()), used);
  EXPECT_EQ(used.size(), 3u);
}

// Reserving.

TEST(Reserving, SaysAtOnceThatARequestWaitsAndTakesBlocksWhenItsPrefillBegins) {
  SchedulerOptions options = kSmall;
  options.reserve = Reserve::kAdmitted;
  World world(options);
  world.arrive("d", prompt_of(9), 1, DecodeLeg{"x", kProducer});

  ASSERT_THAT(world.told<Await>(), SizeIs(1));
  EXPECT_EQ(world.told<Await>()[0].transfer_id, "x");
  EXPECT_THAT(world.step(), IsEmpty());
  EXPECT_THAT(world.told<Receive>(), IsEmpty());

  world.await_ended("x");
  world.step();
  EXPECT_THAT(world.told<Receive>(), SizeIs(1));
  world.receive_ended("d");
  world.run();
  EXPECT_EQ(world.finished(), 1u);
  EXPECT_TRUE(world.is_empty());
}

// Shows E9.
TEST(Reserving, LetsOthersPassARequestWhosePrefillHasNotBegun) {
  SchedulerOptions options = kSmall;
  options.reserve = Reserve::kAdmitted;
  World world(options);
  world.arrive("later", prompt_of(9), 1, DecodeLeg{"x", kProducer});
  world.arrive("sooner", prompt_of(9, 1), 1, DecodeLeg{"y", kProducer});
  world.arrive("local", prompt_of(5, 2));
  world.await_ended("y");

  EXPECT_THAT(world.step(), ElementsAre(std::pair("local", 5)));

  ASSERT_THAT(world.told<Receive>(), SizeIs(1));
  EXPECT_EQ(world.told<Receive>()[0].request, "sooner");
}

TEST(Reserving, IsEarlyWhileATenthOfThePoolStaysFree) {
  World world({.block_count = 10, .block_tokens = 4, .reserve = Reserve::kAuto});
  world.arrive("fits", prompt_of(33), 1, DecodeLeg{"x", kProducer});
  world.arrive("waits", prompt_of(4, 1), 1, DecodeLeg{"y", kProducer});

  world.step();

  ASSERT_THAT(world.told<Receive>(), SizeIs(1));
  EXPECT_EQ(world.told<Receive>()[0].request, "fits");
  world.await_ended("y");
  world.step();
  EXPECT_THAT(world.told<Receive>(), SizeIs(2));
}

// Shows E9.
TEST(Reserving, GivesEarlyBlocksToARequestWhosePrefillHasBegun) {
  World world({.block_count = 20, .block_tokens = 4, .reserve = Reserve::kAuto});
  world.arrive("early", prompt_of(60), 1, DecodeLeg{"x", kProducer});
  world.arrive("begun", prompt_of(60, 1), 1, DecodeLeg{"y", kProducer});
  world.step();
  world.await_ended("y");
  world.step();
  world.step();
  ASSERT_THAT(world.told<Abandon>(), SizeIs(1));
  EXPECT_EQ(world.told<Abandon>()[0].request, "early");

  world.receive_ended("early", ErrorCode::kAborted);
  world.step();
  world.receive_ended("begun");
  world.run();
  EXPECT_EQ(world.finished(), 1u);
  EXPECT_THAT(world.told<Await>(), SizeIs(3)) << "the first waits again";

  world.await_ended("x");
  world.step();
  world.receive_ended("early");
  world.run();
  EXPECT_EQ(world.finished(), 2u);
  EXPECT_TRUE(world.is_empty());
}

TEST(Reserving, IsEarlyWhenToldSo) {
  World world({.block_count = 9, .block_tokens = 4, .reserve = Reserve::kEarly});
  world.arrive("d", prompt_of(33), 1, DecodeLeg{"x", kProducer});

  world.step();

  EXPECT_THAT(world.told<Receive>(), SizeIs(1));
}

TEST(Reserving, DeclinesWhatIsAbortedInTheQueueAndHearsOfItLate) {
  SchedulerOptions options = kSmall;
  options.reserve = Reserve::kAdmitted;
  World world(options);
  world.arrive("d", prompt_of(9), 1, DecodeLeg{"x", kProducer});
  world.abort("d");

  world.await_ended("x");

  EXPECT_THAT(world.told<Decline>(), SizeIs(1));
  EXPECT_TRUE(world.is_empty());
}

TEST(Reserving, SaysOnceThatAPrefillBegins) {
  World world(kSmall);
  world.arrive("p", prompt_of(9), 3, PrefillLeg{"x"});

  EXPECT_THAT(world.told<Admit>(), IsEmpty());
  world.run();

  ASSERT_THAT(world.told<Admit>(), SizeIs(1));
  EXPECT_EQ(world.told<Admit>()[0].transfer_id, "x");
  EXPECT_THAT(world.told<Send>(), SizeIs(1));
}

}  // namespace
}  // namespace kvpush
