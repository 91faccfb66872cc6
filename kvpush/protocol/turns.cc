#include "kvpush/protocol/turns.h"

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"

namespace kvpush {

void Turns::open(Peer peer) {
  const bool is_new = peers_.try_emplace(peer).second;
  KVPUSH_CHECK(is_new, "a peer id is never reused");
}

void Turns::add(Peer peer, const RegistrationKey& registration) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.closed) return;
  found->second.waiting.push_back(registration);
  line_up(peer, found->second);
}

std::optional<Turn> Turns::take() {
  while (!turns_.empty()) {
    const Peer peer = turns_.front();
    turns_.pop_front();
    const auto found = peers_.find(peer);
    if (found == peers_.end()) continue;
    Entry& entry = found->second;
    entry.in_turn = false;
    if (entry.waiting.empty() || entry.in_flight >= kBatchesInFlightMax) continue;
    const Turn turn{peer, entry.waiting.front()};
    entry.waiting.pop_front();
    ++entry.in_flight;
    line_up(peer, entry);
    return turn;
  }
  return std::nullopt;
}

void Turns::ended(Peer peer) {
  const auto found = peers_.find(peer);
  KVPUSH_CHECK(found != peers_.end() && found->second.in_flight > 0, "a batch ends once, and was taken before");
  Entry& entry = found->second;
  --entry.in_flight;
  if (entry.closed && entry.in_flight == 0) {
    peers_.erase(found);
    return;
  }
  line_up(peer, entry);
}

void Turns::close(Peer peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second.closed = true;
  found->second.waiting.clear();
  if (found->second.in_flight == 0) peers_.erase(found);
}

std::size_t Turns::in_flight() const {
  std::size_t total = 0;
  for (const auto& [peer, entry] : peers_) total += entry.in_flight;
  return total;
}

void Turns::line_up(Peer peer, Entry& entry) {
  if (entry.in_turn || entry.waiting.empty() || entry.in_flight >= kBatchesInFlightMax) return;
  entry.in_turn = true;
  turns_.push_back(peer);
}

}  // namespace kvpush
