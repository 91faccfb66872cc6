#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kvpush/base/instant.h"

namespace kvpush {

// At most one deadline for each key, and which is next.
//
// Job: answers "when is the next?" and "which are due?" for the protocol machines.
// Thread: value type.
template <class Key>
class Deadlines {
 public:
  // Replaces the key's deadline.
  void set(const Key& key, Instant at);
  void clear(const Key& key);
  std::optional<Instant> next() const;
  // Removes and returns the keys due at `now`, earliest first.
  std::vector<Key> take_due(Instant now);

 private:
  std::map<Key, Instant> at_;
  std::set<std::pair<Instant, Key>> order_;
};

template <class Key>
void Deadlines<Key>::set(const Key& key, Instant at) {
  clear(key);
  at_.emplace(key, at);
  order_.emplace(at, key);
}

template <class Key>
void Deadlines<Key>::clear(const Key& key) {
  const auto found = at_.find(key);
  if (found == at_.end()) return;
  order_.erase({found->second, key});
  at_.erase(found);
}

template <class Key>
std::optional<Instant> Deadlines<Key>::next() const {
  if (order_.empty()) return std::nullopt;
  return order_.begin()->first;
}

template <class Key>
std::vector<Key> Deadlines<Key>::take_due(Instant now) {
  std::vector<Key> due;
  while (!order_.empty() && order_.begin()->first <= now) {
    due.push_back(order_.begin()->second);
    at_.erase(order_.begin()->second);
    order_.erase(order_.begin());
  }
  return due;
}

}  // namespace kvpush
