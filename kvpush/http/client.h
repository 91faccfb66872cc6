#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/http/message.h"

namespace boost::asio {
class io_context;
}

namespace kvpush {

using HttpCallId = Id<struct HttpCallTag>;  // one request of an HttpClient, never reused; 0 names none

struct HttpCall {
  Endpoint address{};
  std::string method = "GET";
  std::string target = "/";
  HttpHeaders headers{};  // Host and Content-Length are added
  std::string body{};
  Duration connect_timeout = std::chrono::seconds(5);   // name lookup included
  Duration silence_timeout = std::chrono::seconds(60);  // the server sends no byte for so long
  std::optional<Duration> total_timeout{};
};

// A whole answer, collected.
struct HttpAnswer {
  int status = 0;
  HttpHeaders headers{};
  std::string body{};
};

enum class HttpFlow : std::uint8_t { kContinue, kPause };

// Takes an answer as it arrives: one head, any number of pieces, one end. After an end with an error nothing comes.
struct HttpSink {
  std::move_only_function<void(const HttpHead&)> on_head{};
  // The bytes are valid during the call. kPause: nothing more is read until resume().
  std::move_only_function<HttpFlow(std::string_view bytes)> on_body{};
  std::move_only_function<void(Result<void>)> on_end{};
};

struct HttpClientOptions {
  std::size_t calls_max = 4096;
  std::size_t idle_per_address_max = 64;
  // uvicorn closes idle connections after 5 s; ours end before, so that a request seldom meets a closing one.
  Duration idle_timeout = std::chrono::seconds(4);
  std::uint32_t header_bytes_max = 64u << 10;
  std::size_t collected_bytes_max = 16u << 20;  // body of an HttpAnswer; streamed bodies have no limit
};

// HTTP/1.1 requests on an io_context that somebody else runs, over connections that are kept for the next request.
//
// Job: connects or reuses, sends, and hands the answer on. A kept connection that turns out to be closed before any
//      byte of the answer is replaced once by a new one.
// Not here: TLS, redirects, retries of failed requests.
// Owner: whoever owns the io_context; destroyed before it. Destroying cancels every call.
// Thread: the thread that runs the io_context. No callback runs inside any of its functions; all of them may be called
//         from callbacks.
class HttpClient {
 public:
  explicit HttpClient(boost::asio::io_context& io, HttpClientOptions options = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Errors arrive at the sink's end: kFull (too many calls), kPeerLost (cannot connect, or closed early), kTimeout,
  // kBadMessage (not HTTP).
  HttpCallId start(HttpCall call, HttpSink sink);
  // The same with the whole answer; kFull also when its body is larger than collected_bytes_max.
  HttpCallId collect(HttpCall call, std::move_only_function<void(Result<HttpAnswer>)> done);
  // Closes the connection of this call; no callback of it runs afterwards. Calls that have ended are ignored.
  void cancel(HttpCallId id);
  // The same for a call whose server must hear of it: closed when all of the request is sent, within connect_timeout.
  void cancel_when_sent(HttpCallId id);
  // After HttpFlow::kPause.
  void resume(HttpCallId id);

  std::size_t calls() const;
  std::size_t idle_connections() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace kvpush
