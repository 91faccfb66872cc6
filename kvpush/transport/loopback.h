#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kvpush/base/error.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

// A network inside one process: transports that copy with memcpy, and a hand for what can go wrong.
//
// Job: opens endpoints that can connect to each other; holds, fails and kills them for tests.
// Not here: delay and reordering.
// Owner: a handle; copies name the same network, which lives as long as a handle or an endpoint does. Its endpoints
//        belong to several agents and none of them outlives the others for sure, so it has no single owner.
// Thread: any (synchronised by a mutex that is also held while bytes are copied, which is what makes disconnect() and
//         kill() a fence).
class LoopbackNetwork {
 public:
  LoopbackNetwork();

  // `name` is for the verbs below, which ignore unknown names and act on the newest endpoint of a name.
  std::unique_ptr<Transport> open(std::string name);

  // Until release(), writes posted by this endpoint neither land nor complete.
  void hold(std::string_view name);
  void release(std::string_view name);
  // The next batch posted by this endpoint completes with `error`, and none of its bytes lands.
  void fail_next_write(std::string_view name, Error error);
  // As if the process of this endpoint had died: nothing that it posted lands any more, its peers lose it.
  void kill(std::string_view name);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace kvpush
