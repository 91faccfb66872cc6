#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/layout/block_table.h"
#include "kvpush/protocol/turns.h"
#include "kvpush/wire/message.h"

namespace kvpush::sim {

// What one run of a producer rank has said and heard of registrations, read off its messages.
//
// Job: says when a message contradicts an earlier one: a registration that ends in two ways, an outcome forgotten
//      before Done; says what must not be posted any more; and knows which consumer ranks have ended a transfer.
// Not here: memory. World compares bytes.
// Owner: Rank, by value.
// Thread: value type.
class ProducerBook {
 public:
  struct Talk {
    ConsumerKey consumer;
    std::uint32_t rank_count = 1;  // of the consumer
    ConnectionId connection;
  };
  // Outcomes may be forgotten when nothing was heard of a consumer for that long.
  explicit ProducerBook(Duration outcome_timeout) : outcome_timeout_(outcome_timeout) {}

  void heard(const Talk& talk, const Message& message, Instant now);
  // What is wrong with it, if anything.
  std::optional<std::string> said(const Talk& talk, const Message& message);

  // A batch is posted in a session, into this block of the consumer's: the registration that must not be written any
  // more, if it is one's.
  std::optional<RegistrationNumber> stopped_at(const Talk& talk, BlockId block) const;

  // Every rank of some consumer has its part of the transfer or declined it.
  bool is_complete(const TransferId& transfer_id) const;
  // The last Register or Unwanted for it.
  std::optional<Instant> last_asked(const TransferId& transfer_id) const;
  // A consumer rank has it in its queue, and said so on a connection for which `is_open` holds.
  bool is_expected(const TransferId& transfer_id, const std::function<bool(ConnectionId)>& is_open) const;
  // Some consumer rank had it in its queue, perhaps until its session was lost.
  bool was_expected(const TransferId& transfer_id) const;
  void close(const TransferId& transfer_id) { transfers_.erase(transfer_id); }

 private:
  enum class Outcome : std::uint8_t { kOpen, kDelivered, kFailed, kRevoked };
  struct Entry {
    TransferId transfer_id;
    BlockTables tables;
    ConnectionId heard_in;
    Outcome outcome = Outcome::kOpen;
    bool is_stopped = false;  // revoked or failed: what is posted may end
    bool is_quiet = false;    // and has ended
    ConnectionId told_in;
  };
  struct Consumer {
    std::map<RegistrationNumber, Entry> entries;
    Instant heard{};
  };
  struct Transfer {
    Instant asked{};
    struct Ranks {
      std::uint32_t count = 0;
      std::set<std::uint32_t> ended;
    };
    std::map<Incarnation, Ranks> consumers;
    bool was_expected = false;
    std::map<ConsumerKey, ConnectionId> expected;  // in which session
  };

  std::optional<std::string> end(const Talk& talk, RegistrationNumber number, Outcome outcome, bool is_quiet);
  std::optional<std::string> revoked(const Talk& talk, RegistrationNumber number);
  static void forget(Consumer& consumer, RegistrationNumber up_to);
  void rank_ended(const Talk& talk, const TransferId& transfer_id);

  Duration outcome_timeout_;
  std::map<ConsumerKey, Consumer> consumers_;
  std::unordered_map<TransferId, Transfer> transfers_;
};

}  // namespace kvpush::sim
