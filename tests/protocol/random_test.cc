// Engines in disorder: each seed chooses a world, its requests and its troubles. World checks safety at every step;
// here liveness is checked: when troubles stop, everything ends and nothing remains.
//
// KVPUSH_SEED runs one seed, KVPUSH_SEEDS that many from 1 on.
#include <chrono>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kvpush/base/random.h"
#include "tests/protocol/world.h"

namespace kvpush::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeedsDefault = 300;
constexpr std::size_t kStepsMax = 1500;    // while there is trouble: some twenty transfers with all their messages
constexpr std::size_t kTransfersMax = 24;  // so that most meet both of their requests
constexpr std::uint32_t kTokensMax = 800;  // three batches when scattered
constexpr std::size_t kLinesShown = 80;    // of a failed seed
constexpr Duration kEndLimit = 30min;      // several times the longest timeout
constexpr std::size_t kCalmStepsMax = 200000;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// One seed's run.
class Chaos {
 public:
  explicit Chaos(std::uint64_t seed);

  void run();
  std::vector<std::string> faults();
  std::string last_lines();
  std::size_t completed();

 private:
  bool one_in(std::uint64_t count) { return random_.below(count) == 0; }
  template <class T>
  T& any_of(std::vector<T>& things) {
    return things[random_.below(things.size())];
  }
  Rank& any_consumer() { return *any_of(consumers_); }

  void step();
  void ask();
  void change_mind();
  void make_trouble();
  void move_writes();
  void calm_down();
  void check_nothing_remains();
  void keep_lines();
  TransferId any_transfer() { return fmt::format("x{}", random_.below(kTransfersMax)); }

  Random random_;
  bool has_trouble_ = false;  // connections, writes, peers and processes fail
  bool has_doubts_ = false;   // engines change their minds
  bool leaves_ = false;       // the producer has drained
  // One in how many steps something arrives, or moves: slow writes live through much more than quick ones.
  std::uint64_t message_pace_ = 1;
  std::uint64_t write_pace_ = 1;
  World world_;
  std::vector<Rank*> producers_;
  std::vector<Rank*> consumers_;
  std::uint64_t request_last_ = 0;
  std::size_t sends_ = 0;
  std::size_t receives_ = 0;
  std::vector<std::string> lines_;
  std::vector<std::string> remains_;
};

WorldOptions options_of(Random& random, bool has_trouble) {
  WorldOptions options{.transports = {random.below(2) == 0 ? kFencing : kPlain}};
  if (random.below(3) == 0) options.transports = {kFencing, kPlain};
  if (has_trouble && random.below(3) == 0) {
    // A few times what a message takes here, so that leases lapse and peers seem silent for no other reason. What may
    // wait does not wait for thousands of renewals.
    options.protocol.lease = 60ms;
    options.protocol.lease_margin = 10ms;
    options.protocol.hold_timeout = 300ms;
    options.protocol.match_timeout = 1s;
    options.protocol.receive_timeout = 1500ms;
  }
  return options;
}

Chaos::Chaos(std::uint64_t seed)
    : random_(seed),
      has_trouble_(!one_in(4)),
      has_doubts_(!one_in(4)),
      message_pace_(1 + random_.below(3)),
      write_pace_(1 + random_.below(20)),
      world_(options_of(random_, has_trouble_), seed) {
  const auto rank_count = [&] { return static_cast<std::uint32_t>(1 + random_.below(2)); };
  world_.add({.name = "P", .role = World::Role::kProducer, .rank_count = rank_count()});
  world_.add({.name = "C", .rank_count = rank_count()});
  if (one_in(2)) world_.add({.name = "D", .rank_count = rank_count()});
  if (one_in(4)) world_.set_reachable("C", kFencing, false);
  producers_ = world_.ranks_of("P");
  for (Rank* rank : world_.ranks()) {
    if (rank->consumer) consumers_.push_back(rank);
  }
}

void Chaos::run() {
  for (std::size_t i = 0; i < kStepsMax && world_.faults().empty(); ++i) {
    step();
    keep_lines();
  }
  calm_down();
  if (world_.faults().empty()) check_nothing_remains();
}

void Chaos::step() {
  world_.advance_to(world_.now() + Duration{random_.below(4) * 1'000'000});
  if (auto arrivals = world_.arrivals(); !arrivals.empty() && one_in(message_pace_)) {
    const auto [connection, side] = any_of(arrivals);
    world_.deliver(*connection, side);
  }
  if (world_.resolves() > 0 && one_in(2)) world_.resolve();
  if (!world_.writes().empty() && one_in(write_pace_)) move_writes();
  for (Rank* producer : producers_) {
    if (producer->is_full && one_in(20)) world_.set_full(*producer, false);
  }
  for (Rank* rank : world_.ranks()) {
    if (rank->is_stopped && one_in(40)) world_.set_stopped(*rank, false);
  }
  if (one_in(10)) ask();
  if (has_doubts_ && one_in(40)) change_mind();
  if (has_trouble_ && one_in(40)) make_trouble();
}

// A whole engine asks for a transfer, or has one ready: each of its ranks, with blocks of its own choice.
void Chaos::ask() {
  const bool is_send = one_in(2);
  const TransferId transfer_id = fmt::format("x{}", (is_send ? sends_ : receives_) % kTransfersMax);
  ++(is_send ? sends_ : receives_);
  const std::string engine = is_send ? "P" : any_consumer().engine;
  // The prompt's length follows from its name; a consumer may have a part of it already.
  const auto length = static_cast<std::uint32_t>(Random(std::hash<std::string>{}(transfer_id)).below(kTokensMax));
  const std::uint32_t first = is_send || one_in(2) ? 0 : static_cast<std::uint32_t>(random_.below(length + 1));
  const std::string request = fmt::format("{}{}", is_send ? "s" : "r", ++request_last_);
  for (Rank* rank : world_.ranks_of(engine)) {
    if (!rank->is_alive || rank->is_stopped) continue;
    const World::Ask ask{.request = request,
                         .transfer_id = transfer_id,
                         .tokens = {first, length},
                         .choice = one_in(3) ? Choice::kScattered : Choice::kConsecutive,
                         .from = static_cast<std::uint32_t>(random_.below(Blocks::kBlockCount))};
    if (is_send) {
      world_.send(*rank, ask);
    } else {
      world_.receive(*rank, ask, "P");
    }
  }
}

void Chaos::change_mind() {
  Rank& producer = *any_of(producers_);
  Rank& consumer = any_consumer();
  const auto any_request = [&](Rank& rank) {
    return std::next(rank.requests.begin(), static_cast<std::ptrdiff_t>(random_.below(rank.requests.size())))->first;
  };
  switch (random_.below(4)) {
    case 0:
      if (!consumer.requests.empty() && !consumer.is_stopped) world_.abandon(consumer, any_request(consumer));
      break;
    case 1:
      if (!producer.requests.empty() && !producer.is_stopped) world_.cancel(producer, any_request(producer));
      break;
    case 2:
      if (producer.is_alive && !producer.is_stopped) world_.withdraw(producer, any_transfer());
      break;
    default:
      if (!consumer.is_stopped) world_.decline(consumer, any_transfer(), "P");
  }
}

void Chaos::make_trouble() {
  Connection* connection = nullptr;
  if (!world_.connections().empty()) {
    auto last = world_.connections().rbegin();  // older ones have mostly ended
    std::advance(last,
                 static_cast<std::ptrdiff_t>(random_.below(std::min<std::size_t>(4, world_.connections().size()))));
    connection = &*last;
  }
  switch (random_.below(9)) {
    case 0:
    case 1:
      if (connection != nullptr) world_.cut(*connection, one_in(2));
      break;
    case 2:
    case 3:
      if (connection != nullptr) world_.lose_peer(*connection, one_in(2) ? Side::kConsumer : Side::kProducer);
      break;
    case 4: world_.advance_to(world_.now() + Duration{random_.below(3'000'000'000)}); break;
    case 5: world_.set_directory("P", one_in(2)); break;
    case 6: world_.set_full(*any_of(producers_), true); break;
    case 7: {
      Rank& rank = one_in(2) ? *any_of(producers_) : any_consumer();
      if (rank.is_alive && !rank.is_stopped) world_.set_stopped(rank, true);
      break;
    }
    default:
      if (producers_.front()->is_alive) {
        if (one_in(3)) world_.kill("P");
      } else {
        world_.restart("P");
      }
  }
  if (!world_.gone().empty() && one_in(2)) {
    const std::size_t index = random_.below(world_.gone().size());
    if (!world_.gone()[index].first->is_stopped) world_.notice_gone(index);
  }
}

void Chaos::move_writes() {
  auto write = std::next(world_.writes().begin(), static_cast<std::ptrdiff_t>(random_.below(world_.writes().size())));
  if (write->is_astray) {
    world_.land(*write, 1 + random_.below(write->pieces.size() + 1));
    if (write->pieces.empty() || one_in(4)) world_.forget(*write);
  } else if (one_in(3) || write->connection->producer.rank->is_stopped) {
    world_.land(*write, random_.below(write->pieces.size() + 1));
  } else if (has_trouble_ && one_in(20)) {
    world_.fail(*write);
  } else {
    world_.complete(*write);
  }
}

// No more trouble: whatever is under way arrives, and time passes until nobody waits for it.
void Chaos::calm_down() {
  if (!producers_.front()->is_alive) world_.restart("P");
  world_.set_directory("P", true);
  for (Rank* rank : world_.ranks()) {
    if (rank->is_stopped) world_.set_stopped(*rank, false);
  }
  for (Rank* producer : producers_) world_.set_full(*producer, false);
  for (const std::string engine : {"P", "C", "D"}) {
    if (!one_in(8)) continue;
    for (Rank* rank : world_.ranks_of(engine)) world_.drain(*rank);
    leaves_ = leaves_ || engine == "P";
  }
  const Instant end = world_.now() + kEndLimit;
  for (std::size_t i = 0; i < kCalmStepsMax && world_.faults().empty(); ++i) {
    keep_lines();
    if (!world_.gone().empty()) world_.notice_gone(0);
    if (auto arrivals = world_.arrivals(); !arrivals.empty()) {
      const auto [connection, side] = any_of(arrivals);
      world_.deliver(*connection, side);
    } else if (world_.resolves() > 0) {
      world_.resolve();
    } else if (!world_.writes().empty()) {
      move_writes();
    } else if (leaves_ && std::ranges::all_of(producers_, [](Rank* rank) { return rank->producer->idle(); })) {
      world_.kill("P");  // as a process does that has drained
      leaves_ = false;
    } else if (const auto deadline = world_.deadline()) {
      if (*deadline > end) break;
      world_.advance_to(*deadline);
    } else {
      return;
    }
  }
  if (world_.faults().empty()) remains_.push_back("it does not come to an end");
}

void Chaos::check_nothing_remains() {
  for (Rank* rank : world_.ranks()) {
    for (const auto& [id, request] : rank->requests) remains_.push_back(rank->name + ": " + id + " has not ended");
    if (!rank->is_alive) continue;
    if (rank->producer) {
      if (rank->producer->counters().bad_messages > 0) remains_.push_back(rank->name + " heard a bad message");
      const ProducerGauges gauges = rank->producer->gauges();
      if (gauges.registrations + gauges.requests + gauges.transfers + gauges.writes_in_flight > 0) {
        remains_.push_back(rank->name + " still knows registrations, requests or transfers");
      }
    } else {
      if (rank->consumer->counters().bad_messages > 0) remains_.push_back(rank->name + " heard a bad message");
      const ConsumerGauges gauges = rank->consumer->gauges();
      if (gauges.requests + gauges.quarantined > 0 || rank->consumer->expects_writes()) {
        remains_.push_back(rank->name + " still knows requests or registrations");
      }
    }
  }
}

std::vector<std::string> Chaos::faults() {
  std::vector<std::string> all = world_.faults();
  all.insert(all.end(), remains_.begin(), remains_.end());
  return all;
}

void Chaos::keep_lines() {
  for (std::string& line : world_.take_lines()) {
    lines_.push_back(
        fmt::format("{:10.3f} {}", std::chrono::duration<double>(world_.now().time_since_epoch()).count(), line));
  }
}

std::string Chaos::last_lines() {
  keep_lines();
  const std::size_t shown = std::min(lines_.size(), from_environment("KVPUSH_LINES", kLinesShown));
  std::string text;
  for (std::size_t i = lines_.size() - shown; i < lines_.size(); ++i) text += lines_[i] + "\n";
  return text;
}

std::size_t Chaos::completed() {
  std::size_t count = 0;
  for (const Rank* rank : consumers_) count += rank->complete_count;
  return count;
}

TEST(RandomWorld, IsSafeAndComesToRestWhateverHappens) {
  const std::uint64_t only = from_environment("KVPUSH_SEED", 0);
  const std::uint64_t first = only > 0 ? only : 1;
  const std::uint64_t last = only > 0 ? only : from_environment("KVPUSH_SEEDS", kSeedsDefault);
  std::size_t completed = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    Chaos chaos(seed);

    chaos.run();

    completed += chaos.completed();
    const std::vector<std::string> faults = chaos.faults();
    if (faults.empty() && only == 0) continue;
    std::string text;
    for (const std::string& fault : faults) text += "\n  " + fault;
    FAIL() << "seed " << seed << ":" << text << "\nlast lines:\n" << chaos.last_lines();
  }
  // Chaos must not be so great that nothing is ever transferred.
  EXPECT_GT(completed, last - first);
  RecordProperty("completed", static_cast<int>(completed));
}

}  // namespace
}  // namespace kvpush::testing
