#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace kvpush {

// A descriptor that becomes readable when raised (eventfd). Owns it.
//
// Job: wakes a loop or a Python thread that waits on a descriptor.
// Thread: any (synchronised by the kernel).
class WakeFd {
 public:
  WakeFd();
  ~WakeFd();
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;

  void raise();
  void clear();
  int fd() const { return fd_; }

 private:
  int fd_;
};

// A bounded queue from many threads to one.
//
// Job: moves values between threads, and wakes the taker through fd().
// Not here: what full means; the poster decides.
// Thread: any (synchronised by a mutex).
// Invariant: at most `capacity` values; fd() is readable whenever one is inside.
template <class T>
class Mailbox {
 public:
  explicit Mailbox(std::size_t capacity) : capacity_(capacity) {}

  // False, with `value` untouched, when full or closed.
  bool try_post(T& value);
  bool try_post(T&& value) { return try_post(value); }
  // All of `values` in one step, or false and none of them; they are moved from when taken.
  bool try_post_all(std::vector<T>& values);
  // Replaces the contents of `into` by everything inside, in order of posting.
  void take(std::vector<T>& into);
  // Takes nothing new from now on; what is inside can still be taken.
  void close();
  int fd() const { return wake_.fd(); }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::vector<T> values_;
  bool is_closed_ = false;
  WakeFd wake_;
};

template <class T>
bool Mailbox<T>::try_post(T& value) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || values_.size() >= capacity_) return false;
  values_.push_back(std::move(value));
  if (values_.size() == 1) wake_.raise();
  return true;
}

template <class T>
bool Mailbox<T>::try_post_all(std::vector<T>& values) {
  if (values.empty()) return true;
  const std::lock_guard lock(mutex_);
  if (is_closed_ || values_.size() + values.size() > capacity_) return false;
  const bool was_empty = values_.empty();
  for (T& value : values) values_.push_back(std::move(value));
  if (was_empty) wake_.raise();
  values.clear();
  return true;
}

template <class T>
void Mailbox<T>::take(std::vector<T>& into) {
  into.clear();
  const std::lock_guard lock(mutex_);
  into.swap(values_);
  wake_.clear();
}

template <class T>
void Mailbox<T>::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
}

}  // namespace kvpush
