#pragma once

#include <optional>

#include "kvpush/base/instant.h"

namespace kvpush {

// The producer's right to write into a consumer rank's memory, by what one session knows of that consumer's life.
//
// Job: says until when batches may be posted, when to ask for renewal, and when the consumer is silent.
// Not here: messages, timers and clocks. Producer sends Renew and keeps the deadline.
// Owner: a session of Producer, by value.
// Thread: value type.
// Invariant: is_live() only while it is less than term - margin ago that a Renew left which has been answered.
class Lease {
 public:
  Lease() = default;  // of no term: never live
  // The margin is shorter than the term.
  Lease(Duration term, Duration margin);

  // Somebody has something to write, or may have soon: from now on it is kept alive, until rest().
  void need(Instant now);
  void rest() { needed_.reset(); }
  bool is_needed() const { return needed_.has_value(); }

  // A Renew with this stamp leaves. Stamps do not go back.
  void ask(Instant stamp);
  // False when no Renew can have had this stamp: it is earlier than the first one's, or later than the last one's.
  bool answer(Instant stamp);

  // The next batch may be posted at `now`.
  bool is_live(Instant now) const;
  // It is needed and not live, although the consumer has had the time in which it should have been renewed.
  bool has_lapsed(Instant now) const;
  // It is needed, and for a whole term nothing that was asked has been answered.
  bool is_silent(Instant now) const;
  // A Renew should leave.
  bool wants_renewal(Instant now) const;
  // While it is needed: when one of the two above comes true if nothing is heard.
  Instant due() const;

 private:
  // Since when an answer is missing, at the longest.
  Instant unheard_since() const;

  Duration term_{};
  Duration margin_{};
  std::optional<Instant> needed_;       // since
  std::optional<Instant> asked_first_;  // stamps of the first and the last Renew
  std::optional<Instant> asked_;
  std::optional<Instant> answered_;  // the last stamp that came back
};

}  // namespace kvpush
