#include "kvpush/sim/simulation.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "kvpush/base/check.h"

namespace kvpush::sim {

namespace {

using namespace std::chrono_literals;

// Far more than any run needs: some thousand for each transfer.
constexpr std::uint64_t kEventsMax = 5'000'000;
constexpr std::string_view kProducerNames = "PQRSTUVW";
constexpr std::string_view kConsumerNames = "CDEFGHIJ";
// Ended connections are looked for after so many events.
constexpr std::uint64_t kTidyEvery = 512;

// Every limit a hundredth of what it is, about, so that leases lapse and peers seem silent for ordinary reasons and a
// minute's worth of waiting is not thousands of renewals.
ProtocolOptions quick_protocol() {
  return {.hold_timeout = 300ms,
          .hold_limit = 1s,
          .match_timeout = 1s,
          .receive_timeout = 1500ms,
          .drain_limit = 20ms,
          .session_limit = 200ms,
          .lease = 60ms,
          .lease_margin = 10ms,
          .backoff_first = 2ms,
          .backoff_longest = 50ms,
          .outcome_timeout = 800ms};
}

WorldOptions world_options(const ProtocolOptions& protocol, std::vector<std::string> transports, Blocks::Size size,
                           Duration lateness, bool has_lines) {
  return {.transports = std::move(transports),
          .protocol = protocol,
          .size = size,
          .renews_quietly = false,
          .has_lines = has_lines,
          .lateness = lateness};
}

}  // namespace

Figures& Figures::operator+=(const Figures& other) {
  transfers += other.transfers;
  requests_complete += other.requests_complete;
  requests_failed += other.requests_failed;
  refused += other.refused;
  messages += other.messages;
  writes += other.writes;
  for (std::size_t index = 0; index < kTroubleCount; ++index) troubles[index] += other.troubles[index];
  return *this;
}

Simulation::Simulation(const Scenario& scenario, Print print)
    : scenario_(scenario),
      print_(std::move(print)),
      shape_(choose_shape(stream(Stream::kShape))),
      world_(world_options(shape_.protocol, shape_.transports, shape_.size, shape_.lateness, print_ != nullptr),
             scenario.seed, this),
      network_(stream(Stream::kNetwork)),
      transfers_(scenario.transfers) {
  KVPUSH_CHECK(scenario.producers <= kEnginesMax && scenario.consumers <= kEnginesMax,
               "engines have letters for names");
  add_engines();
}

Random Simulation::stream(Stream part, std::uint64_t index) const {
  Random random(scenario_.seed);
  const std::uint64_t salt = random.next();
  return Random(Random(salt + (static_cast<std::uint64_t>(part) << 32) + index).next());
}

Simulation::Shape Simulation::choose_shape(Random random) {
  Shape shape;
  if (random.below(3) > 0) shape.protocol = quick_protocol();
  const Duration lease = shape.protocol.lease;
  // Three renewals and their answers fit in a lease with room to spare.
  shape.latency = Duration{10'000 + random.below(static_cast<std::uint64_t>(lease.count() / 60))};
  shape.lateness = Duration{1 + random.below(static_cast<std::uint64_t>(lease.count() / 60))};
  shape.span = lease * static_cast<Duration::rep>(1 + random.below(30));
  shape.abort_one_in = 1 + random.below(10);
  shape.write_pace = 1 + random.below(20);
  const bool is_long = random.below(3) == 0;  // scattered prompts of more than 512 tokens are several batches
  shape.tokens_max = is_long ? 1600 : 40;
  shape.transports = {random.below(2) == 0 ? kFencing : kPlain};
  if (random.below(4) == 0) shape.transports = {kFencing, kPlain};
  // From a pool that holds two prompts to one that is never full.
  shape.size.block_count = is_long ? 512 : 16;
  if (random.below(2) == 0) shape.size.block_count = is_long ? 1024 : 512;
  shape.size.heads_total = 4;
  return shape;
}

bool Simulation::has(Trouble trouble, Random& random, std::uint64_t one_in) {
  const bool is_chosen = random.below(one_in) == 0;  // drawn in any case, so that the others do not change
  if (!is_chosen || is_calm_ || !scenario_.allows(trouble)) return false;
  count(trouble);
  return true;
}

void Simulation::add_engines() {
  Random random = stream(Stream::kShape, 1);
  const bool share_id = random.below(8) == 0;  // row C11: engines that were given the same name
  for (std::uint32_t index = 0; index < scenario_.producers + scenario_.consumers; ++index) {
    const bool is_producer = index < scenario_.producers;
    const std::string name(1, is_producer ? kProducerNames[index] : kConsumerNames[index - scenario_.producers]);
    const std::uint64_t ranks_log = random.below(2) == 0 ? 0 : random.below(3);
    world_.add({.name = name,
                .role = is_producer ? World::Role::kProducer : World::Role::kConsumer,
                .rank_count = 1U << ranks_log,
                .id = share_id ? "engine" : name});
    engines_.push_back({.name = name});
  }
  ranks_ = world_.ranks();
  goes_on_.resize(ranks_.size());
  ticks_.resize(ranks_.size());
  for (std::uint32_t index = 0; index < engines_.size(); ++index) {
    for (const Rank* one : world_.ranks_of(engines_[index].name)) {
      engines_[index].ranks.push_back(one->place);
      engine_of_.push_back(index);
    }
  }
  for (Rank* one : ranks_) {
    const auto ahead = Duration{random.below(86'400) * 1'000'000'000};
    const auto drift = static_cast<std::int64_t>(random.below(401)) - 200;  // twice what a bad quartz does
    if (!scenario_.allows(Trouble::kDrift)) continue;
    one->clock = Clock(ahead, drift);
    count(Trouble::kDrift);
  }
}

void Simulation::run() {
  const auto span = static_cast<std::uint64_t>(shape_.span.count());
  for (std::uint32_t transfer = 0; transfer < scenario_.transfers; ++transfer) {
    Random random = stream(Stream::kTransfer, transfer);
    push(Instant{Duration{random.below(span)}}, Kind::kBegin, 0, transfer);
  }
  for (std::uint32_t incident = 0; incident < scenario_.incidents; ++incident) {
    Random random = stream(Stream::kIncident, incident);
    push(Instant{Duration{random.below(span)}}, Kind::kIncident, 0, incident);
  }
  if (!run_events()) return;
  probe();
}

bool Simulation::run_events() {
  while (!events_.empty()) {
    std::ranges::pop_heap(events_, std::greater{});
    const Event event = events_.back();
    events_.pop_back();
    world_.set_now(std::max(event.at, world_.now()));
    happen(event);
    print_lines();
    faults_ = world_.faults();
    if (!faults_.empty()) return false;
    if (++events_done_ % kTidyEvery == 0) world_.forget_ended_connections();
    if (events_done_ > kEventsMax) {
      faults_.push_back("it does not come to rest");
      return false;
    }
  }
  faults_ = world_.remains();
  return faults_.empty();
}

void Simulation::print_lines() {
  if (!print_) return;
  for (const std::string& line : world_.take_lines()) {
    print_(fmt::format("{:12.6f} {}", std::chrono::duration<double>(world_.now().time_since_epoch()).count(), line));
  }
}

void Simulation::push(Instant at, Kind kind, std::uint32_t where, std::uint64_t what) {
  events_.push_back({at, ++event_last_, kind, where, what});
  std::ranges::push_heap(events_, std::greater{});
}

// About that long from now.
void Simulation::push_soon(Duration latency, Kind kind, std::uint32_t where, std::uint64_t what) {
  push_after(world_.now(), latency, kind, where, what);
}

void Simulation::push_after(Instant then, Duration latency, Kind kind, std::uint32_t where, std::uint64_t what) {
  const auto half = static_cast<std::uint64_t>(latency.count() / 2);
  push(then + Duration{half + network_.below(2 * half + 1)}, kind, where, what);
}

void Simulation::happen(const Event& event) {
  switch (event.kind) {
    case Kind::kArrival: return arrive(event);
    case Kind::kWrite: return move_write(event);
    case Kind::kAnswer:
      if (!defer(event)) world_.resolve(rank(event.where));
      return;
    case Kind::kGone:
      if (!defer(event)) world_.notice_gone(rank(event.where));
      return;
    case Kind::kTick: return tick(event);
    case Kind::kBegin: return begin(static_cast<std::uint32_t>(event.what));
    case Kind::kAdmit:
    case Kind::kSend:
    case Kind::kWithdraw:
    case Kind::kCancel: return send(event);
    case Kind::kAwait: return await(event);
    case Kind::kReceive:
    case Kind::kAbandon: return receive(event);
    case Kind::kDecline: return decline(event);
    case Kind::kRetry: {
      Random random = stream(Stream::kTransfer, ~event.what);
      return ask_for(event.what, random, Duration{});
    }
    case Kind::kIncident: return happen_incident(event.what);
    case Kind::kGoOn:
      // One that was killed while it was stopped has a successor that may have been stopped for longer.
      if (!rank(event.where).is_stopped || world_.now() < goes_on_[event.where]) return;
      return world_.set_stopped(rank(event.where), false);
    case Kind::kRoom: rank(event.where).troubled = world_.now(); return world_.set_full(rank(event.where), false);
    case Kind::kStart: return world_.restart(engines_[event.where].name);
    case Kind::kEndLeave: return end_leave(event);
    case Kind::kDirectory:
      for (const std::uint32_t place : engines_[event.where].ranks) rank(place).troubled = world_.now();
      return world_.set_directory(engines_[event.where].name, true);
  }
}

// A process that is stopped does it when it goes on. True as well when there is nobody to do it.
bool Simulation::defer(const Event& event) {
  const Rank& one = rank(event.where);
  if (one.is_alive && !one.is_stopped) return false;
  if (one.is_alive) {
    push_after(goes_on_[event.where], shape_.lateness, event.kind, event.where, event.what);
  }
  return true;
}

void Simulation::on_sent(Connection& connection, Side to) {
  ++figures_.messages;
  Connection::End& end = connection.end(to);
  Duration delay = shape_.latency / 2 + Duration{network_.below(static_cast<std::uint64_t>(shape_.latency.count()))};
  if (has(Trouble::kDelay, network_, 150)) {
    delay += Duration{network_.below(static_cast<std::uint64_t>(shape_.protocol.lease.count()) * 2)};
  }
  end.due = std::max(end.due, world_.now() + delay);
  if (end.due - world_.now() > 2 * shape_.latency) connection.troubled = std::max(connection.troubled, end.due);
  push(end.due, Kind::kArrival, static_cast<std::uint32_t>(to), connection.id.value);
}

void Simulation::arrive(const Event& event) {
  Connection* connection = world_.find(ConnectionId{event.what});
  const Side to = static_cast<Side>(event.where);
  if (connection == nullptr || connection->end(to).arriving.empty()) return;
  const Rank& to_rank = *connection->end(to).rank;
  if (to_rank.is_stopped) {
    return push_after(goes_on_[to_rank.place], shape_.latency, event.kind, event.where, event.what);
  }
  if (const Instant until = apart_until(*connection); until > world_.now()) {
    connection->troubled = std::max(connection->troubled, until);
    return push_after(until, shape_.latency, event.kind, event.where, event.what);
  }
  world_.deliver(*connection, to);
}

void Simulation::on_write(Write& write) {
  if (write.is_cut || write.is_astray) {
    const Duration lease = shape_.protocol.lease;
    return push_soon(write.is_cut && !write.is_astray ? shape_.latency : lease, Kind::kWrite, 0, write.number);
  }
  ++figures_.writes;
  Rank& producer = *write.connection->producer.rank;
  if (has(Trouble::kFullTransport, network_, 10)) {  // with that batch
    producer.is_full = true;
    push_soon(shape_.protocol.lease / 2, Kind::kRoom, producer.place);
  }
  Duration delay = shape_.latency * static_cast<Duration::rep>(shape_.write_pace);
  if (has(Trouble::kLateWrite, network_, 10)) {
    delay += Duration{network_.below(static_cast<std::uint64_t>(shape_.protocol.lease.count()) * 3)};
  }
  push_soon(delay, Kind::kWrite, 0, write.number);
}

void Simulation::move_write(const Event& event) {
  Write* write = world_.find_write(event.what);
  if (write == nullptr || !write->is_posted) return;
  const Rank& producer = *write->connection->producer.rank;
  if (write->is_astray) {
    world_.land(*write, 1 + network_.below(write->pieces.size()));
    if (write->pieces_left() == 0 || network_.below(4) == 0) return world_.forget(*write);
    return push_soon(shape_.latency, Kind::kWrite, 0, write->number);
  }
  if (producer.is_stopped) {  // its bytes move on, but it does not hear of that
    world_.land(*write, network_.below(write->pieces.size() + 1));
    return push_after(goes_on_[producer.place], shape_.latency, Kind::kWrite, 0, write->number);
  }
  if (write->is_cut || write->connection->is_fenced) return world_.fail(*write);
  if (write->pieces_left() > 1 && network_.below(4) == 0) {
    world_.land(*write, 1 + network_.below(write->pieces_left() - 1));
    return push_soon(shape_.latency, Kind::kWrite, 0, write->number);
  }
  if (has(Trouble::kFailedWrite, network_, 40)) return world_.fail(*write);
  world_.complete(*write);
}

void Simulation::on_asked(Rank& rank) {
  push_soon(2 * shape_.latency, Kind::kAnswer, rank.place);
}

// The kernel says so; a host that is gone takes longer.
void Simulation::on_gone(Rank& rank) {
  push_soon(shape_.protocol.lease / 4, Kind::kGone, rank.place);
}

void Simulation::on_stepped(Rank& rank) {
  const auto deadline = world_.deadline_of(rank);
  std::optional<Instant>& tick = ticks_[rank.place];
  if (!deadline || (tick && *tick <= *deadline + shape_.lateness)) return;
  const Instant due = std::max(*deadline, world_.now());
  tick = due + Duration{network_.below(static_cast<std::uint64_t>(shape_.lateness.count()))};
  push(*tick, Kind::kTick, rank.place);
}

void Simulation::tick(const Event& event) {
  std::optional<Instant>& tick = ticks_[event.where];
  if (tick != event.at) return;  // an earlier one has been set instead
  tick.reset();
  Rank& one = rank(event.where);
  const auto deadline = world_.deadline_of(one);
  if (!deadline) return;
  if (*deadline > world_.now()) return on_stepped(one);
  world_.tick(one);
}

}  // namespace kvpush::sim
