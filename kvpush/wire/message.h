// The control messages of a session, as plain structs. C is the consumer rank, P the producer rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/layout/assignment.h"
#include "kvpush/layout/block_table.h"
#include "kvpush/layout/layout.h"

namespace kvpush {

// Grows when a peer of the older version could misunderstand.
inline constexpr std::uint32_t kProtocolVersion = 3;

// Who speaks: one rank of one run of an engine.
struct RankName {
  std::string engine_id;
  Incarnation incarnation;
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;
  bool operator==(const RankName&) const = default;
};

// One transport that the speaker can use, with the address for the other side's Transport::connect().
struct TransportOffer {
  std::string name;
  std::vector<std::byte> address;
  bool operator==(const TransportOffer&) const = default;
};

// C→P, first message. `session` is greater than that of every earlier session of this incarnation and rank.
struct Hello {
  std::uint32_t version = kProtocolVersion;
  RankName from;
  SessionNumber session;
  RankLayout layout;
  std::vector<TransportOffer> transports;
  bool operator==(const Hello&) const = default;
};

// P→C, the answer to Hello.
struct Welcome {
  std::uint32_t version = kProtocolVersion;
  RankName from;
  RankLayout layout;
  std::vector<TransportOffer> transports;
  bool operator==(const Welcome&) const = default;
};

// C→P, what P writes for C in this session and over which transport. Sent again with the next transport when P
// refused with kUnavailable.
struct Assign {
  Assignment shares;
  std::string transport;
  std::vector<std::byte> address{};  // C's, now that it has connected; empty: that of Hello
  bool operator==(const Assign&) const = default;
};

// P→C, the session is ready.
struct Assigned {
  bool operator==(const Assigned&) const = default;
};

// Both ways, instead of the next message of the session's start; the text names what differs.
struct Refused {
  ErrorCode code = ErrorCode::kBadMessage;
  std::string text;
  bool operator==(const Refused&) const = default;
};

// C→P, the destination of `tokens` is ready: write them into these blocks. The range may be empty for this rank pair.
struct Register {
  RegistrationNumber registration;
  TransferId transfer_id;
  TokenRange tokens;
  BlockTables tables;
  bool operator==(const Register&) const = default;
};

// P→C, writes for the registration begin.
struct Writing {
  RegistrationNumber registration;
  bool operator==(const Writing&) const = default;
};

// What P did, as times before it sent Delivered: clocks of two machines are never compared.
struct SendTimes {
  Duration since_offered{};     // the engine had finished the prefill
  Duration since_matched{};     // registration and request had met
  Duration since_first_post{};  // first batch posted
  Duration since_last_post{};   // last batch posted
  bool operator==(const SendTimes&) const = default;
};

// P→C, every assigned byte is visible in C's memory. Ends the registration.
struct Delivered {
  RegistrationNumber registration;
  std::uint64_t bytes = 0;
  SendTimes times;
  bool operator==(const Delivered&) const = default;
};

// P→C, it will not be delivered. Ends the registration; if not quiescent, posted writes may still land until Quiet or
// a fence of C's own.
struct Failed {
  RegistrationNumber registration;
  ErrorCode code = ErrorCode::kAborted;
  bool quiescent = true;
  bool operator==(const Failed&) const = default;
};

// P→C, follows Failed{quiescent = false} when no posted write of the registration can land any more.
struct Quiet {
  RegistrationNumber registration;
  bool operator==(const Quiet&) const = default;
};

// C→P, stop. Always answered: with the outcome if there is one that C has not acknowledged, then with Revoked once no
// posted write of the registration exists. Also for registrations P does not know.
struct Revoke {
  RegistrationNumber registration;
  bool operator==(const Revoke&) const = default;
};

// P→C.
struct Revoked {
  RegistrationNumber registration;
  bool operator==(const Revoked&) const = default;
};

// C→P, this consumer rank needs nothing of the transfer.
struct Unwanted {
  TransferId transfer_id;
  bool operator==(const Unwanted&) const = default;
};

// C→P, the outcomes of all registrations up to this number have been received: forget them.
struct Done {
  RegistrationNumber up_to;
  bool operator==(const Done&) const = default;
};

// C→P, a request for the transfer is queued here: keep its KV until this rank registers for it, declines it or loses
// its session, at most ProtocolOptions::hold_limit. Binds the transfer to nobody. Answered with Admitted.
struct Expect {
  TransferId transfer_id;
  bool operator==(const Expect&) const = default;
};

// P→C, follows Expect, perhaps more than once: the prefill has its blocks and is about to run, or ran, so a destination
// is worth reserving. Also said when P will not keep the KV, or will not have it: a registration hears the reason.
struct Admitted {
  TransferId transfer_id;
  bool operator==(const Admitted&) const = default;
};

// Both ways: draining. Nothing new is registered; what runs may end.
struct Goodbye {
  bool operator==(const Goodbye&) const = default;
};

// P→C, asks for the lease of this session anew. The stamp is P's clock, read before sending.
struct Renew {
  Instant stamp{};
  bool operator==(const Renew&) const = default;
};

// C→P, the answer to each Renew, with its stamp: C was there after that moment of P's clock. It carries no reading of
// C's own clock, since nobody could use one: P must not compare it, and C gives no memory back because time is over.
struct Renewed {
  Instant stamp{};
  bool operator==(const Renewed&) const = default;
};

using Message = std::variant<Hello, Welcome, Assign, Assigned, Refused, Register, Writing, Delivered, Failed, Quiet,
                             Revoke, Revoked, Unwanted, Done, Goodbye, Renew, Renewed, Expect, Admitted>;

// "Hello", "Welcome", ...: for logs, metrics and transcripts.
std::string_view message_name(const Message& message);

}  // namespace kvpush
