#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kvpush/agent/agent.h"
#include "kvpush/directory/server.h"
#include "kvpush/standin/block_pool.h"
#include "kvpush/standin/tokens.h"

namespace kvpush {

// What a request's kv_transfer_params say: this engine computes a prompt for another one, or the prompt's KV comes from
// another one, or neither.
struct PrefillLeg {
  TransferId transfer_id;
};
struct DecodeLeg {
  TransferId transfer_id;
  Endpoint producer;  // its directory
};
using Leg = std::variant<std::monostate, PrefillLeg, DecodeLeg>;

// A request for the tokens that follow a prompt. It ends with one AnswerEnded, AnswerRefused or AnswerFailed.
struct Arrival {
  RequestId request;
  std::vector<Token> prompt;
  std::uint32_t output_tokens = 1;
  Leg leg{};
};

// Its client went away: nothing more is told of it.
struct Abort {
  RequestId request;
};

// A request's part of a step: the KV of tokens [first, keys.size()) is computed into `blocks`, and if it `samples`, all
// of it is read and gives the next token. Valid until the scheduler hears the next event.
struct Work {
  RequestId request;
  std::uint32_t first = 0;
  std::span<const PrefixKey> keys;  // of the tokens from 0 on
  std::span<const BlockId> blocks;
  bool samples = false;
};

// What a step came to for one of its requests that samples; no token: the KV that it read was not that of its prompt.
struct Sample {
  RequestId request;
  std::optional<Token> token{};
};
struct StepEnd {
  std::vector<Sample> samples;
};

// What clients are told.
struct AnswerToken {
  RequestId request;
  Token token;
};
struct AnswerEnded {
  RequestId request;
};
struct AnswerRefused {
  RequestId request;
  Error error;  // kFull: perhaps later; kBadParams: never
};
struct AnswerFailed {
  RequestId request;
  Error error;
};
using Answer = std::variant<AnswerToken, AnswerEnded, AnswerRefused, AnswerFailed>;

// What the surroundings must do after an event or a step, in this order.
struct Effects {
  std::vector<BlockId> taken;  // hold nothing that is needed
  std::vector<Command> commands;
  std::vector<Answer> answers;
  std::vector<Scheduled> scheduled;
};

// When a request whose KV comes from elsewhere takes its blocks. Early ones are idle while the prompt waits for its
// prefill, and two full pools can wait for each other; late ones add the way of a message to the first token.
enum class Reserve : std::uint8_t {
  // At once while that leaves a tenth of the pool free, otherwise as kAdmitted; and gives them back when one whose
  // prefill has begun needs them.
  kAuto,
  kEarly,     // at once
  kAdmitted,  // when its prefill has its own blocks, or there is nothing to wait for
};

struct SchedulerOptions {
  std::uint32_t block_count = 1024;
  std::uint32_t block_tokens = 16;
  // Computed in one step over all requests; a longer prompt takes several.
  std::uint32_t tokens_per_step_max = 2048;
  // Requests that are part of one step.
  std::size_t running_max = 256;
  // Requests of any state; one more fails with kFull. Fewer than an agent takes (kRequestsMax).
  std::size_t requests_max = 1024;
  bool caches_prefixes = true;
  Reserve reserve = Reserve::kAuto;
};

// Decides what a stand-in engine computes, step by step, and what its agent is told.
//
// Job: follows each request from its arrival to the end of its transfers; gives out blocks; preempts the youngest when
//      they run out, to be computed again from its beginning. What it tells the agent means what the vLLM connector's
//      commands mean: all tokens of a prompt but the last are received, a computed prompt is sent when it is answered.
// Not here: bytes, time that passes, clients.
// Owner: StandinEngine, by value.
// Thread: value type.
// Invariant: blocks that a Receive or Send has named are held until its event.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Refuses with kFull: too many requests. With kBadParams: it can never fit into the pool, or another request has its
  // transfer.
  void on(const Arrival& arrival, Instant now, Effects& effects);
  void on(const Abort& abort, Instant now, Effects& effects);
  void on(const EngineEvent& event, Instant now, Effects& effects);
  // Of the last step() that was not empty.
  void on(const StepEnd& end, Instant now, Effects& effects);

  // What is computed next; empty while there is nothing to compute. Not between a step that was not empty and its end.
  std::vector<Work> step(Instant now, Effects& effects);

  struct Levels {
    std::size_t waiting = 0;    // for blocks or a step
    std::size_t running = 0;    // part of the steps
    std::size_t receiving = 0;  // their blocks may be written to
    std::size_t sending = 0;    // answered; their blocks may be read
    std::size_t free_blocks = 0;
    std::size_t known_prefixes = 0;
  };
  Levels levels() const;

  struct Counts {
    std::uint64_t computed_prompt_tokens = 0;  // again after a preemption
    std::uint64_t cached_prompt_tokens = 0;
    std::uint64_t received_prompt_tokens = 0;
    std::uint64_t generated_tokens = 0;
    std::uint64_t preemptions = 0;
    std::uint64_t steps = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  enum class State : std::uint8_t {
    kWaiting,    // holds no blocks
    kReceiving,  // holds the prompt's blocks; the agent was told to receive
    kReady,      // has received; waits for a step
    kRunning,    // part of each step
    kSending,    // answered; the agent was told to send
  };
  using TransferKey = std::pair<TransferId, Endpoint>;  // no endpoint: this engine is the producer

  struct Request {
    RequestId id;
    std::uint32_t prompt_tokens = 0;
    std::uint32_t output_tokens_max = 0;
    std::uint64_t arrived = 0;  // grows
    Leg leg{};
    std::vector<PrefixKey> keys;  // of the prompt's and the answer's tokens
    std::vector<BlockId> blocks;
    std::uint32_t computed = 0;   // tokens whose KV is in the blocks
    std::uint32_t scheduled = 0;  // tokens whose KV will be there when the step ends
    State state = State::kWaiting;
    bool is_local = false;    // nothing is to be received, or no longer
    bool is_awaited = false;  // its prefill has not begun, as far as is known
    bool is_early = false;    // nor had it when it took its blocks
    bool gives_way = false;   // it was told to stop receiving, and then waits again
    bool is_aborted = false;
    Scheduled seen{};
  };

  struct InStep {
    RequestId request;
    bool samples = false;
  };

  // The first that waits and may have its blocks now.
  std::deque<Request*>::iterator next_to_admit();
  // Takes blocks from one that took them early: its prefill may wait for what waits here.
  void make_way(Effects& effects);
  void await(Request& request, Effects& effects);
  void wait_again(Request& request, Effects& effects);
  bool admit(Request& request, Instant now, Effects& effects);
  void receive(Request& request, const DecodeLeg& leg, Effects& effects);
  bool grow(Request& request, Effects& effects);
  void preempt_youngest();
  void schedule(Request& request, std::uint32_t& budget, std::vector<Work>& work);
  void advance(Request& request, std::uint32_t computed);
  void finish(Request& request, Effects& effects);
  void drop(Request& request, Effects& effects);
  void end(Request& request, Effects& effects);
  void received(Request& request, const ReceiveEnded& event, Instant now, Effects& effects);
  void tell_seen(Request& request, Effects& effects);
  std::uint32_t blocks_for(std::size_t tokens) const;
  std::vector<PrefixKey> cacheable_prefixes(const Request& request) const;
  Request* find(const RequestId& id);

  const SchedulerOptions options_;
  BlockPool pool_;
  Counts counts_;
  std::map<RequestId, Request> requests_;
  std::map<TransferKey, Request*> transfers_;  // of the requests
  std::uint64_t arrived_last_ = 0;
  std::deque<Request*> waiting_;  // by arrival; the preempted first
  std::deque<Request*> ready_;
  std::vector<Request*> running_;  // oldest first
  std::vector<InStep> in_step_;
};

}  // namespace kvpush
