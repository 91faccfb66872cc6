#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/protocol/action.h"
#include "kvpush/protocol/options.h"
#include "kvpush/sim/blocks.h"
#include "kvpush/sim/network.h"
#include "kvpush/sim/rank.h"
#include "kvpush/wire/message.h"

namespace kvpush::sim {

// The two kinds of transport there are, by what ends a write whose fate is open.
inline constexpr const char* kFencing = "fencing";  // the target's disconnect; failed writes may land until then
inline constexpr const char* kPlain = "plain";      // the writer: its completion, or its death

struct WorldOptions {
  std::vector<std::string> transports{kFencing};
  ProtocolOptions protocol{};
  Blocks::Size size{};
  // Leases are renewed as if the network took no time for that, and without a line, unless something else is under way
  // on the same connection: for conversations about other things.
  bool renews_quietly = false;
  bool has_lines = true;  // of what happens
  // With a Schedule: deadlines are acted on at most this late.
  Duration lateness{};
};

// Chooses when things happen where no hand does. Each call names something that must happen some time later, by a verb
// of World; it may be over by then.
//
// Not here: what happens. World knows.
class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual void on_sent(Connection& connection, Side to) = 0;  // deliver()
  virtual void on_write(Write& write) = 0;                    // posted, cut off or astray: land(), complete(), ...
  virtual void on_asked(Rank& rank) = 0;                      // resolve()
  virtual void on_gone(Rank& rank) = 0;                       // notice_gone()
  virtual void on_stepped(Rank& rank) = 0;                    // deadline_of(), tick()
  virtual void on_stopped(Rank& rank) = 0;                    // by stops_at_post: set_stopped()
  virtual void on_ended(Rank& rank, const RequestId& request, bool is_complete) = 0;
};

// Engines whose ranks talk to each other through the protocol machines alone, with real bytes and virtual time.
//
// Job: carries out what the machines want, offers what may happen next as verbs, and checks at every step that no byte
//      lands in or is read from a block that was given back, that nothing is posted without a live lease, that
//      registrations and requests end once and in time, that complete means equal, and that nobody is called silent who
//      was not, and no link ended for an answer that had come.
// Not here: the order in which things happen. A transcript's hand or a Schedule chooses.
// Thread: value type.
class World {
 public:
  // `schedule` outlives the world.
  explicit World(WorldOptions options, std::uint64_t seed = 1, Schedule* schedule = nullptr);

  enum class Role : std::uint8_t { kProducer, kConsumer };
  struct Engine {
    std::string name;
    Role role = Role::kConsumer;
    std::uint32_t rank_count = 1;
    std::string dtype = "bfloat16";
    std::string id{};  // its configured name, if not `name`
  };
  void add(const Engine& engine);
  std::vector<Rank*> ranks_of(const std::string& name);  // of an engine, or the one of that name
  std::vector<Rank*> ranks();

  // What engines ask. False when it was refused, or there are no blocks.
  struct Ask {
    RequestId request;
    TransferId transfer_id;
    TokenRange tokens;
    Choice choice = Choice::kConsecutive;
    std::uint32_t from = 0;  // block
  };
  bool receive(Rank& consumer, const Ask& ask, const std::string& producer);
  bool send(Rank& producer, const Ask& ask);
  void abandon(Rank& consumer, const RequestId& request);
  void decline(Rank& consumer, const TransferId& transfer_id, const std::string& producer);
  void await(Rank& consumer, const TransferId& transfer_id, const std::string& producer);
  void admit(Rank& producer, const TransferId& transfer_id);
  void cancel(Rank& producer, const RequestId& request);
  void withdraw(Rank& producer, const TransferId& transfer_id);
  void drain(Rank& rank);

  // Time, to the next deadline of anybody or by a duration with all deadlines in it.
  std::optional<Instant> deadline() const;
  void advance_to(Instant then);
  Instant now() const { return now_; }
  // The same for one rank at a time; time alone passes with set_now().
  std::optional<Instant> deadline_of(const Rank& rank) const;
  void tick(Rank& rank);
  void set_now(Instant now) { now_ = now; }

  // Messages and answers of directories.
  std::vector<std::pair<Connection*, Side>> arrivals();
  void deliver(Connection& connection, Side side);
  // Answers under way; behind one for a rank that is stopped they wait.
  std::size_t resolves() const {
    return resolving_.empty() || resolving_.front().first->is_stopped ? 0 : resolving_.size();
  }
  void resolve();
  void resolve(Rank& rank);  // its first, if there is one
  // Everything that arrives, answers included, until nothing does. Writes stay where they are.
  void deliver_all(const std::string& only_to = "");
  // A connection that the consumer's machine knows nothing of, for say().
  void open(Rank& consumer, Rank& producer);
  // A message that its rank never meant to send, on its newest connection to `to`; it arrives at once. Hello is
  // completed with who speaks.
  void say(const std::string& from, const std::string& to, const Message& message);

  // Writes.
  std::list<Write>& writes() { return writes_; }
  Write* find_write(std::uint64_t number);
  void land(Write& write, std::size_t pieces);
  void complete(Write& write);
  void fail(Write& write);
  void forget(Write& write);                    // one that is astray is lost for good
  void set_full(Rank& producer, bool is_full);  // its transport takes no more for now
  bool has_live_lease(const Connection& connection) const;

  // Trouble.
  // Both sides find the connection ended; what is under way may be lost with it.
  void cut(Connection& connection, bool is_all_lost);
  void lose_peer(Connection& connection, Side side);
  void kill(const std::string& engine);
  void restart(const std::string& engine);
  // A rank that is stopped hears nothing and does nothing, nor learns what became of its writes; the writes go on.
  void set_stopped(Rank& rank, bool is_stopped);
  std::vector<std::pair<Rank*, Peer>>& gone() { return gone_; }  // writers whose end has not been noticed
  void notice_gone(std::size_t index);
  void notice_gone(Rank& rank);  // one that it has not noticed, if there is one
  void set_directory(const std::string& engine, bool is_up);
  // The rank cannot connect over the transport.
  void set_reachable(const std::string& rank, const std::string& transport, bool is_reachable);

  std::list<Connection>& connections() { return connections_; }
  Connection* find(ConnectionId id);
  // Drops connections that have ended on both sides, with nothing left under way.
  void forget_ended_connections();

  void note(std::string line) { lines_.push_back(std::move(line)); }
  // What happened since the last call, one line each.
  std::vector<std::string> take_lines();
  // What must never be, as sentences.
  const std::vector<std::string>& faults() const { return faults_; }
  // Of ranks at rest: whatever they still hold or know, as sentences.
  std::vector<std::string> remains() const;

 private:
  // What one step of a machine did besides its actions.
  struct Accusation {
    bool is_made = false;     // it has called a peer silent
    bool is_excused = false;  // one of the connections it closed had trouble
    bool is_owed = false;     // on one of them an answer to Revoke, or Quiet, had not come
  };

  template <class MakeLine>
  void trace(MakeLine make_line);
  void fault(std::string text) { faults_.push_back(std::move(text)); }
  template <class Step>
  void step(Rank& rank, Step on);
  void post(Rank& producer);
  void renew_quietly();
  void perform(Rank& rank, const Action& action, Actions& more);
  void dial(Rank& rank, const Dial& action);
  void send(Rank& rank, const SendMessage& action);
  void arrive(Connection& connection, Side to, Connection::Arrival arrival);
  void close(Rank& rank, ConnectionId id);
  void connect(Rank& rank, const ConnectPeer& action, Actions& more);
  void disconnect(Rank& rank, Peer peer);
  void tell(Rank& rank, const EngineEvent& event);
  void answer(Rank& rank, const Endpoint& directory);
  void start_machine(Rank& rank, std::uint64_t incarnation);
  Connection& add_connection(Rank& consumer, Rank& producer);
  void forget_peer(Connection::End& end);
  void lose_connections(Rank& rank);
  void lose_writes(const Rank& rank);
  Write& add_write(Write write);
  template <class Matches>
  void forget_writes(Matches matches);
  void end_write(Write& write, std::optional<Error> error);
  void tell_end(Rank& producer, WriteToken token, std::optional<Error> error);
  void leave_memory(Write& write);
  Connection* find(const Rank& rank, Peer peer);
  Rank& owner_of(std::uint64_t address);
  Instant clock(const Rank& rank) const { return rank.clock.at(now_); }
  bool is_plain(const Connection& connection) const { return !views_[connection.transport].disconnect_fences; }

  // world_checks.cc
  void check_message(Rank& rank, Connection& connection, const Message& message);
  void check_not_stopped(const Rank& producer, const Connection& connection, std::span<const Descriptor> batch);
  void note_outcome(Connection& connection, const Message& message);
  // The consumer hears of the connection again, or closes it.
  void check_silence(const Connection& connection);
  static std::uint64_t times_silent(const Rank& rank);
  static std::uint64_t times_overdue(const Rank& rank);
  // For a whole term nothing has gone wrong with what the other side says.
  bool is_calm(const Connection& connection, Side side) const;
  void check_ended(Rank& rank, const LocalRequest& request, const ReceiveEnded& ended);
  void check_ended(Rank& rank, const LocalRequest& request, const SendEnded& ended);
  void check_writes(const Rank& rank, const LocalRequest& request);
  void check_time(const Rank& rank, const LocalRequest& request, Instant limit);
  void check_counters(const Rank& rank);

  const WorldOptions options_;
  Schedule* const schedule_;
  std::vector<TransportView> views_;
  bool can_always_fence_ = true;
  std::vector<Engine> engines_;
  std::deque<Rank> ranks_;  // by place
  std::list<Connection> connections_;
  std::unordered_map<ConnectionId, Connection*> connections_by_id_;
  std::unordered_map<PeerId, Connection*> connections_by_peer_;
  std::list<Write> writes_;
  std::unordered_map<std::uint64_t, std::list<Write>::iterator> writes_by_number_;
  std::deque<std::pair<Rank*, Endpoint>> resolving_;
  std::vector<std::pair<Rank*, Peer>> gone_;
  std::set<std::string> directories_down_;
  std::set<std::pair<std::string, std::string>> unreachable_;
  Instant now_{};
  std::uint64_t seed_;
  std::uint64_t incarnation_last_ = 0;
  std::uint64_t connection_last_ = 0;
  std::uint64_t write_last_ = 0;
  std::uint32_t peer_last_ = 0;
  Accusation accusation_;  // of the step under way
  std::vector<std::string> lines_;
  std::vector<std::string> faults_;
};

template <class MakeLine>
void World::trace(MakeLine make_line) {
  if (options_.has_lines) note(make_line());
}

}  // namespace kvpush::sim
