#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/protocol/action.h"
#include "kvpush/protocol/consumer.h"
#include "kvpush/protocol/options.h"
#include "kvpush/protocol/producer.h"
#include "kvpush/wire/message.h"
#include "tests/protocol/blocks.h"

namespace kvpush::testing {

// The two kinds of transport there are, by what ends a write whose fate is open.
inline constexpr const char* kFencing = "fencing";  // the target's disconnect; failed writes may land until then
inline constexpr const char* kPlain = "plain";      // the writer: its completion, or its death

struct WorldOptions {
  std::vector<std::string> transports{kFencing};
  ProtocolOptions protocol{};
  // Leases are renewed as if the network took no time for that, and without a line, unless something else is under way
  // on the same connection: for conversations about other things.
  bool renews_quietly = false;
};

// A request of an engine that has not ended.
struct LocalRequest {
  TransferId transfer_id;
  TokenRange tokens;
  Blocks::Held held;
};

// One rank of an engine, which is either a producer or a consumer here.
struct Rank {
  std::string name;  // "P", or "P0" and "P1" where the engine has two
  std::string engine;
  RankName id;
  bool is_alive = true;
  bool is_full = false;     // its transport takes no writes for now
  bool is_stopped = false;  // the process stands still, as after SIGSTOP
  Blocks blocks;
  std::optional<Producer> producer{};
  std::optional<Consumer> consumer{};
  std::map<RequestId, LocalRequest> requests{};
  std::size_t complete_count = 0;
  std::size_t failed_count = 0;
};

enum class Side : std::uint8_t { kConsumer, kProducer };

// A control connection with all that is under way on it, and the data path that its session made.
struct Connection {
  struct Opened {};
  struct Closed {};
  struct Said {
    Message message;
    Instant heard{};  // of the speaker's end
  };
  using Arrival = std::variant<Opened, Said, Closed>;
  struct End {
    Rank* rank = nullptr;
    std::deque<Arrival> arriving;
    // The producer's latest moment of which this end has proof that the consumer lived after it.
    Instant heard{};
    bool is_closed = false;
    std::optional<Peer> peer;
  };

  ConnectionId id;
  End consumer;
  End producer;
  std::uint32_t transport = 0;  // of the producer's peer
  bool is_fenced = false;       // nothing written through it lands any more

  End& end(Side side) { return side == Side::kConsumer ? consumer : producer; }
  End& other(Side side) { return side == Side::kConsumer ? producer : consumer; }
};

// A batch on its way.
struct Write {
  std::uint64_t number = 0;
  Connection* connection = nullptr;
  WriteToken token;
  struct Piece {
    Descriptor copy;
    Holder source = kNobody;  // who held the blocks when it was posted
    Holder target = kNobody;
    std::vector<std::byte> bytes{};  // once they have left the producer's memory, until they land
  };
  std::deque<Piece> pieces{};  // that have not landed
  bool is_cut = false;         // the producer disconnected the peer: it can only fail
  bool is_astray = false;      // it has failed at the producer, and its bytes are still in the network
};

// Engines whose ranks talk to each other through the protocol machines alone, with real bytes and virtual time.
//
// Job: carries out what the machines want, offers what may happen next as verbs, and checks at every step that no byte
//      lands in or is read from a block that was given back, that nothing is posted without a live lease, that requests
//      end once, and that complete means equal.
// Not here: the order in which things happen. A transcript or a seed chooses.
// Thread: value type.
class World {
 public:
  explicit World(WorldOptions options, std::uint64_t seed = 1);

  enum class Role : std::uint8_t { kProducer, kConsumer };
  struct Engine {
    std::string name;
    Role role = Role::kConsumer;
    std::uint32_t rank_count = 1;
    std::string dtype = "bfloat16";
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
  void cancel(Rank& producer, const RequestId& request);
  void withdraw(Rank& producer, const TransferId& transfer_id);
  void drain(Rank& rank);

  // Time, to the next deadline of anybody or by a duration with all deadlines in it.
  std::optional<Instant> deadline() const;
  void advance_to(Instant then);
  Instant now() const { return now_; }

  // Messages and answers of directories.
  std::vector<std::pair<Connection*, Side>> arrivals();
  void deliver(Connection& connection, Side side);
  // Answers under way; behind one for a rank that is stopped they wait.
  std::size_t resolves() const {
    return resolving_.empty() || resolving_.front().first->is_stopped ? 0 : resolving_.size();
  }
  void resolve();
  // Everything that arrives, answers included, until nothing does. Writes stay where they are.
  void deliver_all(const std::string& only_to = "");
  // A connection that the consumer's machine knows nothing of, for say().
  void open(Rank& consumer, Rank& producer);
  // A message that its rank never meant to send, on its newest connection to `to`; it arrives at once. Hello is
  // completed with who speaks.
  void say(const std::string& from, const std::string& to, const Message& message);

  // Writes.
  std::list<Write>& writes() { return writes_; }
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
  void set_directory(const std::string& engine, bool is_up);
  // The rank cannot connect over the transport.
  void set_reachable(const std::string& rank, const std::string& transport, bool is_reachable);

  std::list<Connection>& connections() { return connections_; }
  void note(std::string line) { lines_.push_back(std::move(line)); }
  // What happened since the last call, one line each.
  std::vector<std::string> take_lines();
  // What must never be, as sentences.
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  template <class Step>
  void step(Rank& rank, Step on);
  void post(Rank& producer);
  void renew_quietly();
  void perform(Rank& rank, const Action& action, Actions& more);
  void dial(Rank& rank, const Dial& action);
  void send(Rank& rank, const SendMessage& action);
  void close(Rank& rank, ConnectionId id);
  void connect(Rank& rank, const ConnectPeer& action, Actions& more);
  void disconnect(Rank& rank, Peer peer);
  void tell(Rank& rank, const EngineEvent& event);
  void start_machine(Rank& rank, std::uint64_t incarnation);
  void end_write(Write& write, std::optional<Error> error);
  void leave_memory(Write& write);
  void check_ended(Rank& rank, const LocalRequest& request, Side side, bool is_complete);
  Connection* find(ConnectionId id);
  Connection* find(const Rank& rank, Peer peer);
  Rank& owner_of(std::uint64_t address);
  bool is_plain(const Connection& connection) const { return !views_[connection.transport].disconnect_fences; }

  const WorldOptions options_;
  std::vector<TransportView> views_;
  std::vector<Engine> engines_;
  std::list<Rank> ranks_;
  std::list<Connection> connections_;
  std::list<Write> writes_;
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
  std::vector<std::string> lines_;
  std::vector<std::string> faults_;
};

}  // namespace kvpush::testing
