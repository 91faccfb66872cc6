#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/plan/plan.h"
#include "kvpush/protocol/action.h"
#include "kvpush/protocol/command.h"
#include "kvpush/protocol/deadlines.h"
#include "kvpush/protocol/options.h"
#include "kvpush/wire/message.h"

namespace kvpush {

// A contiguous copy as transports take it; has the fields of their Descriptor.
struct Copy {
  std::uint64_t local = 0;
  std::uint64_t remote = 0;
  std::uint64_t length_bytes = 0;
  bool operator==(const Copy&) const = default;
};

// What to post next. The copies are valid until the producer's next call.
struct Batch {
  Peer peer;
  WriteToken token;
  std::span<const Copy> copies;
};

// How often each thing happened since the start; gauges say how many there are now.
struct ProducerCounters {
  std::uint64_t sessions_started = 0;
  std::uint64_t sessions_refused = 0;
  std::uint64_t sessions_lost = 0;
  std::uint64_t registrations = 0;
  std::uint64_t registrations_delivered = 0;
  std::uint64_t registrations_failed = 0;
  std::uint64_t registrations_revoked = 0;
  std::uint64_t sends = 0;
  std::uint64_t sends_failed = 0;  // ended with an error, kTimeout (nobody asked) included
  std::uint64_t unwanted = 0;
  std::uint64_t bytes_delivered = 0;
  std::uint64_t writes_failed = 0;
  std::uint64_t bad_messages = 0;
  std::uint64_t late_messages = 0;  // for registrations that are not known any more
};
struct ProducerGauges {
  std::size_t sessions = 0;
  std::size_t registrations = 0;
  std::size_t requests = 0;  // whose blocks are held
  std::size_t transfers = 0;
  std::size_t writes_in_flight = 0;
};

// The producer's half of the protocol for one rank: from registrations and finished prefills to writes and outcomes.
//
// Job: answers sessions, matches registrations with local requests in either order, decides which batch is posted
//      next, and ends every registration and every request exactly once.
// Not here: sockets, clocks, transports. The agent carries out actions, posts what next_batch() gives and reports
//      completions.
// Owner: Agent, or a test.
// Thread: value type; on the agent role in production.
// Invariant: nothing is posted for a registration that has ended or was revoked, or from blocks given back.
class Producer {
 public:
  // `layout` has passed validate().
  Producer(RankName self, RankLayout layout, std::vector<TransportView> transports, ProtocolOptions options);

  // A peer's message on an accepted connection. The first must be Hello.
  void on(ConnectionId connection, const Message& message, Instant now, Actions& out);
  // The connection is gone.
  void on_closed(ConnectionId connection, Instant now, Actions& out);
  // The answer to ConnectPeer.
  void on_peer(ConnectionId connection, Result<Peer> peer, Instant now, Actions& out);
  void on_peer_lost(Peer peer, Instant now, Actions& out);

  // kFull when kRequestsMax are held; kBusy when a request or transfer of that name is held already.
  Result<void> on(const Send& command, Instant now, Actions& out);
  void on(const Cancel& command, Instant now, Actions& out);
  void on(const Withdraw& command, Instant now, Actions& out);

  // The next batch to post at `now`, fair between registrations; nothing when there is none or all have as much in
  // flight as allowed. Everything that permits the write is checked here, so it must be posted right away.
  std::optional<Batch> next_batch(Instant now);
  // The batch could not be posted for now (kFull): it will be offered again.
  void put_back(WriteToken token);
  // The batch ended, or could not be posted at all.
  void on_written(WriteToken token, std::optional<Error> error, Instant now, Actions& out);

  std::optional<Instant> deadline() const { return deadlines_.next(); }
  // What time alone brings about.
  void tick(Instant now, Actions& out);

  // Draining: new sessions and registrations are refused with kStopped, sessions hear Goodbye.
  void drain(Actions& out);
  // No registration and no held request is left.
  bool idle() const;

  const ProducerCounters& counters() const { return counters_; }
  ProducerGauges gauges() const;
  // The requests whose blocks are held, for the transfers page.
  struct Held {
    RequestId request;
    TransferId transfer_id;
    std::uint32_t tokens = 0;
    Instant offered{};
    std::size_t registrations = 0;
  };
  std::vector<Held> held() const;

 private:
  struct ConsumerKey {  // one rank of one run of a consumer engine
    Incarnation incarnation;
    std::uint32_t rank = 0;
    auto operator<=>(const ConsumerKey&) const = default;
  };
  struct RegistrationKey {
    ConsumerKey consumer;
    RegistrationNumber number;
    auto operator<=>(const RegistrationKey&) const = default;
  };
  enum class SessionState : std::uint8_t { kNew, kWelcomed, kConnecting, kReady };
  struct Session {
    SessionState state = SessionState::kNew;
    Hello hello;
    std::optional<PairPlan> plan;
    std::uint32_t transport = 0;
    std::optional<Peer> peer;
  };
  // What a consumer rank's messages refer to; outlives its sessions until outcome_timeout.
  struct ConsumerRank {
    SessionNumber session;
    std::optional<ConnectionId> connection;
    RegistrationNumber registration_last;
    std::map<RegistrationNumber, Message> outcomes;  // Delivered or Failed, until Done
  };
  enum class RegistrationState : std::uint8_t {
    kWaiting,   // for the local request
    kWriting,   // batches are posted
    kStopping,  // no more is posted; posted writes end
  };
  struct Registration {
    RegistrationState state = RegistrationState::kWaiting;
    ConnectionId connection;  // of the session it was made in
    Peer peer;
    TransferId transfer_id;
    TokenRange tokens;
    BlockTables tables;
    std::vector<Run> runs;
    Cursor cursor;
    std::uint64_t bytes = 0;
    std::size_t in_flight = 0;
    bool revoked = false;
    bool write_failed = false;
    bool failure_told = false;
    std::optional<ErrorCode> failure;
    SendingTimes times;
  };
  struct Transfer {
    std::optional<Send> send;  // the local request's KV, once complete
    bool withdrawn = false;
    bool cancelled = false;
    std::optional<Incarnation> bound;  // the consumer engine it belongs to
    std::uint32_t rank_count = 0;      // of that engine
    std::set<std::uint32_t> ranks_ended;
    std::set<RegistrationKey> registrations;
    std::uint64_t bytes_delivered = 0;
    SendingTimes times;
  };
  struct PostedWrite {
    RegistrationKey registration;
    Cursor before;
    std::uint64_t bytes = 0;
  };
  // Deadlines, by what they end.
  struct DeadlineKey {
    enum class Kind : std::uint8_t { kSession, kRegistration, kDrain, kTransfer, kOutcomes } kind{};
    ConnectionId connection;
    RegistrationKey registration;
    TransferId transfer_id;
    auto operator<=>(const DeadlineKey&) const = default;
  };

  void on_hello(ConnectionId connection, Session& session, const Hello& hello, Instant now, Actions& out);
  void on_assign(ConnectionId connection, Session& session, const Assign& assign, Actions& out);
  void on_register(ConnectionId connection, Session& session, const Register& message, Instant now, Actions& out);
  void on_revoke(ConnectionId connection, const RegistrationKey& key, Instant now, Actions& out);
  void on_unwanted(const Session& session, const Unwanted& message, Instant now, Actions& out);
  void refuse(ConnectionId connection, ErrorCode code, std::string text, Actions& out);
  void close_session(ConnectionId connection, Instant now, Actions& out);

  // kBusy, kAborted or kFull when the registration cannot join the transfer.
  Result<Transfer*> bind(const TransferId& transfer_id, const RankName& consumer);
  void start(const RegistrationKey& key, Registration& registration, Transfer& transfer, Instant now, Actions& out);
  void stop(const RegistrationKey& key, Registration& registration, Instant now, Actions& out);
  void fail_registration(const RegistrationKey& key, ErrorCode code, Instant now, Actions& out);
  void settle(const RegistrationKey& key, Registration& registration, Instant now, Actions& out);
  void end(const RegistrationKey& key, Registration& registration, Instant now, Actions& out);
  void rank_ended(const TransferId& transfer_id, std::uint32_t rank, Instant now, Actions& out);
  void settle_transfer(const TransferId& transfer_id, Instant now, Actions& out);
  void end_send(Transfer& transfer, std::optional<ErrorCode> error, Instant now, Actions& out);
  void answer(const RegistrationKey& key, Message message, Actions& out);
  Session* ready_session(ConnectionId connection);

  const RankName self_;
  const RankLayout layout_;
  const std::vector<TransportView> transports_;
  const ProtocolOptions options_;

  std::unordered_map<ConnectionId, Session> sessions_;
  std::map<ConsumerKey, ConsumerRank> consumers_;
  std::map<RegistrationKey, Registration> registrations_;
  std::unordered_map<TransferId, Transfer> transfers_;
  std::unordered_map<RequestId, TransferId> requests_;  // held
  std::deque<RegistrationKey> posting_;                 // registrations with something left to post, in turn
  std::unordered_map<WriteToken, PostedWrite> posted_;
  std::vector<Copy> batch_;
  WriteToken token_next_{1};
  Deadlines<DeadlineKey> deadlines_;
  bool draining_ = false;
  ProducerCounters counters_;
};

}  // namespace kvpush
