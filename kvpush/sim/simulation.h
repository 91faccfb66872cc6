#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/base/random.h"
#include "kvpush/sim/scenario.h"
#include "kvpush/sim/world.h"

namespace kvpush::sim {

// How much happened in a run, or in many.
struct Figures {
  std::uint64_t transfers = 0;          // prompts that engines began to hand over
  std::uint64_t requests_complete = 0;  // of consumer ranks
  std::uint64_t requests_failed = 0;
  std::uint64_t refused = 0;  // requests of both sides that found no blocks, or a rank that drains
  std::uint64_t messages = 0;
  std::uint64_t writes = 0;
  std::array<std::uint64_t, kTroubleCount> troubles{};
  Figures& operator+=(const Figures& other);
};

// One run of a scenario: clusters of engines on virtual time, from the seed to rest.
//
// Job: chooses when everything happens and what goes wrong; when troubles are over, checks that everything ends, that
//      nothing remains, and that every pair of engines can hand over a prompt.
// Not here: what happens and whether it may: World.
// Thread: value type.
// Invariant: what a run does depends on its scenario alone.
class Simulation : private Schedule {
 public:
  using Print = std::function<void(const std::string& line)>;
  // With `print`, each line of what happens, with its time.
  explicit Simulation(const Scenario& scenario, Print print = {});

  // To rest, or to the first thing that must not be. Once.
  void run();
  // What must never be, as sentences; empty when the run was as it should be.
  const std::vector<std::string>& faults() const { return faults_; }
  const Figures& figures() const { return figures_; }

 private:
  // The parts of a run that have random choices of their own, so that leaving one out changes the others little.
  enum class Stream : std::uint8_t { kShape, kNetwork, kTransfer, kIncident };
  // How this run's world behaves when nothing is wrong.
  struct Shape {
    ProtocolOptions protocol;
    Duration latency{};   // of a message, about
    Duration lateness{};  // of a timer, at most
    Duration span{};      // in which all transfers begin
    std::uint64_t abort_one_in = 8;
    std::uint64_t write_pace = 1;  // a write takes so many latencies
    std::uint32_t tokens_max = 0;
    std::vector<std::string> transports;
    Blocks::Size size;
  };
  struct Event {
    enum class Kind : std::uint8_t {
      kArrival,    // connection, side
      kWrite,      // number
      kAnswer,     // rank: of a directory
      kGone,       // rank
      kTick,       // rank
      kBegin,      // transfer
      kAdmit,      // transfer, rank
      kSend,       // transfer, rank
      kWithdraw,   // transfer, rank
      kCancel,     // transfer, rank
      kAwait,      // attempt, rank
      kReceive,    // attempt, rank
      kAbandon,    // attempt, rank
      kDecline,    // attempt, rank
      kRetry,      // attempt
      kIncident,   // its number
      kGoOn,       // rank
      kRoom,       // rank
      kStart,      // engine
      kEndLeave,   // engine
      kDirectory,  // engine
    };
    Instant at{};
    std::uint64_t order = 0;
    Kind kind{};
    std::uint32_t where = 0;  // rank, engine or side
    std::uint64_t what = 0;
    bool operator>(const Event& other) const { return std::pair(at, order) > std::pair(other.at, other.order); }
  };
  using Kind = Event::Kind;
  struct Engine {
    std::string name;
    std::vector<std::uint32_t> ranks{};  // places
  };
  struct Transfer {
    std::uint32_t producer = 0;
    TokenRange tokens;
    Choice choice = Choice::kConsecutive;
    std::set<std::uint32_t> ranks_sent{};  // places that have sent or withdrawn it
  };
  // One consumer engine's request for a transfer.
  struct Attempt {
    std::uint32_t transfer = 0;
    std::uint32_t consumer = 0;
    std::uint32_t first = 0;  // token
    std::uint32_t ranks_ended = 0;
    std::set<std::uint32_t> ranks_asked{};  // places that have received or declined it
    bool has_failed = false;
    bool is_abandoned = false;
    bool is_retry = false;
  };

  Random stream(Stream part, std::uint64_t index = 0) const;
  static Shape choose_shape(Random random);
  bool has(Trouble trouble, Random& random, std::uint64_t one_in);
  void count(Trouble trouble) { ++figures_.troubles[static_cast<std::size_t>(trouble)]; }
  Rank& rank(std::uint32_t place) { return *ranks_[place]; }

  void add_engines();
  void push(Instant at, Kind kind, std::uint32_t where, std::uint64_t what = 0);
  void push_soon(Duration latency, Kind kind, std::uint32_t where, std::uint64_t what = 0);
  void push_after(Instant then, Duration latency, Kind kind, std::uint32_t where, std::uint64_t what);
  bool run_events();
  void happen(const Event& event);
  bool defer(const Event& event);
  void print_lines();

  // Schedule.
  void on_sent(Connection& connection, Side to) override;
  void on_write(Write& write) override;
  void on_asked(Rank& rank) override;
  void on_gone(Rank& rank) override;
  void on_stepped(Rank& rank) override;
  void on_stopped(Rank& rank) override;
  void on_ended(Rank& rank, const RequestId& request, bool is_complete) override;

  void arrive(const Event& event);
  void move_write(const Event& event);
  void tick(const Event& event);

  // simulation_engines.cc
  void begin(std::uint32_t transfer);
  std::uint64_t add_attempt(const Attempt& attempt);
  void ask_for(std::uint64_t attempt, Random& random, Duration wait);
  void send(const Event& event);
  void await(const Event& event);
  void receive(const Event& event);
  void decline(const Event& event);
  void end_part(std::uint64_t attempt, bool is_complete);
  void probe();
  Duration skew(Random& random) const;
  static Duration part_of(Duration whole, Random& random);
  std::uint32_t any_block(const Rank& one);

  // simulation_incidents.cc
  void happen_incident(std::uint64_t number);
  void cut(Random& random);
  void part(Random& random);
  void lose_peer(Random& random);
  void fill(Random& random);
  void kill(std::uint32_t engine, Random& random);
  void end_process(std::uint32_t engine, Instant restart);
  void stop(Random& random);
  void stop_at_post(Random& random);
  void leave(Random& random);
  void end_leave(const Event& event);
  void shut_directory(Random& random);
  void set_troubled(std::uint32_t engine, Instant until);
  Connection* any_connection(Random& random);
  Rank& any_rank(Random& random, bool is_producer);
  std::uint32_t any_engine(Random& random, bool is_producer) const;
  Duration any_while(Random& random) const;
  // The engines are apart until then.
  Instant apart_until(const Connection& connection) const;

  const Scenario scenario_;
  const Print print_;
  const Shape shape_;
  World world_;
  Random network_;
  std::vector<Rank*> ranks_;                   // by place
  std::vector<Engine> engines_;                // producers, then consumers
  std::vector<std::uint32_t> engine_of_;       // by place
  std::vector<Instant> goes_on_;               // by place: when a stopped process does
  std::vector<std::optional<Instant>> ticks_;  // by place: of the event that is to come
  std::vector<Transfer> transfers_;
  std::unordered_map<std::uint64_t, Attempt> attempts_;
  std::uint64_t attempt_last_ = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Instant> apart_;  // consumer and producer engine
  std::vector<Event> events_;                                         // a heap
  std::uint64_t event_last_ = 0;
  std::uint64_t events_done_ = 0;
  bool is_calm_ = false;  // nothing goes wrong any more
  Figures figures_;
  std::vector<std::string> faults_;
};

}  // namespace kvpush::sim
