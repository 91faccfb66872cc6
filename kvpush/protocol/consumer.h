#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/base/random.h"
#include "kvpush/plan/plan.h"
#include "kvpush/protocol/action.h"
#include "kvpush/protocol/command.h"
#include "kvpush/protocol/deadlines.h"
#include "kvpush/protocol/options.h"
#include "kvpush/wire/message.h"

namespace kvpush {

// What a directory says of a producer engine, as far as sessions need it.
struct ProducerEngine {
  std::string engine_id;
  Incarnation incarnation;
  std::vector<Endpoint> ranks;  // control addresses, by rank
};

// How often each thing happened since the start; gauges say how many there are now.
struct ConsumerCounters {
  std::uint64_t sessions_started = 0;
  std::uint64_t sessions_refused = 0;
  std::uint64_t sessions_unauthenticated = 0;  // not among the refused: no common secret
  std::uint64_t sessions_lost = 0;
  std::uint64_t sessions_silent = 0;  // of those lost: the producer said nothing for a lease
  std::uint64_t links_overdue = 0;    // ended because a proof did not come in time
  std::uint64_t resolves_failed = 0;
  std::uint64_t receives = 0;
  std::uint64_t receives_failed = 0;
  std::uint64_t registrations = 0;
  std::uint64_t revokes = 0;
  std::uint64_t declines = 0;
  std::uint64_t awaits = 0;
  std::uint64_t fences = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bad_messages = 0;
  std::uint64_t late_messages = 0;  // for registrations that are not known any more
};
struct ConsumerGauges {
  std::size_t engines = 0;
  std::size_t sessions_ready = 0;
  std::size_t requests = 0;     // that wait for their KV
  std::size_t awaited = 0;      // transfers that are expected
  std::size_t quarantined = 0;  // ended, but not proven quiescent: their blocks are withheld from the engine
};

// The consumer's half of the protocol for one rank: from the engine's Receive to Ready, whatever peers do.
//
// Job: opens and keeps sessions to every rank of a producer engine, registers destinations, counts what arrives, and
//      ends every request exactly once, after proof that nothing can land any more.
// Not here: sockets, clocks, directories, transports. The agent carries out actions and reports what came of them.
// Owner: Agent, or a test.
// Thread: value type; on the agent role in production.
// Invariant: ReceiveEnded follows one of the proofs of quiescence for each registration of the request.
class Consumer {
 public:
  // `layout` has passed validate(). `random` jitters back-off.
  Consumer(RankName self, RankLayout layout, std::vector<TransportView> transports, ProtocolOptions options,
           Random random);

  // kFull when kRequestsMax wait; kBusy when a request of that name waits already; kBadMessage when the tables do not
  // cover the tokens of a plane, or name a block outside it.
  Result<void> on(const Receive& command, Instant now, Actions& out);
  void on(const Abandon& command, Instant now, Actions& out);
  void on(const Decline& command, Instant now, Actions& out);
  // Ends at once when kRequestsMax are awaited.
  void on(const Await& command, Instant now, Actions& out);

  // The answer to ResolveEngine.
  void on_resolved(const Endpoint& directory, const Result<ProducerEngine>& engine, Instant now, Actions& out);
  // The answer to Dial: the connection being made. on_connected() or on_closed() follows.
  void on_dialled(const Endpoint& directory, std::uint32_t rank, ConnectionId connection);
  void on_connected(ConnectionId connection, Instant now, Actions& out);
  void on(ConnectionId connection, const Message& message, Instant now, Actions& out);
  // kBadMessage: what came from the producer were no messages.
  void on_closed(ConnectionId connection, Instant now, Actions& out, const Error& why = kConnectionEnded);
  // The answer to ConnectPeer. `address` is the transport's, now that it has connected; empty: as it was.
  void on_peer(ConnectionId connection, Result<Peer> peer, Instant now, Actions& out,
               std::vector<std::byte> address = {});
  void on_peer_lost(Peer peer, bool writer_gone, Instant now, Actions& out);

  std::optional<Instant> deadline() const { return deadlines_.next(); }
  void tick(Instant now, Actions& out);

  // Draining: sessions hear Goodbye, new Receives are refused with kStopped, live ones are abandoned with kStopped.
  void drain(Instant now, Actions& out);
  // No request waits.
  bool idle() const { return requests_.empty(); }
  // Whether `connection` was dialled by this machine.
  bool owns(ConnectionId connection) const { return connections_.contains(connection); }
  // Whether writes may arrive now: a registration is live.
  bool expects_writes() const { return !registrations_.empty(); }

  const ConsumerCounters& counters() const { return counters_; }
  ConsumerGauges gauges() const;
  struct Waiting {
    RequestId request;
    TransferId transfer_id;
    Endpoint producer;
    std::uint32_t tokens = 0;
    Instant received{};
    bool registered = false;
    bool writing = false;  // a producer rank has begun
    bool quarantined = false;
  };
  std::vector<Waiting> waiting() const;

 private:
  // One session of a link.
  enum class SessionState : std::uint8_t { kDialling, kGreeting, kWelcomed, kAssigning, kReady };
  struct Session {
    SessionState state = SessionState::kDialling;
    std::optional<ConnectionId> connection;
    Welcome welcome;
    Assignment shares;
    std::uint32_t transport = 0;  // tried now, or in use
    std::optional<Peer> peer;
    std::optional<PairPlan> plan;
    RegistrationNumber done;  // told as Done
    // Registrations made with the rank lack proof, or its engine has yet to say that a prefill is admitted. Until then
    // it asks for its lease again and again, so that silence for a whole lease means that it is lost.
    bool is_awaited = false;
    Instant heard{};  // when its last message came, or since when it is awaited
  };
  // All sessions to one engine: they begin and end together, since every transfer needs each of them.
  enum class LinkState : std::uint8_t { kResolving, kStarting, kReady, kWaiting };
  struct Link {
    LinkState state = LinkState::kResolving;
    ProducerEngine engine;
    std::vector<Session> sessions;                       // by rank of the engine
    std::vector<std::set<RegistrationNumber>> unproven;  // by rank: registrations made with this incarnation
    Duration backoff{};
    std::string trouble;               // the last that the log was told of, since it was ready
    std::optional<ErrorCode> refused;  // while kWaiting: new requests end with this
    bool draining = false;             // the engine said Goodbye
    std::set<RequestId> requests;
    std::size_t awaits = 0;         // whose AwaitEnded was not said
    std::set<TransferId> declines;  // to be told when it is ready
  };
  enum class PartState : std::uint8_t {
    kRegistered,
    kRevoking,   // Revoke was sent, or Quiet must follow
    kOpen,       // the session is gone, and what became of the registration is not known
    kDelivered,  // these two are proofs
    kQuiescent,
  };
  // One registration of a request: what one producer rank writes.
  struct Part {
    PartState state = PartState::kRegistered;
    RegistrationNumber number;
    Peer peer;
    std::uint64_t bytes = 0;
    bool is_fenced = false;  // nothing can land any more, whatever became of it
  };
  struct Request {
    Receive receive;
    std::vector<Part> parts;  // by rank of the engine; empty until registered
    Incarnation incarnation;  // of the engine that it is registered with
    bool writing = false;
    std::uint32_t losses = 0;       // sessions that it was registered in
    std::optional<ErrorCode> loss;  // of the last: it is registered again in the next, or fails with this
    std::optional<ErrorCode> failure;
    ReceiveTimes times;
  };
  struct RankOfLink {
    Endpoint directory;
    std::uint32_t rank = 0;
  };
  // Deadlines, by what they end: the other fields say of which.
  struct DeadlineKey {
    enum class Kind : std::uint8_t { kStart, kRetry, kSilence, kPending, kReceive, kProof, kAwait } kind{};
    Endpoint directory{};
    std::uint32_t rank = 0;  // of the engine
    RequestId request{};
    TransferId transfer_id{};
    auto operator<=>(const DeadlineKey&) const = default;
  };
  using Kind = DeadlineKey::Kind;

  // consumer_link.cc
  Link& open_link(const Endpoint& directory, Instant now, Actions& out);
  void resolve(const Endpoint& directory, Link& link, Instant now, Actions& out);
  void on(const RankOfLink& at, const Welcome& message, Instant now, Actions& out);
  void on(const RankOfLink& at, const Assigned& message, Instant now, Actions& out);
  void on(const RankOfLink& at, const Refused& message, Instant now, Actions& out);
  void assign_ranks(const Endpoint& directory, Link& link, Instant now, Actions& out);
  // Tries the session's transports in order of preference, from `first` on.
  void connect_peer(const RankOfLink& at, std::uint32_t first, Instant now, Actions& out);
  // Whatever state the link is in: ends its sessions, proves what can be proven, and tries again later if anybody needs
  // it. `lasting`: the next attempt would fail as well, so those that wait are told.
  void end_link(const Endpoint& directory, ErrorCode code, const std::string& text, bool lasting, Instant now,
                Actions& out);
  // end_link() after telling the peer why.
  void refuse(const RankOfLink& at, ErrorCode code, const std::string& text, bool lasting, Instant now, Actions& out);
  static void tell_all(const Link& link, const Message& message, Actions& out);
  // Tells the engine that this rank needs nothing of the transfer, now or when the link is ready.
  static void decline(Link& link, const TransferId& transfer_id, Actions& out);
  void on_link_ready(const Endpoint& directory, Link& link, Instant now, Actions& out);
  bool fences(Peer peer) const { return transports_[peer.transport].disconnect_fences; }
  // Whether a registration without proof was to be written through it.
  bool is_needed(Peer peer) const;

  void on(const RankOfLink& at, const Admitted& message, Actions& out);
  // What is awaited of the link's engine ends, as far as its engine knows; it is expected again when the link is ready.
  void end_awaits(const Endpoint& directory, Actions& out);
  // Its AwaitEnded, if it has not been told.
  void end_await(const Endpoint& directory, const TransferId& transfer_id, bool& is_told, Actions& out);
  void forget_await(const Endpoint& directory, const TransferId& transfer_id, Actions& out);
  bool is_awaited(const Endpoint& directory) const;

  // From now on the session must not be silent for a lease, until rest_rank() finds no reason any more.
  void await_rank(const RankOfLink& at, Session& session, Instant now);
  void rest_rank(const RankOfLink& at, Link& link);
  // Says Expect to every rank, and waits for Admitted.
  void expect(const Endpoint& directory, Link& link, const TransferId& transfer_id, Instant now, Actions& out);
  void on_silence(const RankOfLink& at, Instant now, Actions& out);

  // consumer_request.cc
  void on(const RankOfLink& at, const Writing& message);
  void on(const RankOfLink& at, const Delivered& message, Instant now, Actions& out);
  void on(const RankOfLink& at, const Failed& message, Instant now, Actions& out);
  void on(const RankOfLink& at, const Quiet& message, Instant now, Actions& out);
  void on(const RankOfLink& at, const Revoked& message, Instant now, Actions& out);
  // Quiet or Revoked: no write of the registration can land any more.
  void on_quiet(const RankOfLink& at, RegistrationNumber number, Instant now, Actions& out);
  // With every rank of the engine that has not delivered its share.
  void register_request(Link& link, const RequestId& id, Instant now, Actions& out);
  // Its session is gone, and so is what it asked for: it waits for the next, or fails.
  void on_loss(const RequestId& id, ErrorCode code, bool may_return, Instant now, Actions& out);
  void fail_request(const RequestId& id, ErrorCode code, Instant now, Actions& out);
  // One part has ended without its bytes, and nothing of it can land.
  void end_part(const RequestId& id, std::uint32_t rank, ErrorCode code, Instant now, Actions& out);
  // Asks for the end of every part that the link's sessions can ask about.
  void revoke(Link& link, const RequestId& id, Instant now, Actions& out);
  // A producer that has been asked, or that owes Quiet, answers in time or its link ends.
  void expect_proof(const RequestId& id, Instant now);
  // The part's outcome is proven: moves it to `state`, tells Done, ends the request if it was the last.
  void settle(const RequestId& id, std::uint32_t rank, PartState state, Instant now, Actions& out);
  // The producer rank may forget outcomes up to the last that is not waited for; said once.
  void tell_done(Link& link, std::uint32_t rank, Actions& out);
  // No registration of the request is without proof; true also before the first.
  bool has_proof(const Request& request) const;
  // Ends a request that has proof, or registers it again.
  void end_if_settled(const RequestId& id, Instant now, Actions& out);
  // The request of a registration that has no proof yet and was made with this rank; others are counted as late.
  std::optional<RequestId> find(const RankOfLink& at, RegistrationNumber number);

  const RankName self_;
  const RankLayout layout_;
  const std::vector<TransportView> transports_;
  const ProtocolOptions options_;
  const PairPlan own_plan_;  // onto itself, to check tables
  Random random_;

  std::map<Endpoint, Link> links_;
  std::unordered_map<ConnectionId, RankOfLink> connections_;
  std::unordered_map<RequestId, Request> requests_;
  std::unordered_map<RegistrationNumber, RequestId> registrations_;  // those without proof
  // Requests in the engine's queue, and whether their AwaitEnded was said. Sorted, so that those of a link are
  // neighbours.
  std::map<std::pair<Endpoint, TransferId>, bool> awaited_;
  std::set<Peer> watched_;  // their sessions are gone; kept to learn of the writer's end
  SessionNumber session_last_;
  RegistrationNumber registration_last_;
  Deadlines<DeadlineKey> deadlines_;
  bool draining_ = false;
  ConsumerCounters counters_;
};

}  // namespace kvpush
