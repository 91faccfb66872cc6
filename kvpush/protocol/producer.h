#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvpush/base/descriptor.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/plan/plan.h"
#include "kvpush/protocol/action.h"
#include "kvpush/protocol/command.h"
#include "kvpush/protocol/deadlines.h"
#include "kvpush/protocol/lease.h"
#include "kvpush/protocol/options.h"
#include "kvpush/protocol/turns.h"
#include "kvpush/wire/message.h"

namespace kvpush {

// What to post next. The descriptors are valid until the producer's next call.
struct Batch {
  Peer peer;
  WriteToken token;
  std::span<const Descriptor> descriptors;
};

// How often each thing happened since the start; gauges say how many there are now.
struct ProducerCounters {
  std::uint64_t sessions_started = 0;
  std::uint64_t sessions_refused = 0;
  std::uint64_t sessions_lost = 0;
  std::uint64_t sessions_silent = 0;  // of those lost: the consumer answered nothing for a lease
  std::uint64_t leases_expired = 0;   // while something waited to be posted
  std::uint64_t registrations = 0;
  std::uint64_t registrations_delivered = 0;
  std::uint64_t registrations_failed = 0;
  std::uint64_t registrations_revoked = 0;
  std::uint64_t sends = 0;
  std::uint64_t sends_failed = 0;  // ended with an error, kTimeout (nobody asked) included
  std::uint64_t unwanted = 0;
  std::uint64_t expects = 0;
  std::uint64_t expects_refused = 0;  // of those: too many are kept already
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
  std::size_t expected = 0;  // transfers for which a consumer has a request in its queue
  std::size_t admitted = 0;  // prefills under way, as far as the engine told
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
// Invariant: nothing is posted for a registration that has ended or was revoked, without a live lease, or from blocks
//            given back.
class Producer {
 public:
  // `layout` has passed validate().
  Producer(RankName self, RankLayout layout, std::vector<TransportView> transports, ProtocolOptions options);

  // A peer connected; its session must be ready within session_limit.
  void on_accepted(ConnectionId connection, Instant now);
  // A peer's message on an accepted connection. The first must be Hello. Messages of connections that were closed by
  // this machine are ignored.
  void on(ConnectionId connection, const Message& message, Instant now, Actions& out);
  // The connection is gone. kBadMessage: its bytes were no messages.
  void on_closed(ConnectionId connection, Instant now, Actions& out, const Error& why = kConnectionEnded);
  // The answer to ConnectPeer.
  void on_peer(ConnectionId connection, Result<Peer> peer, Instant now, Actions& out);
  void on_peer_lost(Peer peer, Instant now, Actions& out);

  // kFull when kRequestsMax are held; kBusy when a request or transfer of that name is held already; kBadParams when
  // the transfer id is empty or too long.
  Result<void> on(const Send& command, Instant now, Actions& out);
  // Ignored when kRequestsMax prefills are under way: consumers then hear of it with Send.
  void on(const Admit& command, Actions& out);
  void on(const Cancel& command, Instant now, Actions& out);
  void on(const Withdraw& command, Instant now, Actions& out);

  // The next batch to post, fair between peers and registrations; nothing when there is none or all have as much in
  // flight as allowed. Everything that permits the write is checked here, so `now` must be the time of this call, and
  // the batch must be posted right away. Registrations whose lease is not live wait until it is renewed.
  std::optional<Batch> next_batch(Instant now);
  // The batch could not be posted for now (kFull): it will be offered again.
  void put_back(WriteToken token);
  // The batch ended, or could not be posted at all.
  void on_written(WriteToken token, std::optional<Error> error, Instant now, Actions& out);

  std::optional<Instant> deadline() const { return deadlines_.next(); }
  // What time alone brings about.
  void tick(Instant now, Actions& out);

  // Draining: sessions of consumers that are not known yet, registrations and requests are refused with kStopped,
  // sessions hear Goodbye. Registrations that wait for a request fail, and requests that wait for a registration end.
  void drain(Instant now, Actions& out);
  // No registration and no held request is left.
  bool idle() const;
  // Every consumer that has a session has said that it knows how its registrations ended.
  bool is_heard() const;

  const ProducerCounters& counters() const { return counters_; }
  ProducerGauges gauges() const;
  // The requests whose blocks are held, for the transfers page.
  struct Held {
    RequestId request;
    TransferId transfer_id;
    std::uint32_t tokens = 0;
    std::string consumer;  // as in SendEnded
    Instant offered{};
    std::size_t registrations = 0;
  };
  std::vector<Held> held() const;

 private:
  enum class SessionState : std::uint8_t { kNew, kWelcomed, kConnecting, kReady };
  struct Session {
    SessionState state = SessionState::kNew;
    Hello hello;
    std::optional<PairPlan> plan;
    std::uint32_t transport = 0;
    std::optional<Peer> peer;
    Lease lease;
    bool has_lapsed = false;             // the lease, and something waited for it
    std::set<RegistrationKey> unleased;  // whose turn came while the lease was not live
  };
  // What a consumer rank's messages refer to; outlives its sessions until outcome_timeout.
  struct ConsumerRank {
    SessionNumber session;
    std::optional<ConnectionId> connection;
    RegistrationNumber registration_last;
    std::map<RegistrationNumber, Message> outcomes;  // Delivered or Failed, until Done
    std::set<TransferId> expected;                   // in its queue, while it has a session
    RegistrationNumber done;                         // the last Done: what ends later up to it is not asked for
  };
  enum class RegistrationState : std::uint8_t {
    kWaiting,   // for the local request
    kWriting,   // batches are posted
    kStopping,  // nothing more is posted; posted batches end
  };
  struct Registration {
    RegistrationState state = RegistrationState::kWaiting;
    ConnectionId connection;  // of the session it was made in
    Peer peer;
    TransferId transfer_id;
    TokenRange tokens;
    BlockTables tables;  // until it is matched
    std::vector<Run> runs;
    Cursor cursor;
    std::uint64_t bytes = 0;
    std::size_t in_flight = 0;
    bool revoked = false;
    std::optional<ErrorCode> failure;
    bool failure_told = false;  // while batches were in flight: Quiet follows when the last has ended
    SendingTimes times;
  };
  struct Transfer {
    std::optional<Send> send;             // the local request's KV, once complete
    std::optional<ErrorCode> ending;      // the request ends with this once no batch reads its blocks
    std::optional<Incarnation> consumer;  // the engine it is bound to
    std::string consumer_id;              // its engine id, for people
    std::optional<Instant> left;          // since when its consumer is lost or has revoked; not before Send
    std::uint32_t rank_count = 0;         // of the consumer
    std::set<std::uint32_t> ranks_ended;  // consumer ranks that have their part or declined it
    std::set<std::uint32_t> ranks_left;   // those that were lost or gave up, and have not come again
    std::set<RegistrationKey> registrations;
    std::uint64_t bytes = 0;
    SendingTimes times;
  };
  struct PostedBatch {
    RegistrationKey registration;
    Peer peer;
    Cursor before;
  };
  // Deadlines, by what they end: one of the fields says of which.
  struct DeadlineKey {
    enum class Kind : std::uint8_t { kSessionStart, kRenew, kMatch, kDrain, kHold, kForget, kLoss, kOutcomes } kind{};
    ConnectionId connection{};
    RegistrationKey registration{};
    TransferId transfer_id{};
    auto operator<=>(const DeadlineKey&) const = default;
  };
  using Kind = DeadlineKey::Kind;

  // producer_session.cc
  void on(ConnectionId connection, Session& session, const Hello& hello, Instant now, Actions& out);
  void on(ConnectionId connection, Session& session, const Assign& assign, Instant now, Actions& out);
  void on(ConnectionId connection, Session& session, const Register& message, Instant now, Actions& out);
  void on(ConnectionId connection, const Session& session, const Revoke& message, Instant now, Actions& out);
  void on(const Session& session, const Unwanted& message, Instant now, Actions& out);
  void on(ConnectionId connection, Session& session, const Expect& message, Instant now, Actions& out);
  void on(const Session& session, const Done& message);
  void on(ConnectionId connection, Session& session, const Renewed& message, Instant now, Actions& out);
  void ask_for_renewal(ConnectionId connection, Session& session, Instant now, Actions& out);
  // There is a registration, or a transfer is expected: from now on the lease is kept alive.
  void need_lease(ConnectionId connection, Session& session, Instant now, Actions& out);
  // Of a lease that is needed: asks for it when that is due, or gives the session up.
  void keep_lease(ConnectionId connection, Session& session, Instant now, Actions& out);
  bool needs_lease(const ConsumerKey& consumer) const;
  // Of a registration that has ended: it waits for no lease any more.
  void release_lease(const RegistrationKey& key);
  // Nobody needs the lease any more if what has just ended was the last.
  void rest_lease(const ConsumerKey& consumer);
  // Its tables are planned, or not needed any more.
  void forget_tables(Registration& registration);
  // Tells the peer why and ends the session.
  void refuse(ConnectionId connection, ErrorCode code, std::string text, Instant now, Actions& out);
  // A session is about to end because one side refused something.
  void count_end(const Session& session);
  // A ready session is about to end for another reason.
  void note_loss(const Session& session, std::string_view why, Actions& out);
  // Ends the session whose data endpoint this is, if it has not ended before.
  void lose_peer(Peer peer, std::string_view why, Instant now, Actions& out);
  void end_session(ConnectionId connection, Instant now, Actions& out);

  // producer_transfer.cc
  Result<Transfer*> bind(const TransferId& transfer_id, const RankName& consumer);
  // Another engine may take over: nothing is being written, and a rank that needs its part has gone or never came.
  bool is_free(const Transfer& transfer) const;
  static void note_left(Transfer& transfer, Instant at);
  void start(const RegistrationKey& key, Registration& registration, Transfer& transfer, Instant now, Actions& out);
  void fail_registration(const RegistrationKey& key, ErrorCode code, Instant now, Actions& out);
  void stop_posting(const RegistrationKey& key, Registration& registration, Instant now);
  void settle(const RegistrationKey& key, Instant now, Actions& out);
  void end_registration(const RegistrationKey& key, bool delivered, Instant now, Actions& out);
  void rank_ended(const TransferId& transfer_id, std::uint32_t rank, Instant now, Actions& out);
  void end_request(const TransferId& transfer_id, ErrorCode code, Instant now, Actions& out);
  void settle_transfer(const TransferId& transfer_id, Instant now, Actions& out);
  void close_transfer(const TransferId& transfer_id, ErrorCode told, Instant now);
  // What was declined before Send, by another engine or by this rank, says nothing of who asks for it now.
  void forget_declines(const ConsumerKey& consumer, const TransferId& transfer_id);
  // The transfer is not expected by this consumer rank any more.
  void forget_expectation(const ConsumerKey& consumer, const TransferId& transfer_id, Instant now, Actions& out);
  // By an engine other than this one.
  bool is_expected_elsewhere(Incarnation consumer, const TransferId& transfer_id) const;
  void tell_admitted(const TransferId& transfer_id, Actions& out);
  // Whoever asked for the transfer or expected it was last heard of then, or gave up.
  void note_loss(const TransferId& transfer_id, Instant last_heard, Instant now, Actions& out);
  bool forget_loss(const TransferId& transfer_id);
  // Keeps the outcome of a registration until Done.
  void keep(const RegistrationKey& key, const Message& outcome);
  // Sends to the consumer rank's newest session; false if it has none.
  bool answer(const RegistrationKey& key, const Message& message, Actions& out);
  void cut(Peer peer, Actions& out);

  const RankName self_;
  const RankLayout layout_;
  const std::vector<TransportView> transports_;
  const ProtocolOptions options_;

  std::unordered_map<ConnectionId, Session> sessions_;
  std::map<ConsumerKey, ConsumerRank> consumers_;
  std::map<RegistrationKey, Registration> registrations_;
  std::unordered_map<TransferId, Transfer> transfers_;
  std::unordered_map<RequestId, TransferId> requests_;  // whose blocks are held
  // What registrants hear of transfers that are over; at most kRequestsMax, any of them gives way to a new one.
  std::unordered_map<TransferId, ErrorCode> closed_;
  std::unordered_map<TransferId, std::set<ConsumerKey>> expected_;
  std::set<TransferId> admitted_;  // neither sent nor withdrawn yet
  // Their consumers were lost, or revoked, before Send; at most kRequestsMax, any of them gives way to a new one.
  std::set<TransferId> lost_;
  std::size_t spans_waiting_ = 0;  // in tables
  Turns turns_;
  std::set<Peer> closing_;  // their sessions are gone, their last batches are in flight
  std::unordered_map<WriteToken, PostedBatch> posted_;
  std::vector<Descriptor> batch_;
  WriteToken token_last_;
  Deadlines<DeadlineKey> deadlines_;
  bool draining_ = false;
  ProducerCounters counters_;
};

}  // namespace kvpush
