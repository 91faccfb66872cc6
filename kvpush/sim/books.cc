#include "kvpush/sim/books.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "kvpush/base/overloaded.h"

namespace kvpush::sim {

void ProducerBook::heard(const Talk& talk, const Message& message, Instant now) {
  Consumer& consumer = consumers_[talk.consumer];
  if (now - std::exchange(consumer.heard, now) >= outcome_timeout_) forget(consumer, RegistrationNumber{~0ULL});
  std::visit(Overloaded{[&](const Register& m) {
                          Entry& entry = consumer.entries[m.registration];
                          entry.transfer_id = m.transfer_id;
                          entry.tables = m.tables;
                          entry.heard_in = talk.connection;
                          transfers_[m.transfer_id].asked = now;
                          transfers_[m.transfer_id].expected.erase(talk.consumer);
                        },
                        [&](const Expect& m) {
                          transfers_[m.transfer_id].was_expected = true;
                          transfers_[m.transfer_id].expected[talk.consumer] = talk.connection;
                        },
                        [&](const Unwanted& m) {
                          transfers_[m.transfer_id].asked = now;
                          transfers_[m.transfer_id].expected.erase(talk.consumer);
                          rank_ended(talk, m.transfer_id);
                        },
                        [&](const Revoke& m) {
                          const auto found = consumer.entries.find(m.registration);
                          if (found != consumer.entries.end()) found->second.is_stopped = true;
                        },
                        [&](const Done& m) { forget(consumer, m.up_to); }, [](const auto&) {}},
             message);
}

void ProducerBook::forget(Consumer& consumer, RegistrationNumber up_to) {
  std::erase_if(consumer.entries,
                [&](const auto& entry) { return entry.first <= up_to && entry.second.outcome != Outcome::kOpen; });
}

std::optional<std::string> ProducerBook::said(const Talk& talk, const Message& message) {
  return std::visit(
      Overloaded{[&](const Delivered& m) { return end(talk, m.registration, Outcome::kDelivered, true); },
                 [&](const Failed& m) { return end(talk, m.registration, Outcome::kFailed, m.quiescent); },
                 [&](const Quiet& m) { return end(talk, m.registration, Outcome::kFailed, true); },
                 [&](const Revoked& m) { return revoked(talk, m.registration); },
                 [](const auto&) { return std::optional<std::string>{}; }},
      message);
}

std::optional<std::string> ProducerBook::end(const Talk& talk, RegistrationNumber number, Outcome outcome,
                                             bool is_quiet) {
  auto& entries = consumers_[talk.consumer].entries;
  const auto found = entries.find(number);
  if (found == entries.end()) return std::nullopt;  // Done came in between
  Entry& entry = found->second;
  if (entry.outcome != Outcome::kOpen && entry.outcome != outcome) {
    return fmt::format("registration {} ends in two ways", number.value);
  }
  if (entry.outcome == Outcome::kOpen && outcome == Outcome::kDelivered) rank_ended(talk, entry.transfer_id);
  entry.outcome = outcome;
  entry.told_in = talk.connection;
  entry.is_stopped = true;
  entry.is_quiet = entry.is_quiet || is_quiet;
  return std::nullopt;
}

std::optional<std::string> ProducerBook::revoked(const Talk& talk, RegistrationNumber number) {
  Entry& entry = consumers_[talk.consumer].entries[number];
  entry.is_stopped = true;
  entry.is_quiet = true;
  const bool has_other = entry.outcome == Outcome::kDelivered || entry.outcome == Outcome::kFailed;
  if (!has_other) {
    entry.outcome = Outcome::kRevoked;
    return std::nullopt;
  }
  if (entry.told_in == talk.connection) return std::nullopt;
  return fmt::format("the outcome of registration {} was forgotten before Done", number.value);
}

std::optional<RegistrationNumber> ProducerBook::stopped_at(const Talk& talk, BlockId block) const {
  const auto found = consumers_.find(talk.consumer);
  if (found == consumers_.end()) return std::nullopt;
  const auto holds = [&](const BlockSpan& span) {
    return block.value >= span.first.value && block.value - span.first.value < span.count;
  };
  for (const auto& [number, entry] : found->second.entries) {
    // Once it is quiet, or its session was fenced, its blocks may be another one's.
    if (!entry.is_stopped || entry.is_quiet || entry.heard_in != talk.connection) continue;
    for (const BlockTable& table : entry.tables) {
      if (std::ranges::any_of(table.spans, holds)) return number;
    }
  }
  return std::nullopt;
}

void ProducerBook::rank_ended(const Talk& talk, const TransferId& transfer_id) {
  Transfer::Ranks& ranks = transfers_[transfer_id].consumers[talk.consumer.incarnation];
  ranks.count = talk.rank_count;
  ranks.ended.insert(talk.consumer.rank);
}

bool ProducerBook::is_complete(const TransferId& transfer_id) const {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end()) return false;
  return std::ranges::any_of(found->second.consumers, [](const auto& consumer) {
    return consumer.second.ended.size() == consumer.second.count;
  });
}

std::optional<Instant> ProducerBook::last_asked(const TransferId& transfer_id) const {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end()) return std::nullopt;
  return found->second.asked;
}

bool ProducerBook::is_expected(const TransferId& transfer_id, const std::function<bool(ConnectionId)>& is_open) const {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end()) return false;
  return std::ranges::any_of(found->second.expected, [&](const auto& by) { return is_open(by.second); });
}

bool ProducerBook::was_expected(const TransferId& transfer_id) const {
  const auto found = transfers_.find(transfer_id);
  return found != transfers_.end() && found->second.was_expected;
}

}  // namespace kvpush::sim
