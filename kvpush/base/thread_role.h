#pragma once

#include <atomic>
#include <thread>

#include "kvpush/base/check.h"

// Thread roles as capabilities of clang's thread safety analysis; other compilers see nothing.
#if defined(__clang__)
#define KVPUSH_TSA(x) __attribute__((x))
#else
#define KVPUSH_TSA(x)
#endif
#define KVPUSH_OWNED_BY(role) KVPUSH_TSA(guarded_by(role))     // a field only this role touches
#define KVPUSH_ON(role) KVPUSH_TSA(requires_capability(role))  // a method only this role calls

namespace kvpush {

// The right to touch what one thread owns.
//
// Job: lets clang check that owned fields are touched on their thread, and checks at run time that a role is entered
//      by one thread at a time.
// Thread: any (synchronised by an atomic).
class KVPUSH_TSA(capability("role")) ThreadRole {
 public:
  void enter() KVPUSH_TSA(acquire_capability()) {
    KVPUSH_CHECK(!entered_.exchange(true, std::memory_order_acquire), "a thread role was entered twice");
  }
  void leave() KVPUSH_TSA(release_capability()) { entered_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> entered_ = false;
};

// Holds a role for a scope.
class KVPUSH_TSA(scoped_lockable) RoleScope {
 public:
  explicit RoleScope(ThreadRole& role) KVPUSH_TSA(acquire_capability(role)) : role_(role) { role_.enter(); }
  ~RoleScope() KVPUSH_TSA(release_capability()) { role_.leave(); }
  RoleScope(const RoleScope&) = delete;
  RoleScope& operator=(const RoleScope&) = delete;

 private:
  ThreadRole& role_;
};

}  // namespace kvpush
