#pragma once

#include <functional>
#include <memory>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/directory/engine.h"

namespace boost::asio {
class io_context;
}

namespace kvpush {

class HttpClient;

// Asks engines' directories who they are.
//
// Job: one GET for each resolve(), checked and bounded in size and time.
// Not here: retries and caching; whoever asks knows when an old answer will not do.
// Owner: whoever owns the io_context; destroyed before it. Destroying forgets what is asked: no callback runs then.
// Thread: the thread that runs the io_context.
class DirectoryClient {
 public:
  using Resolved = std::move_only_function<void(Result<EngineDocument>)>;

  explicit DirectoryClient(boost::asio::io_context& io);
  ~DirectoryClient();

  // `resolved` runs once, later, never inside this call. kPeerLost: nobody answers there. kTimeout: not in time.
  // kUnavailable: the engine is still starting, or something else answers there. kBadMessage: not an engine document.
  // kFull: too many are being asked.
  void resolve(const Endpoint& directory, Resolved resolved);

 private:
  std::unique_ptr<HttpClient> http_;
};

}  // namespace kvpush
