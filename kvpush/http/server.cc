#include "kvpush/http/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <list>
#include <optional>
#include <set>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/clock.h"
#include "kvpush/base/log.h"
#include "kvpush/base/log_limit.h"
#include "kvpush/http/tune.h"

namespace kvpush {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Bytes of following requests that a client may send before it has the answer to this one.
constexpr std::size_t kPipelinedBytesMax = 64u << 10;
// How long and how much a client may still send to a connection whose last answer is out: closing at once would make
// the kernel reset the connection, and the client could lose that answer.
constexpr Duration kLingerMax = std::chrono::seconds(2);
constexpr std::size_t kLingerBytesMax = 32u << 20;
// Pause after a failed accept (no file descriptors left).
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

std::string reason(int status) {
  return std::string(http::obsolete_reason(static_cast<http::status>(static_cast<unsigned>(status))));
}

}  // namespace

// What the server and its connections share; it lives as long as any of them.
struct HttpServer::State : std::enable_shared_from_this<HttpServer::State> {
  State(asio::io_context& context, HttpServerOptions server_options, HttpHandler server_handler)
      : io(context),
        options(std::move(server_options)),
        handler(std::move(server_handler)),
        acceptor(context),
        accept_pause(context) {}

  Result<void> listen();
  void accept();
  // Opens the connection that was accepted, when there is room for it, and accepts the next one.
  void admit();
  void close();

  asio::io_context& io;
  const HttpServerOptions options;
  HttpHandler handler;
  tcp::acceptor acceptor;
  std::uint16_t port = 0;
  asio::steady_timer accept_pause;
  std::set<HttpConnection*> connections;  // the open ones; each removes itself
  std::list<HttpConnection*> idle;        // of these, those that wait for a next request, longest first
  std::optional<tcp::socket> accepted;    // waits for room
  bool accepting = false;                 // an accept or its pause is running
  bool accept_failed = false;             // and was logged
  bool draining = false;
  LogLimit bad_requests_logged;
};

// One client's connection.
//
// Job: reads one request after the other and writes their answers. While a request is answered it keeps reading, so
//      that it hears when the client goes away; what it reads then is the beginning of the next request.
// Owner: its running operations and its responder, shared: Asio may run a handler after the socket was closed, and
//        what the handler reads into must exist until then. This is why shared_ptr is used here.
// Thread: the thread that runs the io_context.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpServer::State> server, tcp::socket socket)
      : server_(std::move(server)), socket_(std::move(socket)), timer_(server_->io) {}

  void open();
  void close();
  void drain();
  // Whether nothing has arrived that is still to be read.
  bool is_silent() const;

  void start(HttpHead head);
  void write(std::string bytes, std::move_only_function<void()> done);
  void finish();
  void reply(HttpReply reply);
  void forsake();
  void on_gone(std::move_only_function<void()> gone) { gone_ = std::move(gone); }

 private:
  enum class Phase { kIdle, kReading, kAnswering, kLingering, kClosed };

  void wait_for_bytes();
  void on_bytes(error_code error, std::size_t count);
  void read_head();
  void on_head(error_code error);
  void read_body();
  void on_request(error_code error);
  void refuse(error_code error);
  void note_bad_request(std::string_view what);
  void send(std::string bytes, std::move_only_function<void()> done);
  std::string head_text(const HttpHead& head);
  void end_answer();
  bool would_look_complete() const;
  void wait_for_request();
  void leave_idle();
  void linger();
  void lose_client();
  void limit(Duration duration);
  void unlimit();

  std::shared_ptr<HttpServer::State> server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  Phase phase_ = Phase::kIdle;
  std::optional<std::list<HttpConnection*>::iterator> idle_;  // its place among those that wait for a next request
  boost::beast::flat_buffer buffer_;
  bool waiting_for_bytes_ = false;
  bool client_closed_ = false;  // read once: Asio does not report the end of a stream a second time
  std::size_t lingered_bytes_ = 0;
  std::optional<http::request_parser<http::string_body>> parser_;

  // The answer.
  std::string out_;  // what the running write sends
  bool writing_ = false;
  std::optional<HttpHead> head_;             // started and not sent yet
  bool head_sent_ = false;                   // or on its way
  bool chunked_ = false;                     // else raw
  std::optional<std::uint64_t> bytes_left_;  // of a body of known size
  bool keep_alive_ = false;
  bool http_1_0_ = false;
  bool head_only_ = false;  // asked with HEAD
  std::move_only_function<void()> gone_;
};

HttpResponder::HttpResponder(std::shared_ptr<HttpConnection> connection) : connection_(std::move(connection)) {}

HttpResponder::HttpResponder(HttpResponder&&) noexcept = default;

HttpResponder& HttpResponder::operator=(HttpResponder&& other) noexcept {
  if (this != &other) {
    let_go();
    connection_ = std::move(other.connection_);
  }
  return *this;
}

HttpResponder::~HttpResponder() {
  let_go();
}

void HttpResponder::let_go() {
  if (const auto connection = std::exchange(connection_, nullptr)) connection->forsake();
}

void HttpResponder::reply(HttpReply reply) {
  KVPUSH_CHECK(connection_ != nullptr, "a request is answered once");
  std::exchange(connection_, nullptr)->reply(std::move(reply));
}

void HttpResponder::start(HttpHead head) {
  KVPUSH_CHECK(connection_ != nullptr, "a request is answered once");
  connection_->start(std::move(head));
}

void HttpResponder::write(std::string bytes, std::move_only_function<void()> done) {
  KVPUSH_CHECK(connection_ != nullptr, "a request is answered once");
  connection_->write(std::move(bytes), std::move(done));
}

void HttpResponder::finish() {
  KVPUSH_CHECK(connection_ != nullptr, "a request is answered once");
  std::exchange(connection_, nullptr)->finish();
}

void HttpResponder::on_gone(std::move_only_function<void()> gone) {
  KVPUSH_CHECK(connection_ != nullptr, "a request is answered once");
  connection_->on_gone(std::move(gone));
}

void HttpRoutes::add(const std::string& method, const std::string& path, HttpHandler handler) {
  by_path_[path][method] = std::move(handler);
}

void HttpRoutes::dispatch(HttpRequest request, HttpResponder responder) const {
  const auto path = by_path_.find(std::string(request.path()));
  if (path == by_path_.end()) {
    return responder.reply(refusal_(404, "nothing is served at this path"));
  }
  const auto method = path->second.find(request.method);
  if (method == path->second.end()) {
    HttpReply reply = refusal_(405, "this path does not take this method");
    for (const auto& [name, handler] : path->second) reply.headers.add("Allow", name);
    return responder.reply(std::move(reply));
  }
  method->second(std::move(request), std::move(responder));
}

HttpReply plain_refusal(int status, std::string_view what) {
  return {.status = status, .content_type = "text/plain", .body = std::string(what) + "\n", .headers = {}};
}

Counter& http_bad_requests(Registry& registry) {
  return registry.counter("kvpush_http_bad_requests_total", "Connections closed because their bytes were no request.");
}

Result<std::unique_ptr<HttpServer>> HttpServer::open(asio::io_context& io, HttpServerOptions options,
                                                     HttpHandler handler) {
  auto state = std::make_shared<State>(io, std::move(options), std::move(handler));
  if (const Result<void> listening = state->listen(); !listening) return std::unexpected(listening.error());
  state->accept();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::shared_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  state_->close();
}

std::uint16_t HttpServer::port() const {
  return state_->port;
}

std::size_t HttpServer::connections() const {
  return state_->connections.size();
}

void HttpServer::drain() {
  state_->draining = true;
  error_code ignored;
  state_->acceptor.close(ignored);
  state_->accept_pause.cancel();
  state_->accepted.reset();
  // A copy: draining a connection may remove it.
  for (HttpConnection* connection : std::set(state_->connections)) connection->drain();
}

Result<void> HttpServer::State::listen() {
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.listen.host, std::to_string(options.listen.port), error);
  if (error || found.empty()) return fail(ErrorCode::kBadConfig, "the host to listen on has no address");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (error == asio::error::address_in_use) return fail(ErrorCode::kBadConfig, "the port to listen on is taken");
  if (error) return fail(ErrorCode::kBadConfig, "cannot listen on this host and port");
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return fail(ErrorCode::kBadConfig, "the port to listen on is taken");
  port = acceptor.local_endpoint(error).port();
  return {};
}

void HttpServer::State::accept() {
  if (accepting || draining) return;
  accepting = true;
  acceptor.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
    self->accepting = false;
    if (self->draining) return;
    if (error) {
      if (!std::exchange(self->accept_failed, true)) {
        log(LogLevel::kWarning, "cannot accept connections, still trying: " + error.message());
      }
      self->accepting = true;
      self->accept_pause.expires_after(kAcceptPause);
      self->accept_pause.async_wait([self](error_code) {
        self->accepting = false;
        self->accept();
      });
      return;
    }
    self->accept_failed = false;
    self->accepted = std::move(socket);
    self->admit();
  });
}

void HttpServer::State::admit() {
  if (!accepted.has_value()) return;
  if (connections.size() >= options.connections_max) {
    const auto silent = std::ranges::find_if(idle, &HttpConnection::is_silent);
    if (silent != idle.end()) (*silent)->close();  // which calls this again
    return;
  }
  std::make_shared<HttpConnection>(shared_from_this(), *std::exchange(accepted, std::nullopt))->open();
  accept();
}

void HttpServer::State::close() {
  draining = true;
  error_code ignored;
  acceptor.close(ignored);
  accept_pause.cancel();
  accepted.reset();
  while (!connections.empty()) (*connections.begin())->close();
  handler = nullptr;
}

void HttpConnection::open() {
  server_->connections.insert(this);
  tune(socket_);
  limit(server_->options.idle_timeout);
  wait_for_bytes();
}

// Ends everything without a word to anybody; running operations end by themselves.
void HttpConnection::close() {
  if (phase_ == Phase::kClosed) return;
  error_code ignored;
  // A reset, so that the client does not take what it has for all of it.
  if (would_look_complete()) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  phase_ = Phase::kClosed;
  gone_ = nullptr;
  timer_.cancel();
  socket_.close(ignored);
  leave_idle();
  server_->connections.erase(this);
  server_->admit();
}

// The answer is not complete, and the end of the connection is the end of its body.
bool HttpConnection::would_look_complete() const {
  return phase_ == Phase::kAnswering && head_sent_ && !chunked_ && !bytes_left_.has_value() && !head_only_;
}

void HttpConnection::drain() {
  keep_alive_ = false;
  if (phase_ == Phase::kIdle) close();
}

bool HttpConnection::is_silent() const {
  error_code ignored;
  return socket_.available(ignored) == 0;
}

void HttpConnection::wait_for_bytes() {
  if (waiting_for_bytes_) return;
  waiting_for_bytes_ = true;
  socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code error, std::size_t count) {
    self->on_bytes(error, count);
  });
}

void HttpConnection::on_bytes(error_code error, std::size_t count) {
  waiting_for_bytes_ = false;
  buffer_.commit(count);
  if (error && error != asio::error::operation_aborted) client_closed_ = true;
  switch (phase_) {
    case Phase::kIdle:
      // Bytes of the next request may be here although the read failed: end_answer() cancels it then.
      return error && buffer_.size() == 0 ? close() : read_head();
    case Phase::kAnswering:
      // Who closes when all announced bytes are on their way has an answer, and waits for nothing.
      if (error && head_sent_ && bytes_left_ == 0) return;
      if (error) return lose_client();
      if (buffer_.size() < kPipelinedBytesMax) wait_for_bytes();
      return;
    case Phase::kLingering:
      lingered_bytes_ += count;
      buffer_.clear();
      return error || lingered_bytes_ > kLingerBytesMax ? close() : wait_for_bytes();
    case Phase::kReading:  // the parser reads then
    case Phase::kClosed: return;
  }
}

void HttpConnection::read_head() {
  phase_ = Phase::kReading;
  leave_idle();
  limit(server_->options.read_timeout);
  head_only_ = false;
  parser_.emplace();
  parser_->header_limit(server_->options.header_bytes_max);
  parser_->body_limit(server_->options.body_bytes_max);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, std::size_t) { self->on_head(error); });
}

void HttpConnection::on_head(error_code error) {
  if (phase_ == Phase::kClosed) return;
  if (error) return refuse(error);
  const auto& request = parser_->get();
  http_1_0_ = request.version() < 11;
  head_only_ = request.method() == http::verb::head;
  keep_alive_ = request.keep_alive() && !server_->draining;
  if (!parser_->is_done() && boost::beast::iequals(request[http::field::expect], "100-continue")) {
    return send("HTTP/1.1 100 Continue\r\n\r\n", [self = shared_from_this()] {
      self->limit(self->server_->options.read_timeout);
      self->read_body();
    });
  }
  read_body();
}

void HttpConnection::read_body() {
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](error_code error, std::size_t) { self->on_request(error); });
}

void HttpConnection::on_request(error_code error) {
  if (phase_ == Phase::kClosed) return;
  if (error) return refuse(error);
  HttpRequest request;
  auto& parsed = parser_->get();
  request.method = std::string(parsed.method_string());
  request.target = std::string(parsed.target());
  for (const auto& field : parsed) {
    request.headers.add({field.name_string().data(), field.name_string().size()},
                        {field.value().data(), field.value().size()});
  }
  request.body = std::move(parsed.body());
  parser_.reset();
  phase_ = Phase::kAnswering;
  unlimit();
  wait_for_bytes();
  server_->handler(std::move(request), HttpResponder(shared_from_this()));
}

// The request cannot be read: says why where the client can still hear it.
void HttpConnection::refuse(error_code error) {
  int status = 400;
  std::string what = "the request is not HTTP: " + error.message();
  if (error == http::error::header_limit) {
    status = 431;
    what = fmt::format("the header fields are larger than {} bytes", server_->options.header_bytes_max);
  } else if (error == http::error::body_limit) {
    status = 413;
    what = fmt::format("the body is larger than {} bytes", server_->options.body_bytes_max);
  } else if (error == http::error::end_of_stream || error == http::error::partial_message) {
    note_bad_request("the request ends before it is complete");
    return close();
  } else if (error.category() != make_error_code(http::error::bad_method).category()) {
    return close();
  }
  note_bad_request(what);
  phase_ = Phase::kAnswering;
  keep_alive_ = false;
  reply(server_->options.refusal(status, what));
}

// Who sends such things may be nobody that anything else names, so the log names the address, unless it is flooded.
void HttpConnection::note_bad_request(std::string_view what) {
  if (server_->options.bad_requests != nullptr) server_->options.bad_requests->add();
  if (!server_->bad_requests_logged.take(read_clock())) return;
  error_code gone;
  const tcp::endpoint peer = socket_.remote_endpoint(gone);
  log(LogLevel::kWarning,
      fmt::format("http: the connection to {} port {} is closed: {}", peer.address().to_string(), peer.port(), what));
}

void HttpConnection::start(HttpHead head) {
  KVPUSH_CHECK(!head_sent_ && !head_.has_value(), "an answer has one head");
  head_ = std::move(head);
}

void HttpConnection::write(std::string bytes, std::move_only_function<void()> done) {
  KVPUSH_CHECK(head_.has_value() || head_sent_, "an answer starts with its head");
  if (phase_ != Phase::kAnswering) return;
  KVPUSH_CHECK(!writing_, "one write at a time");
  std::string out;
  if (head_.has_value()) {
    out = head_text(*head_);
    head_.reset();
  }
  if (bytes_left_.has_value()) {
    // More than was announced would be read as the next answer.
    bytes.resize(std::min<std::uint64_t>(bytes.size(), *bytes_left_));
    *bytes_left_ -= bytes.size();
  }
  if (head_only_) {
    // The body of an answer to HEAD is left out.
  } else if (!chunked_) {
    out += bytes;
  } else if (!bytes.empty()) {  // an empty chunk would end the body
    out += fmt::format("{:x}\r\n", bytes.size());
    out += bytes;
    out += "\r\n";
  }
  send(std::move(out), std::move(done));
}

void HttpConnection::finish() {
  KVPUSH_CHECK(head_.has_value() || head_sent_, "an answer starts with its head");
  gone_ = nullptr;
  if (phase_ != Phase::kAnswering) return;
  KVPUSH_CHECK(!writing_, "no write runs when an answer is finished");
  std::string out;
  if (head_.has_value()) {
    out = head_text(*head_);
    head_.reset();
  }
  if (bytes_left_.value_or(0) > 0 && !head_only_) return close();  // shorter than announced: the client must see it
  if (chunked_ && !head_only_) out += "0\r\n\r\n";
  send(std::move(out), [self = shared_from_this()] { self->end_answer(); });
}

void HttpConnection::reply(HttpReply reply) {
  KVPUSH_CHECK(!head_sent_ && !head_.has_value(), "an answer has one head");
  gone_ = nullptr;
  if (phase_ != Phase::kAnswering) return;
  if (reply.close) keep_alive_ = false;
  HttpHead head{reply.status, std::move(reply.headers), reply.body.size()};
  if (!reply.content_type.empty()) head.headers.set("Content-Type", reply.content_type);
  std::string out = head_text(head);
  if (!head_only_) out += reply.body;
  bytes_left_ = 0;
  send(std::move(out), [self = shared_from_this()] { self->end_answer(); });
}

void HttpConnection::forsake() {
  gone_ = nullptr;
  if (phase_ != Phase::kAnswering) return;
  if (head_sent_) return close();
  head_.reset();
  reply(server_->options.refusal(500, "the request was dropped without an answer"));
}

std::string HttpConnection::head_text(const HttpHead& head) {
  head_sent_ = true;
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", head.status, reason(head.status));
  for (const auto& [name, value] : head.headers.fields()) text += fmt::format("{}: {}\r\n", name, value);
  bytes_left_ = head.content_bytes;
  chunked_ = false;
  if (head.content_bytes.has_value()) {
    text += fmt::format("Content-Length: {}\r\n", *head.content_bytes);
  } else if (!http_1_0_) {
    chunked_ = true;
    text += "Transfer-Encoding: chunked\r\n";
  } else {
    keep_alive_ = false;  // the end of the connection is the end of the body
  }
  if (!keep_alive_) text += "Connection: close\r\n";
  if (keep_alive_ && http_1_0_) text += "Connection: keep-alive\r\n";
  return text + "\r\n";
}

void HttpConnection::send(std::string bytes, std::move_only_function<void()> done) {
  out_ = std::move(bytes);
  writing_ = true;
  limit(server_->options.write_timeout);
  asio::async_write(socket_, asio::buffer(out_),
                    [self = shared_from_this(), done = std::move(done)](error_code error, std::size_t) mutable {
                      self->writing_ = false;
                      if (self->phase_ == Phase::kClosed) return;
                      self->unlimit();
                      if (error) return self->lose_client();
                      if (done) done();
                    });
}

void HttpConnection::end_answer() {
  head_sent_ = false;
  bytes_left_.reset();
  if (client_closed_) return close();
  if (!keep_alive_ || server_->draining) return linger();
  phase_ = Phase::kIdle;
  if (buffer_.size() > 0 && !waiting_for_bytes_) return read_head();
  if (buffer_.size() > 0) {
    // The next request has begun; what is read already waits for more of it in a read that is running. Make it end.
    error_code ignored;
    socket_.cancel(ignored);
    return;
  }
  wait_for_request();
}

void HttpConnection::wait_for_request() {
  limit(server_->options.idle_timeout);
  wait_for_bytes();
  idle_ = server_->idle.insert(server_->idle.end(), this);
  server_->admit();
}

void HttpConnection::leave_idle() {
  if (idle_.has_value()) server_->idle.erase(*std::exchange(idle_, std::nullopt));
}

void HttpConnection::linger() {
  phase_ = Phase::kLingering;
  limit(kLingerMax);
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  wait_for_bytes();
}

void HttpConnection::lose_client() {
  // Kept here, as close() forgets it, and called last, as it may destroy the responder.
  auto gone = std::exchange(gone_, nullptr);
  close();
  if (gone) gone();
}

void HttpConnection::limit(Duration duration) {
  timer_.expires_after(duration);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    // An expired wait may be queued already when the timer is set anew.
    if (error || self->phase_ == Phase::kClosed) return;
    if (self->timer_.expiry() > asio::steady_timer::clock_type::now()) return;
    if (self->phase_ == Phase::kReading) self->note_bad_request("the request is not complete in time");
    self->lose_client();
  });
}

void HttpConnection::unlimit() {
  timer_.expires_at(asio::steady_timer::time_point::max());
}

}  // namespace kvpush
