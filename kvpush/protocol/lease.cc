#include "kvpush/protocol/lease.h"

#include <algorithm>

#include "kvpush/base/check.h"

namespace kvpush {

namespace {

// Renewals in a term: one may be late or be answered late, and the next still comes before posting has to stop.
constexpr int kRenewalsPerTerm = 3;

}  // namespace

Lease::Lease(Duration term, Duration margin) : term_(term), margin_(margin) {
  KVPUSH_CHECK(margin < term, "a lease is longer than its margin");
}

void Lease::need(Instant now) {
  if (!needed_) needed_ = now;
}

void Lease::ask(Instant stamp) {
  if (!asked_first_) asked_first_ = stamp;
  asked_ = stamp;
}

bool Lease::answer(Instant stamp) {
  if (!asked_ || stamp < *asked_first_ || stamp > *asked_) return false;
  if (!answered_ || stamp > *answered_) answered_ = stamp;
  return true;
}

bool Lease::is_live(Instant now) const {
  return answered_ && now - *answered_ < term_ - margin_;
}

bool Lease::has_lapsed(Instant now) const {
  return needed_ && now - unheard_since() >= term_ - margin_;
}

bool Lease::is_silent(Instant now) const {
  return needed_ && now - unheard_since() >= term_;
}

bool Lease::wants_renewal(Instant now) const {
  return !asked_ || now - *asked_ >= term_ / kRenewalsPerTerm;
}

Instant Lease::due() const {
  KVPUSH_CHECK(needed_ && asked_, "a lease is due when it is needed and was asked for");
  return std::min(*asked_ + term_ / kRenewalsPerTerm, unheard_since() + term_);
}

Instant Lease::unheard_since() const {
  return answered_ ? std::max(*answered_, *needed_) : *needed_;
}

}  // namespace kvpush
