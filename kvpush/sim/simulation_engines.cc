// Simulation: what engines ask of their agents.
#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "kvpush/base/check.h"
#include "kvpush/sim/simulation.h"

namespace kvpush::sim {

namespace {

TransferId transfer_name(std::uint64_t transfer) {
  return fmt::format("x{}", transfer);
}
RequestId send_name(std::uint64_t transfer) {
  return fmt::format("s{}", transfer);
}
RequestId receive_name(std::uint64_t attempt) {
  return fmt::format("r{}", attempt);
}
std::uint64_t attempt_of(const RequestId& request) {
  std::uint64_t attempt = 0;
  std::from_chars(request.data() + 1, request.data() + request.size(), attempt);
  return attempt;
}

constexpr std::uint32_t kProbeTokens = 6;  // a block and a half

}  // namespace

Duration Simulation::part_of(Duration whole, Random& random) {
  return Duration{random.below(static_cast<std::uint64_t>(whole.count()) + 1)};
}

// The ranks of an engine act on one step, but not at one moment.
Duration Simulation::skew(Random& random) const {
  return part_of(2 * shape_.latency, random);
}

void Simulation::begin(std::uint32_t transfer) {
  ++figures_.transfers;
  Random random = stream(Stream::kTransfer, transfer);
  random.next();  // when it begins
  const Duration lease = shape_.protocol.lease;
  Transfer& one = transfers_[transfer];
  one.producer = static_cast<std::uint32_t>(random.below(scenario_.producers));
  one.tokens.end = static_cast<std::uint32_t>(random.below(shape_.tokens_max));
  one.choice = random.below(3) == 0 ? Choice::kScattered : Choice::kConsecutive;

  const bool is_withdrawn = has(Trouble::kCancel, random, 16);
  const bool is_cancelled = has(Trouble::kCancel, random, 8);
  const bool is_never_sent = has(Trouble::kUnmatched, random, 10);
  const Instant computed = world_.now() + part_of(lease, random);
  const Instant cancelled = computed + part_of(lease, random);
  const bool is_announced = random.below(2) == 0;
  const Instant admitted = computed - part_of(computed - world_.now(), random);
  for (const std::uint32_t place : engines_[one.producer].ranks) {
    const Duration late = skew(random);
    if (is_never_sent) continue;
    if (is_announced) push(admitted + late, Kind::kAdmit, place, transfer);
    push(computed + late, is_withdrawn ? Kind::kWithdraw : Kind::kSend, place, transfer);
    if (is_cancelled) push(cancelled + late, Kind::kCancel, place, transfer);
  }

  const auto consumer = static_cast<std::uint32_t>(random.below(scenario_.consumers));
  const bool has_part = random.below(2) == 0;
  const auto first = static_cast<std::uint32_t>(random.below(one.tokens.end + 1));
  const bool is_never_received = has(Trouble::kUnmatched, random, 10);
  const bool has_rival = has(Trouble::kRival, random, 10);
  const Duration wait = part_of(2 * lease, random);
  if (is_never_received) return;
  const Attempt attempt{
      .transfer = transfer, .consumer = scenario_.producers + consumer, .first = has_part ? first : 0};
  ask_for(add_attempt(attempt), random, wait);
  if (!has_rival) return;
  Attempt rival = attempt;
  rival.consumer = scenario_.producers + (consumer + 1) % scenario_.consumers;
  if (rival.consumer != attempt.consumer) ask_for(add_attempt(rival), random, part_of(2 * lease, random));
}

std::uint64_t Simulation::add_attempt(const Attempt& attempt) {
  attempts_.emplace(++attempt_last_, attempt);
  return attempt_last_;
}

void Simulation::ask_for(std::uint64_t number, Random& random, Duration wait) {
  const auto found = attempts_.find(number);
  if (found == attempts_.end()) return;  // its process died
  const std::vector<std::uint32_t>& places = engines_[found->second.consumer].ranks;
  const bool nobody_needs_it = has(Trouble::kDecline, random, 16);
  const bool one_does_not = has(Trouble::kDecline, random, 16);
  const std::uint32_t who_does_not = places[random.below(places.size())];
  const bool is_aborted = has(Trouble::kAbort, random, shape_.abort_one_in);
  const bool is_queued = random.below(2) == 0;
  const Duration queue = random.below(4) == 0 ? part_of(shape_.protocol.hold_limit / 2, random) : Duration{};
  const Instant queued = world_.now() + part_of(wait, random);
  const Instant asked = world_.now() + wait + (is_queued ? queue : Duration{});
  const Instant aborted = asked + part_of(part_of(3 * shape_.protocol.lease, random), random);
  for (const std::uint32_t place : places) {
    const bool is_declined = nobody_needs_it || (one_does_not && place == who_does_not);
    if (is_queued) push(queued, Kind::kAwait, place, number);
    push(asked + skew(random), is_declined ? Kind::kDecline : Kind::kReceive, place, number);
    if (is_aborted) push(aborted + skew(random), Kind::kAbandon, place, number);
  }
}

void Simulation::send(const Event& event) {
  if (event.kind == Kind::kSend || event.kind == Kind::kWithdraw) transfers_[event.what].ranks_sent.insert(event.where);
  if (defer(event)) return;
  Rank& one = rank(event.where);
  if (event.kind == Kind::kAdmit) {  // a step of the engine that comes before the others
    if (!transfers_[event.what].ranks_sent.contains(event.where)) world_.admit(one, transfer_name(event.what));
    return;
  }
  if (event.kind == Kind::kWithdraw) return world_.withdraw(one, transfer_name(event.what));
  if (event.kind == Kind::kCancel) return world_.cancel(one, send_name(event.what));
  const Transfer& transfer = transfers_[event.what];
  const bool is_taken = world_.send(one, {.request = send_name(event.what),
                                          .transfer_id = transfer_name(event.what),
                                          .tokens = transfer.tokens,
                                          .choice = transfer.choice,
                                          .from = any_block(one)});
  if (is_taken) return;
  ++figures_.refused;
  world_.withdraw(one, transfer_name(event.what));
}

// Blocks that somebody has just given back are the most likely to be written late.
std::uint32_t Simulation::any_block(const Rank& one) {
  const auto any = static_cast<std::uint32_t>(network_.below(shape_.size.block_count));
  return network_.below(2) == 0 ? one.blocks.freed_last() : any;
}

void Simulation::await(const Event& event) {
  if (defer(event)) return;
  const auto found = attempts_.find(event.what);
  if (found == attempts_.end() || found->second.ranks_asked.contains(event.where)) return;
  const Attempt& attempt = found->second;
  Rank& one = rank(event.where);
  const TransferId name = transfer_name(attempt.transfer);
  if (attempt.is_abandoned || one.awaited.contains(name)) return;
  world_.await(one, name, engines_[transfers_[attempt.transfer].producer].name);
}

void Simulation::receive(const Event& event) {
  if (defer(event)) return;
  const auto found = attempts_.find(event.what);
  if (found == attempts_.end()) return;
  Rank& one = rank(event.where);
  Attempt& attempt = found->second;
  if (event.kind == Kind::kAbandon) {
    attempt.is_abandoned = true;
    return world_.abandon(one, receive_name(event.what));
  }
  attempt.ranks_asked.insert(event.where);
  const TransferId name = transfer_name(attempt.transfer);
  const std::string& producer = engines_[transfers_[attempt.transfer].producer].name;
  if (attempt.is_abandoned) {
    world_.decline(one, name, producer);
    return end_part(event.what, false);
  }
  const Transfer& transfer = transfers_[attempt.transfer];
  const bool is_taken = world_.receive(one,
                                       {.request = receive_name(event.what),
                                        .transfer_id = name,
                                        .tokens = {attempt.first, transfer.tokens.end},
                                        .choice = network_.below(3) == 0 ? Choice::kScattered : Choice::kConsecutive,
                                        .from = any_block(one)},
                                       producer);
  if (is_taken) return;
  ++figures_.refused;
  world_.decline(one, name, producer);
  end_part(event.what, false);
}

void Simulation::decline(const Event& event) {
  if (defer(event)) return;
  const auto found = attempts_.find(event.what);
  if (found == attempts_.end()) return;
  Attempt& attempt = found->second;
  attempt.ranks_asked.insert(event.where);
  world_.decline(rank(event.where), transfer_name(attempt.transfer),
                 engines_[transfers_[attempt.transfer].producer].name);
  end_part(event.what, true);
}

void Simulation::on_ended(Rank& rank, const RequestId& request, bool is_complete) {
  if (rank.producer) return;
  ++(is_complete ? figures_.requests_complete : figures_.requests_failed);
  end_part(attempt_of(request), is_complete);
}

// A rank of the attempt has ended. One that failed makes its engine give up on all.
void Simulation::end_part(std::uint64_t number, bool is_complete) {
  const auto found = attempts_.find(number);
  if (found == attempts_.end()) return;
  Attempt& attempt = found->second;
  const std::vector<std::uint32_t>& places = engines_[attempt.consumer].ranks;
  if (!is_complete && !attempt.has_failed) {
    attempt.has_failed = true;
    for (const std::uint32_t place : places) push_soon(shape_.latency, Kind::kAbandon, place, number);
  }
  if (++attempt.ranks_ended < places.size()) return;
  Attempt next = attempt;
  attempts_.erase(found);
  if (!next.has_failed || next.is_retry || !has(Trouble::kRetry, network_, 2)) return;
  next = {.transfer = next.transfer, .consumer = next.consumer, .first = next.first, .is_retry = true};
  push_soon(shape_.protocol.lease / 2, Kind::kRetry, 0, add_attempt(next));
}

// Nothing goes wrong any more: each pair of engines can hand over a prompt.
void Simulation::probe() {
  is_calm_ = true;
  std::vector<std::size_t> complete;
  for (Rank* one : ranks_) {
    one->stops_at_post = false;
    complete.push_back(one->complete_count);
  }
  for (std::uint32_t producer = 0; producer < scenario_.producers; ++producer) {
    for (std::uint32_t consumer = scenario_.producers; consumer < engines_.size(); ++consumer) {
      const auto transfer = static_cast<std::uint32_t>(transfers_.size());
      transfers_.push_back({.producer = producer, .tokens = {0, kProbeTokens}});
      for (const std::uint32_t place : engines_[producer].ranks) push(world_.now(), Kind::kSend, place, transfer);
      ask_for(add_attempt({.transfer = transfer, .consumer = consumer}), network_, Duration{});
    }
  }
  if (!run_events()) return;
  for (std::uint32_t consumer = scenario_.producers; consumer < engines_.size(); ++consumer) {
    for (const std::uint32_t place : engines_[consumer].ranks) {
      const std::size_t missing = scenario_.producers - (rank(place).complete_count - complete[place]);
      if (missing > 0) {
        faults_.push_back(fmt::format("{}: {} requests after all trouble fail", rank(place).name, missing));
      }
    }
  }
}

}  // namespace kvpush::sim
