#include "kvpush/standin/scheduler.h"

#include <algorithm>
#include <iterator>

#include "kvpush/base/check.h"
#include "kvpush/base/overloaded.h"

namespace kvpush {
namespace {

// Of the pool, this part stays free where destinations are reserved early.
constexpr std::uint32_t kSpareParts = 10;

bool is_prefill(const Leg& leg) {
  return std::holds_alternative<PrefillLeg>(leg);
}

// What a transfer is to this engine, so that no two requests have the same one; none for a request without.
std::optional<std::pair<TransferId, Endpoint>> transfer_key(const Leg& leg) {
  using Key = std::pair<TransferId, Endpoint>;
  return std::visit(
      Overloaded{[](std::monostate) { return std::optional<Key>(); },
                 [](const PrefillLeg& prefill) { return std::optional(Key(prefill.transfer_id, {})); },
                 [](const DecodeLeg& decode) { return std::optional(Key(decode.transfer_id, decode.producer)); }},
      leg);
}

Scheduled seen_of(const Arrival& arrival, Instant now) {
  Scheduled seen{.transfer_id = {}, .request = arrival.request, .tokens = arrival.prompt.size(), .arrived = now};
  if (const auto* prefill = std::get_if<PrefillLeg>(&arrival.leg)) seen.transfer_id = prefill->transfer_id;
  if (const auto* decode = std::get_if<DecodeLeg>(&arrival.leg)) {
    seen.side = Scheduled::Side::kConsumer;
    seen.transfer_id = decode->transfer_id;
    seen.producer = decode->producer;
  }
  return seen;
}

template <class Queue, class Value>
void remove_from(Queue& queue, Value value) {
  queue.erase(std::remove(queue.begin(), queue.end(), value), queue.end());
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), pool_(options.block_count) {}

void Scheduler::on(const Arrival& arrival, Instant now, Effects& effects) {
  KVPUSH_CHECK(!arrival.prompt.empty() && arrival.output_tokens > 0, "a request has a prompt and asks for a token");
  const auto refuse = [&](ErrorCode code, const char* what) {
    effects.answers.emplace_back(AnswerRefused{arrival.request, {code, what}});
  };
  if (requests_.size() >= options_.requests_max) return refuse(ErrorCode::kFull, "the engine has too many requests");
  // The KV of the last token of the answer is never computed.
  if (blocks_for(arrival.prompt.size() + arrival.output_tokens - 1) > options_.block_count) {
    return refuse(ErrorCode::kBadParams, "prompt and max_tokens are more than the KV cache holds");
  }
  const auto transfer = transfer_key(arrival.leg);
  if (transfer && transfers_.contains(*transfer)) {
    return refuse(ErrorCode::kBadParams, "another request of this engine has that transfer_id");
  }
  Request& request = requests_[arrival.request];
  KVPUSH_CHECK(request.id.empty(), "requests have names of their own");
  request.id = arrival.request;
  request.prompt_tokens = static_cast<std::uint32_t>(arrival.prompt.size());
  request.output_tokens_max = arrival.output_tokens;
  request.leg = arrival.leg;
  request.keys = prefix_keys(arrival.prompt);
  request.is_local = !std::holds_alternative<DecodeLeg>(arrival.leg);
  request.seen = seen_of(arrival, now);
  waiting_.push_back(&request);
  if (transfer) transfers_.emplace(*transfer, &request);
  request.arrived = ++arrived_last_;
  if (!request.is_local) await(request, effects);
}

void Scheduler::on(const Abort& abort, Instant, Effects& effects) {
  Request* const request = find(abort.request);
  if (request == nullptr || request->state == State::kSending) return;
  if (request->state != State::kReceiving) return drop(*request, effects);
  if (request->is_aborted) return;
  request->is_aborted = true;
  effects.commands.emplace_back(Abandon{request->id});
}

void Scheduler::on(const EngineEvent& event, Instant now, Effects& effects) {
  std::visit(Overloaded{[&](const ReceiveEnded& ended) {
                          Request* const request = find(ended.request);
                          KVPUSH_CHECK(request != nullptr && request->state == State::kReceiving,
                                       "the agent tells the end of what it was told to receive");
                          received(*request, ended, now, effects);
                        },
                        [&](const SendEnded& ended) {
                          Request* const request = find(ended.request);
                          KVPUSH_CHECK(request != nullptr && request->state == State::kSending,
                                       "the agent tells the end of what it was told to send");
                          end(*request, effects);
                        },
                        [&](const AwaitEnded& ended) {
                          const auto found = transfers_.find({ended.transfer_id, ended.producer});
                          if (found != transfers_.end()) found->second->is_awaited = false;
                        }},
             event);
}

void Scheduler::on(const StepEnd& step_end, Instant now, Effects& effects) {
  auto sample = step_end.samples.begin();
  for (const InStep& part : std::exchange(in_step_, {})) {
    const Sample* const sampled = part.samples ? &*sample++ : nullptr;
    Request* const request = find(part.request);
    if (request == nullptr) continue;  // aborted meanwhile
    advance(*request, request->scheduled);
    if (sampled == nullptr) continue;
    KVPUSH_CHECK(sampled->request == request->id, "a step's samples are in the order of its work");
    if (!sampled->token) {
      effects.answers.emplace_back(
          AnswerFailed{request->id, {ErrorCode::kTransportFailed, "the KV that was read is not that of the prompt"}});
      drop(*request, effects);
      continue;
    }
    if (is_prefill(request->leg) && !request->seen.computed) request->seen.computed = now;
    ++counts_.generated_tokens;
    effects.answers.emplace_back(AnswerToken{request->id, *sampled->token});
    request->keys.push_back(extend(request->keys.back(), *sampled->token));
    if (request->keys.size() - request->prompt_tokens == request->output_tokens_max) finish(*request, effects);
  }
}

std::vector<Work> Scheduler::step(Instant now, Effects& effects) {
  KVPUSH_CHECK(in_step_.empty(), "a step ends before the next one begins");
  std::vector<Work> work;
  std::uint32_t budget = options_.tokens_per_step_max;
  bool has_preempted = false;
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Request& request = *running_[i];
    while (i < running_.size() && !grow(request, effects)) {
      preempt_youngest();
      has_preempted = true;
    }
    if (i < running_.size()) schedule(request, budget, work);
  }
  while (budget > 0 && running_.size() < options_.running_max) {
    Request* request = nullptr;
    if (!ready_.empty()) {
      request = ready_.front();
      ready_.pop_front();
      request->seen.first_step = now;
      tell_seen(*request, effects);
    } else if (const auto next = has_preempted ? waiting_.end() : next_to_admit(); next != waiting_.end()) {
      if (!admit(**next, now, effects)) {
        if (!(*next)->is_awaited) make_way(effects);
        break;
      }
      request = *next;
      waiting_.erase(next);
      if (request->state == State::kReceiving) continue;
    } else {
      break;
    }
    request->state = State::kRunning;
    running_.push_back(request);
    schedule(*request, budget, work);
  }
  counts_.steps += work.empty() ? 0 : 1;
  return work;
}

Scheduler::Levels Scheduler::levels() const {
  Levels levels{.waiting = waiting_.size() + ready_.size(),
                .running = running_.size(),
                .free_blocks = pool_.free_blocks(),
                .known_prefixes = pool_.known_prefixes()};
  for (const auto& [id, request] : requests_) {
    levels.receiving += request.state == State::kReceiving ? 1 : 0;
    levels.sending += request.state == State::kSending ? 1 : 0;
  }
  return levels;
}

std::deque<Scheduler::Request*>::iterator Scheduler::next_to_admit() {
  return std::ranges::find_if(waiting_, [&](const Request* request) {
    if (!request->is_awaited || options_.reserve == Reserve::kEarly) return true;
    const std::size_t kept = options_.block_count / kSpareParts + blocks_for(request->keys.size());
    return options_.reserve == Reserve::kAuto && pool_.free_blocks() >= kept;
  });
}

void Scheduler::make_way(Effects& effects) {
  Request* youngest = nullptr;
  for (auto& [id, request] : requests_) {
    if (request.gives_way) return;  // one at a time
    const bool is_possible = request.state == State::kReceiving && request.is_early && !request.is_aborted;
    if (is_possible && (youngest == nullptr || request.arrived > youngest->arrived)) youngest = &request;
  }
  if (youngest == nullptr) return;
  youngest->gives_way = true;
  effects.commands.emplace_back(Abandon{youngest->id});
}

void Scheduler::wait_again(Request& request, Effects& effects) {
  pool_.give_back(request.blocks);
  request.blocks.clear();
  request.computed = 0;
  request.state = State::kWaiting;
  request.gives_way = false;
  waiting_.push_back(&request);
  await(request, effects);
}

// Its producer keeps the KV and says when there will be some.
void Scheduler::await(Request& request, Effects& effects) {
  request.is_local = false;
  request.is_awaited = true;
  const auto& [transfer_id, producer] = std::get<DecodeLeg>(request.leg);
  effects.commands.emplace_back(Await{transfer_id, producer});
}

// False, and nothing has changed, while there are no blocks for all of its tokens. Otherwise it runs or receives.
bool Scheduler::admit(Request& request, Instant now, Effects& effects) {
  std::vector<BlockId> blocks;
  if (options_.caches_prefixes) blocks = pool_.reuse(cacheable_prefixes(request));
  const std::size_t cached = blocks.size();
  const auto fresh = pool_.take(blocks_for(request.keys.size()) - cached);
  if (!fresh) {
    pool_.give_back(blocks);
    return false;
  }
  effects.taken.insert(effects.taken.end(), fresh->begin(), fresh->end());
  blocks.insert(blocks.end(), fresh->begin(), fresh->end());
  request.blocks = std::move(blocks);
  request.computed = static_cast<std::uint32_t>(cached) * options_.block_tokens;
  counts_.cached_prompt_tokens += std::min(request.computed, request.prompt_tokens);
  const auto* const leg = std::get_if<PrefillLeg>(&request.leg);
  if (leg != nullptr && !request.seen.admitted) {
    effects.commands.emplace_back(Admit{leg->transfer_id});
  }
  if (!request.seen.admitted) request.seen.admitted = now;
  if (!request.is_local) receive(request, std::get<DecodeLeg>(request.leg), effects);
  return true;
}

// All but the last token, which is computed here in any case, to have something to sample from.
void Scheduler::receive(Request& request, const DecodeLeg& leg, Effects& effects) {
  const TokenRange wanted{request.computed, request.prompt_tokens - 1};
  if (wanted.first == wanted.end) {
    request.is_local = true;
    effects.commands.emplace_back(Decline{leg.transfer_id, leg.producer});
    return;
  }
  request.state = State::kReceiving;
  request.is_early = request.is_awaited;
  effects.commands.emplace_back(Receive{request.id, leg.transfer_id, leg.producer, wanted, {pack(request.blocks)}});
}

// Blocks for all of its tokens; false, and nothing has changed, if there are too few.
bool Scheduler::grow(Request& request, Effects& effects) {
  const std::size_t wanted = blocks_for(request.keys.size());
  const auto more = pool_.take(wanted - request.blocks.size());
  if (!more) return false;
  effects.taken.insert(effects.taken.end(), more->begin(), more->end());
  request.blocks.insert(request.blocks.end(), more->begin(), more->end());
  return true;
}

void Scheduler::preempt_youngest() {
  Request& request = *running_.back();
  running_.pop_back();
  pool_.give_back(request.blocks);
  request.blocks.clear();
  request.computed = 0;
  request.state = State::kWaiting;
  waiting_.push_front(&request);
  ++counts_.preemptions;
}

void Scheduler::schedule(Request& request, std::uint32_t& budget, std::vector<Work>& work) {
  const auto known = static_cast<std::uint32_t>(request.keys.size());
  const std::uint32_t tokens = std::min(budget, known - request.computed);
  budget -= tokens;
  request.scheduled = request.computed + tokens;
  const bool samples = request.scheduled == known;
  work.push_back(
      {request.id, request.computed, std::span(request.keys).first(request.scheduled), request.blocks, samples});
  in_step_.push_back({request.id, samples});
}

// Its KV exists up to there; the prefixes of whole blocks can be shared from now on.
void Scheduler::advance(Request& request, std::uint32_t computed) {
  const std::uint32_t before = std::exchange(request.computed, computed);
  if (request.state == State::kRunning) {
    counts_.computed_prompt_tokens +=
        std::min(computed, request.prompt_tokens) - std::min(before, request.prompt_tokens);
  }
  if (!options_.caches_prefixes) return;
  for (std::uint32_t i = before / options_.block_tokens; i < computed / options_.block_tokens; ++i) {
    pool_.remember(request.blocks[i], request.keys[std::size_t{i + 1} * options_.block_tokens - 1]);
  }
}

void Scheduler::finish(Request& request, Effects& effects) {
  effects.answers.emplace_back(AnswerEnded{request.id});
  const auto* const leg = std::get_if<PrefillLeg>(&request.leg);
  remove_from(running_, &request);
  if (leg == nullptr) return end(request, effects);
  tell_seen(request, effects);
  // What holds the KV of the answer alone is not sent.
  const std::size_t sent = blocks_for(request.prompt_tokens);
  pool_.give_back(std::span(request.blocks).subspan(sent));
  request.blocks.resize(sent);
  request.state = State::kSending;
  effects.commands.emplace_back(Send{request.id, leg->transfer_id, request.prompt_tokens, {pack(request.blocks)}});
}

// Ends a request that is not finished and whose blocks only this engine uses.
void Scheduler::drop(Request& request, Effects& effects) {
  remove_from(waiting_, &request);
  remove_from(ready_, &request);
  remove_from(running_, &request);
  if (const auto* const leg = std::get_if<PrefillLeg>(&request.leg)) {
    effects.commands.emplace_back(Withdraw{leg->transfer_id});
  } else if (!request.is_local) {
    const auto& [transfer_id, producer] = std::get<DecodeLeg>(request.leg);
    effects.commands.emplace_back(Decline{transfer_id, producer});
  }
  end(request, effects);
}

void Scheduler::end(Request& request, Effects& effects) {
  tell_seen(request, effects);
  pool_.give_back(request.blocks);
  if (const auto transfer = transfer_key(request.leg)) transfers_.erase(*transfer);
  requests_.erase(RequestId(request.id));
}

void Scheduler::received(Request& request, const ReceiveEnded& event, Instant now, Effects& effects) {
  request.is_local = true;
  request.seen.reported = now;
  if (request.is_aborted) return end(request, effects);
  if (event.error && request.gives_way) return wait_again(request, effects);
  request.gives_way = false;
  if (event.error) {
    effects.answers.emplace_back(AnswerFailed{request.id, {*event.error, "the KV of its prompt did not come"}});
    return end(request, effects);
  }
  counts_.received_prompt_tokens += request.prompt_tokens - 1 - request.computed;
  advance(request, request.prompt_tokens - 1);
  request.state = State::kReady;
  ready_.push_back(&request);
}

// Once, of a request with a transfer.
void Scheduler::tell_seen(Request& request, Effects& effects) {
  if (!request.seen.transfer_id.empty()) effects.scheduled.push_back(std::exchange(request.seen, {}));
}

std::uint32_t Scheduler::blocks_for(std::size_t tokens) const {
  return static_cast<std::uint32_t>((tokens + options_.block_tokens - 1) / options_.block_tokens);
}

// At the end of each whole block; not of one that ends with the last token, which has to be computed.
std::vector<PrefixKey> Scheduler::cacheable_prefixes(const Request& request) const {
  std::vector<PrefixKey> prefixes;
  for (std::size_t end = options_.block_tokens; end < request.keys.size(); end += options_.block_tokens) {
    prefixes.push_back(request.keys[end - 1]);
  }
  return prefixes;
}

Scheduler::Request* Scheduler::find(const RequestId& id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

}  // namespace kvpush
