#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/instant.h"
#include "kvpush/http/message.h"
#include "kvpush/metrics/metrics.h"

namespace boost::asio {
class io_context;
}

namespace kvpush {

class HttpConnection;

// The answer to one request, still to be given: at once, later, or piece by piece.
//
// Job: writes one answer, and tells when the client went away before its end.
// Owner: whoever answers; move-only. Destroyed without an answer it sends status 500; destroyed in the middle of a
//        stream it closes the connection, so that the client sees a broken answer and not a short one.
// Thread: the thread that runs the server's io_context.
class HttpResponder {
 public:
  explicit HttpResponder(std::shared_ptr<HttpConnection> connection);
  HttpResponder(HttpResponder&&) noexcept;
  HttpResponder& operator=(HttpResponder&&) noexcept;
  ~HttpResponder();

  // The whole answer. Nothing else may be called afterwards.
  void reply(HttpReply reply);

  // A streamed answer: start, any number of writes, finish. The head goes out with the first bytes.
  void start(HttpHead head);
  // One write at a time: `done` says that the kernel has the bytes and the next may come. It never runs inside this
  // call, and never once the client is gone.
  void write(std::string bytes, std::move_only_function<void()> done);
  // Ends the answer; no write may be running. Nothing else may be called afterwards.
  void finish();

  // Called once, never inside a call of this class, when the client closes or breaks the connection before the answer
  // is complete; closing its sending half alone counts too. The responder may then be destroyed; what it is told to
  // write is dropped.
  void on_gone(std::move_only_function<void()> gone);

 private:
  void let_go();

  std::shared_ptr<HttpConnection> connection_;  // null when answered
};

using HttpHandler = std::function<void(HttpRequest, HttpResponder)>;

// The answer to a request that reaches no handler. `what` is a sentence for people.
using HttpRefusal = HttpReply (*)(int status, std::string_view what);
HttpReply plain_refusal(int status, std::string_view what);

// Which handler answers which method and path.
//
// Job: picks by exact path; answers 404 and 405 itself. Its dispatch() is an HttpHandler.
// Thread: any (immutable) once the last add() is done.
class HttpRoutes {
 public:
  explicit HttpRoutes(HttpRefusal refusal = plain_refusal) : refusal_(refusal) {}
  void add(const std::string& method, const std::string& path, HttpHandler handler);
  void dispatch(HttpRequest request, HttpResponder responder) const;

 private:
  HttpRefusal refusal_;
  std::map<std::string, std::map<std::string, HttpHandler>> by_path_;  // path, then method
};

// Connections that a server closed because their bytes were no request: not HTTP, too large, or never complete. All
// servers of a registry share it.
Counter& http_bad_requests(Registry& registry);

struct HttpServerOptions {
  Endpoint listen{"127.0.0.1", 0};  // port 0: the kernel picks
  // For one more, that which has waited longest for its next request is closed; more wait while each has a request to
  // be answered, or its first one still to send.
  std::size_t connections_max = 1024;
  std::uint32_t header_bytes_max = 64u << 10;
  std::uint64_t body_bytes_max = 1u << 20;
  Duration read_timeout = std::chrono::seconds(30);   // from a request's first byte to its last
  Duration idle_timeout = std::chrono::seconds(75);   // between requests of one connection
  Duration write_timeout = std::chrono::seconds(60);  // a client that takes one write for so long is gone
  HttpRefusal refusal = plain_refusal;  // of requests that cannot be read (400, 413, 431) or are dropped (500)
  Counter* bad_requests = nullptr;      // http_bad_requests() of whoever serves metrics; outlives the server
};

// An HTTP/1.1 server on an io_context that somebody else runs.
//
// Job: accepts, reads bounded requests, hands them to one handler, keeps connections alive.
// Not here: what is answered; threads.
// Owner: whoever owns the io_context; destroyed before it. Destroying closes all connections, and no handler or
//        callback of it runs afterwards; responders that outlive it do nothing.
// Thread: the thread that runs the io_context.
class HttpServer {
 public:
  // Listening when it returns. kBadConfig: the host is no address of this machine, or the port is taken.
  static Result<std::unique_ptr<HttpServer>> open(boost::asio::io_context& io, HttpServerOptions options,
                                                  HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;  // also after drain()
  // Stops listening, closes idle connections, and closes each other one when its answer is complete.
  void drain();
  std::size_t connections() const;

  struct State;

 private:
  explicit HttpServer(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace kvpush
