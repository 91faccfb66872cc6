// Simulation: what goes wrong.
#include <algorithm>
#include <iterator>

#include "kvpush/base/overloaded.h"
#include "kvpush/sim/simulation.h"

namespace kvpush::sim {

namespace {

// Those that come by themselves; the others befall single messages, writes and requests.
constexpr std::array kIncidents{Trouble::kCut,           Trouble::kPartition,    Trouble::kLostPeer,
                                Trouble::kFullTransport, Trouble::kKillProducer, Trouble::kKillConsumer,
                                Trouble::kStop,          Trouble::kStopAtPost,   Trouble::kLeave,
                                Trouble::kDirectoryDown};
constexpr std::size_t kNewestConnections = 8;  // older ones have mostly ended
constexpr std::uint64_t kLeaveChecksMax = 40;

}  // namespace

void Simulation::happen_incident(std::uint64_t number) {
  Random random = stream(Stream::kIncident, number);
  random.next();  // when it happens
  const Trouble trouble = kIncidents[random.below(kIncidents.size())];
  if (!scenario_.allows(trouble)) return;
  switch (trouble) {
    case Trouble::kCut: return cut(random);
    case Trouble::kPartition: return part(random);
    case Trouble::kLostPeer: return lose_peer(random);
    case Trouble::kFullTransport: return fill(random);
    case Trouble::kKillProducer: return kill(any_engine(random, true), random);
    case Trouble::kKillConsumer: return kill(any_engine(random, false), random);
    case Trouble::kStop: return stop(random);
    case Trouble::kStopAtPost: return stop_at_post(random);
    case Trouble::kLeave: return leave(random);
    default: return shut_directory(random);
  }
}

Duration Simulation::any_while(Random& random) const {
  return part_of(part_of(6 * shape_.protocol.lease, random), random);  // mostly short
}

std::uint32_t Simulation::any_engine(Random& random, bool is_producer) const {
  const std::uint64_t count = is_producer ? scenario_.producers : scenario_.consumers;
  return static_cast<std::uint32_t>(random.below(count)) + (is_producer ? 0 : scenario_.producers);
}

Rank& Simulation::any_rank(Random& random, bool is_producer) {
  const std::vector<std::uint32_t>& places = engines_[any_engine(random, is_producer)].ranks;
  return rank(places[random.below(places.size())]);
}

Connection* Simulation::any_connection(Random& random) {
  std::list<Connection>& all = world_.connections();
  if (all.empty()) return nullptr;
  const std::size_t newest = std::min(kNewestConnections, all.size());
  return &*std::next(all.rbegin(), static_cast<std::ptrdiff_t>(random.below(newest)));
}

void Simulation::set_troubled(std::uint32_t engine, Instant until) {
  for (const std::uint32_t place : engines_[engine].ranks) {
    rank(place).troubled = std::max(rank(place).troubled, until);
  }
}

void Simulation::cut(Random& random) {
  Connection* connection = any_connection(random);
  if (connection == nullptr) return;
  count(Trouble::kCut);
  set_troubled(engine_of_[connection->consumer.rank->place], world_.now());
  set_troubled(engine_of_[connection->producer.rank->place], world_.now());
  world_.cut(*connection, random.below(2) == 0);
}

void Simulation::part(Random& random) {
  const std::uint32_t consumer = any_engine(random, false);
  const std::uint32_t producer = any_engine(random, true);
  count(Trouble::kPartition);
  Instant& until = apart_[{consumer, producer}];
  until = std::max(until, world_.now() + any_while(random));
  set_troubled(consumer, until);
  set_troubled(producer, until);
}

Instant Simulation::apart_until(const Connection& connection) const {
  const auto found =
      apart_.find({engine_of_[connection.consumer.rank->place], engine_of_[connection.producer.rank->place]});
  return found == apart_.end() ? Instant{} : found->second;
}

void Simulation::lose_peer(Random& random) {
  Connection* connection = any_connection(random);
  if (connection == nullptr) return;
  count(Trouble::kLostPeer);
  set_troubled(engine_of_[connection->consumer.rank->place], world_.now());
  set_troubled(engine_of_[connection->producer.rank->place], world_.now());
  world_.lose_peer(*connection, random.below(2) == 0 ? Side::kConsumer : Side::kProducer);
}

void Simulation::fill(Random& random) {
  Rank& one = any_rank(random, true);
  if (!one.is_alive) return;
  count(Trouble::kFullTransport);
  const Instant until = world_.now() + any_while(random);
  one.troubled = std::max(one.troubled, until);
  world_.set_full(one, true);
  push(until, Kind::kRoom, one.place);
}

void Simulation::kill(std::uint32_t engine, Random& random) {
  if (!rank(engines_[engine].ranks.front()).is_alive) return;
  count(engine < scenario_.producers ? Trouble::kKillProducer : Trouble::kKillConsumer);
  end_process(engine, world_.now() + any_while(random));
}

void Simulation::end_process(std::uint32_t engine, Instant restart) {
  world_.kill(engines_[engine].name);
  std::erase_if(attempts_, [&](const auto& attempt) { return attempt.second.consumer == engine; });
  push(restart, Kind::kStart, engine);
}

void Simulation::stop(Random& random) {
  Rank& one = any_rank(random, random.below(2) == 0);
  if (!one.is_alive || one.is_stopped) return;
  count(Trouble::kStop);
  goes_on_[one.place] = world_.now() + any_while(random);
  push(goes_on_[one.place], Kind::kGoOn, one.place);
  world_.set_stopped(one, true);
}

void Simulation::stop_at_post(Random& random) {
  Rank& one = any_rank(random, true);
  if (one.is_alive) one.stops_at_post = true;
}

void Simulation::on_stopped(Rank& rank) {
  count(Trouble::kStopAtPost);
  goes_on_[rank.place] = world_.now() + any_while(network_);
  push(goes_on_[rank.place], Kind::kGoOn, rank.place);
}

void Simulation::leave(Random& random) {
  const std::uint32_t engine = any_engine(random, random.below(2) == 0);
  const auto can_hear = [&](std::uint32_t place) { return rank(place).is_alive && !rank(place).is_stopped; };
  if (!std::ranges::all_of(engines_[engine].ranks, can_hear)) return;
  count(Trouble::kLeave);
  for (const std::uint32_t place : engines_[engine].ranks) world_.drain(rank(place));
  push(world_.now() + shape_.protocol.lease / 4, Kind::kEndLeave, engine);
}

// As a process does that drains: it ends when it is idle, or does not wait any longer.
void Simulation::end_leave(const Event& event) {
  const auto is_idle = [&](std::uint32_t place) {
    const Rank& one = rank(place);
    return one.producer ? one.producer->idle() : one.consumer->idle();
  };
  if (!rank(engines_[event.where].ranks.front()).is_alive) return;  // killed meanwhile
  if (std::ranges::all_of(engines_[event.where].ranks, is_idle) || event.what >= kLeaveChecksMax) {
    return end_process(event.where, world_.now() + any_while(network_));
  }
  push(world_.now() + shape_.protocol.lease / 4, Kind::kEndLeave, event.where, event.what + 1);
}

void Simulation::shut_directory(Random& random) {
  const std::uint32_t engine = any_engine(random, true);
  count(Trouble::kDirectoryDown);
  const Instant until = world_.now() + any_while(random);
  set_troubled(engine, until);
  world_.set_directory(engines_[engine].name, false);
  push(until, Kind::kDirectory, engine);
}

}  // namespace kvpush::sim
