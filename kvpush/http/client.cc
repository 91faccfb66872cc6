#include "kvpush/http/client.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <cerrno>
#include <list>
#include <map>
#include <unordered_map>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/http/tune.h"

namespace kvpush {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = asio::steady_timer::clock_type;

namespace {

// One piece of a body handed to its taker.
constexpr std::size_t kPieceBytesMax = 16u << 10;

// Asked for by nobody.
constexpr unsigned kSwitchingProtocols = 101;
// Servers send none, or one or two hints; each begins the wait for the answer anew, which need never end without a
// bound.
constexpr int kInterimAnswersMax = 8;

std::unexpected<Error> not_http() {
  return fail(ErrorCode::kBadMessage, "answered something that is not HTTP");
}

class Call;

struct IdleConnection {
  tcp::socket socket;
  Clock::time_point since;
};

}  // namespace

// What the client and its calls share; it lives as long as any of them.
struct HttpClient::State : std::enable_shared_from_this<HttpClient::State> {
  State(asio::io_context& context, HttpClientOptions client_options)
      : io(context), options(client_options), sweep_timer(context) {}

  // A kept connection that looks alive.
  std::optional<tcp::socket> take_idle(const std::string& address);
  void keep(const std::string& address, tcp::socket socket);
  // Closes kept connections that are too old, now and later, as long as there are any.
  void sweep();

  asio::io_context& io;
  const HttpClientOptions options;
  std::uint64_t last_id = 0;
  std::unordered_map<HttpCallId, std::shared_ptr<Call>> calls;
  std::map<std::string, std::list<IdleConnection>> idle;  // by address, the most recently used last
  asio::steady_timer sweep_timer;
  bool sweeping = false;
};

namespace {

// One request and its answer.
//
// Job: connects or reuses, writes the request and reads the answer at the same time (a server may refuse a request
//      before it has read all of it), passes the answer to its sink.
// Owner: its running operations and the client's table, shared: Asio may run a handler after the socket was closed,
//        and what the handler reads into must exist until then. This is why shared_ptr is used here.
// Thread: the thread that runs the io_context.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<HttpClient::State> client, HttpCallId id, HttpCall call, HttpSink sink)
      : client_(std::move(client)),
        id_(id),
        call_(std::move(call)),
        address_(to_string(call_.address)),
        sink_(std::move(sink)),
        socket_(client_->io),
        resolver_(client_->io),
        timer_(client_->io),
        request_head_(request_head()) {}

  void begin();
  void refuse(Error error);
  void resume();
  // Ends without a word to the sink.
  void drop();
  // The same once the request is sent; false if it is.
  bool drop_when_sent();

 private:
  std::string request_head() const;
  void connect();
  void connect_to(const tcp::resolver::results_type& endpoints);
  void exchange();
  void read_head();
  void on_head(error_code error);
  void on_interim();
  void read_body();
  void on_body(error_code error);
  void on_written(error_code error);
  bool is_answered() const { return parser_ && (parser_->got_some() || buffer_.size() > 0); }
  bool may_try_again(error_code error) const;
  void try_again();
  void lose(error_code error);
  void end(Result<void> result);
  void close();
  void limit(Duration duration, const char* what);

  std::shared_ptr<HttpClient::State> client_;
  const HttpCallId id_;
  const HttpCall call_;
  const std::string address_;
  HttpSink sink_;
  tcp::socket socket_;
  tcp::resolver resolver_;
  asio::steady_timer timer_;
  const std::string request_head_;
  Clock::time_point started_at_ = Clock::now();
  std::optional<Clock::time_point> drop_by_;  // nobody waits for the answer, but the server shall hear of the request
  const char* late_ = "";                     // what a time-out now means
  bool ended_ = false;
  bool reused_ = false;
  bool writing_ = false;
  bool written_ = false;  // all of it
  bool again_ = false;    // on a new connection, once nothing runs on the old one
  bool paused_ = false;
  int interim_answers_ = 0;
  boost::beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::buffer_body>> parser_;
  std::array<char, kPieceBytesMax> piece_;
};

void Call::begin() {
  if (ended_) return;
  if (auto socket = client_->take_idle(address_)) {
    socket_ = std::move(*socket);
    reused_ = true;
    return exchange();
  }
  connect();
}

void Call::refuse(Error error) {
  if (!ended_) end(std::unexpected(error));
}

void Call::resume() {
  if (!std::exchange(paused_, false)) return;
  // Not from within: resume() may be called by the sink.
  asio::post(client_->io, [self = shared_from_this()] {
    if (!self->ended_ && !self->paused_) self->read_body();
  });
}

void Call::drop() {
  ended_ = true;
  close();
}

bool Call::drop_when_sent() {
  if (ended_ || written_ || is_answered()) return false;
  sink_ = {};
  drop_by_ = Clock::now() + call_.connect_timeout;
  limit(call_.connect_timeout, "was not sent in time");
  return true;
}

std::string Call::request_head() const {
  std::string text;
  text.append(call_.method).append(" ").append(call_.target).append(" HTTP/1.1\r\n");
  text.append("Host: ").append(address_).append("\r\n");
  for (const auto& [name, value] : call_.headers.fields()) text.append(name).append(": ").append(value).append("\r\n");
  if (!call_.body.empty() || call_.method == "POST" || call_.method == "PUT") {
    text.append("Content-Length: ").append(std::to_string(call_.body.size())).append("\r\n");
  }
  return text.append("\r\n");
}

void Call::connect() {
  limit(call_.connect_timeout, "timed out while connecting");
  error_code not_literal;
  const asio::ip::address literal = asio::ip::make_address(call_.address.host, not_literal);
  if (!not_literal) {
    return connect_to(tcp::resolver::results_type::create(tcp::endpoint(literal, call_.address.port),
                                                          call_.address.host, std::to_string(call_.address.port)));
  }
  resolver_.async_resolve(call_.address.host, std::to_string(call_.address.port),
                          [self = shared_from_this()](error_code error, const tcp::resolver::results_type& endpoints) {
                            if (self->ended_) return;
                            if (error) return self->end(fail(ErrorCode::kPeerLost, "its host name has no address"));
                            self->connect_to(endpoints);
                          });
}

void Call::connect_to(const tcp::resolver::results_type& endpoints) {
  asio::async_connect(socket_, endpoints, [self = shared_from_this()](error_code error, const tcp::endpoint&) {
    if (self->ended_) return;
    if (error == asio::error::connection_refused) {
      return self->end(fail(ErrorCode::kPeerLost, "connection refused"));
    }
    if (error) return self->end(fail(ErrorCode::kPeerLost, "cannot connect"));
    tune(self->socket_);
    self->exchange();
  });
}

void Call::exchange() {
  buffer_.clear();
  writing_ = true;
  written_ = false;
  const std::array request = {asio::buffer(request_head_), asio::buffer(call_.body)};
  asio::async_write(socket_, request,
                    [self = shared_from_this()](error_code error, std::size_t) { self->on_written(error); });
  read_head();
}

// A failed write is not reported: the read says more, and may even bring an answer.
void Call::on_written(error_code error) {
  writing_ = false;
  written_ = !error;
  if (ended_) return;
  if (again_) return try_again();
  if (written_ && drop_by_) end(fail(ErrorCode::kAborted, "nobody waits for its answer"));
}

void Call::read_head() {
  limit(call_.silence_timeout, "timed out waiting for its answer");
  parser_.emplace();
  parser_->header_limit(client_->options.header_bytes_max);
  parser_->body_limit(boost::none);  // streamed, never held
  parser_->skip(call_.method == "HEAD");
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, std::size_t) { self->on_head(error); });
}

void Call::on_head(error_code error) {
  if (ended_) return;
  if (may_try_again(error)) {
    error_code ignored;
    socket_.close(ignored);
    again_ = true;
    // The write ends by itself now. Until then it would go on with whatever this socket is connected to.
    if (!writing_) try_again();
    return;
  }
  if (error) return lose(error);
  const auto& answer = parser_->get();
  const unsigned status = answer.result_int();
  if (status < 100 || status == kSwitchingProtocols) return end(not_http());
  if (status < 200) return on_interim();
  HttpHead head;
  head.status = static_cast<int>(status);
  for (const auto& field : answer) {
    head.headers.add({field.name_string().data(), field.name_string().size()},
                     {field.value().data(), field.value().size()});
  }
  if (const auto length = parser_->content_length()) head.content_bytes = *length;
  if (sink_.on_head) sink_.on_head(head);
  if (!ended_) read_body();
}

// The answer is still to come; nobody here waits for what this one announces.
void Call::on_interim() {
  if (++interim_answers_ > kInterimAnswersMax) return end(fail(ErrorCode::kBadMessage, "announces but never answers"));
  reused_ = false;
  read_head();
}

void Call::read_body() {
  if (parser_->is_done()) return end({});
  limit(call_.silence_timeout, "timed out in the middle of its answer");
  parser_->get().body().data = piece_.data();
  parser_->get().body().size = piece_.size();
  parser_->get().body().more = true;
  http::async_read_some(socket_, buffer_, *parser_,
                        [self = shared_from_this()](error_code error, std::size_t) { self->on_body(error); });
}

void Call::on_body(error_code error) {
  if (ended_) return;
  if (error == http::error::need_buffer) error = {};  // the piece is full; more is here
  if (error) return lose(error);
  const std::size_t count = piece_.size() - parser_->get().body().size;
  if (count > 0 && sink_.on_body && sink_.on_body({piece_.data(), count}) == HttpFlow::kPause) {
    paused_ = true;
    timer_.expires_at(Clock::time_point::max());
    return;
  }
  if (!ended_) read_body();
}

// A kept connection that the server closed before it answered anything: it may have been closing already when the
// request was sent, which says nothing about the request.
bool Call::may_try_again(error_code error) const {
  if (!reused_ || is_answered()) return false;
  return error == http::error::end_of_stream || error == asio::error::eof || error == asio::error::connection_reset ||
         error == asio::error::broken_pipe;
}

void Call::try_again() {
  again_ = false;
  reused_ = false;
  connect();
}

void Call::lose(error_code error) {
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() == asio::error::get_system_category() || error.category() == asio::error::get_misc_category()) {
    return end(fail(ErrorCode::kPeerLost,
                    parser_->is_header_done() ? "closed in the middle of its answer" : "closed before it answered"));
  }
  end(not_http());
}

void Call::end(Result<void> result) {
  KVPUSH_CHECK(!ended_, "a call ends once");
  ended_ = true;
  if (result.has_value() && written_ && buffer_.size() == 0 && parser_->get().keep_alive()) {
    timer_.cancel();
    client_->keep(address_, std::move(socket_));
  } else {
    close();
  }
  // Out of the table first: the sink may start, cancel or destroy things.
  client_->calls.erase(id_);
  if (sink_.on_end) sink_.on_end(std::move(result));
}

void Call::close() {
  timer_.cancel();
  resolver_.cancel();
  error_code ignored;
  socket_.close(ignored);
}

void Call::limit(Duration duration, const char* what) {
  Clock::time_point deadline = Clock::now() + duration;
  late_ = what;
  if (call_.total_timeout) deadline = std::min(deadline, started_at_ + *call_.total_timeout);
  if (drop_by_) deadline = std::min(deadline, *drop_by_);
  timer_.expires_at(deadline);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    // An expired wait may be queued already when the timer is set anew or the call pauses.
    if (error || self->ended_ || self->timer_.expiry() > Clock::now()) return;
    self->end(fail(ErrorCode::kTimeout, self->late_));
  });
}

}  // namespace

std::optional<tcp::socket> HttpClient::State::take_idle(const std::string& address) {
  const auto found = idle.find(address);
  if (found == idle.end()) return std::nullopt;
  std::list<IdleConnection>& kept = found->second;
  const auto oldest = Clock::now() - options.idle_timeout;
  kept.remove_if([oldest](const IdleConnection& connection) { return connection.since < oldest; });
  std::optional<tcp::socket> socket;
  while (!kept.empty() && !socket.has_value()) {
    socket = std::move(kept.back().socket);
    kept.pop_back();
    // Readable between two answers means closed (or a server that talks out of turn).
    char byte = 0;
    if (::recv(socket->native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) socket.reset();
  }
  if (kept.empty()) idle.erase(found);
  return socket;
}

void HttpClient::State::keep(const std::string& address, tcp::socket socket) {
  std::list<IdleConnection>& kept = idle[address];
  kept.push_back({std::move(socket), Clock::now()});
  if (kept.size() > options.idle_per_address_max) kept.pop_front();
  if (!sweeping) sweep();
}

void HttpClient::State::sweep() {
  const auto oldest = Clock::now() - options.idle_timeout;
  for (auto& [address, kept] : idle) {
    kept.remove_if([oldest](const IdleConnection& connection) { return connection.since < oldest; });
  }
  std::erase_if(idle, [](const auto& entry) { return entry.second.empty(); });
  sweeping = !idle.empty();
  if (!sweeping) return;
  sweep_timer.expires_after(options.idle_timeout);
  sweep_timer.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->sweep();
  });
}

HttpClient::HttpClient(asio::io_context& io, HttpClientOptions options)
    : state_(std::make_shared<State>(io, options)) {}

HttpClient::~HttpClient() {
  const auto calls = std::exchange(state_->calls, {});
  for (const auto& [id, call] : calls) call->drop();
  state_->idle.clear();
  state_->sweep_timer.cancel();
}

HttpCallId HttpClient::start(HttpCall call, HttpSink sink) {
  const HttpCallId id{++state_->last_id};
  const bool full = state_->calls.size() >= state_->options.calls_max;
  auto made = std::make_shared<Call>(state_, id, std::move(call), std::move(sink));
  state_->calls.emplace(id, made);
  asio::post(state_->io, [made = std::move(made), full] {
    return full ? made->refuse({ErrorCode::kFull, "too many requests are running"}) : made->begin();
  });
  return id;
}

HttpCallId HttpClient::collect(HttpCall call, std::move_only_function<void(Result<HttpAnswer>)> done) {
  // Shared by the three callbacks of one sink, which has one owner and one thread.
  struct Collected {
    HttpCallId id;
    HttpAnswer answer;
    std::move_only_function<void(Result<HttpAnswer>)> done;
  };
  auto collected = std::make_shared<Collected>();
  collected->done = std::move(done);
  HttpSink sink;
  sink.on_head = [collected](const HttpHead& head) {
    collected->answer.status = head.status;
    collected->answer.headers = head.headers;
  };
  sink.on_body = [this, collected](std::string_view bytes) {
    std::string& body = collected->answer.body;
    if (body.size() + bytes.size() > state_->options.collected_bytes_max) {
      cancel(collected->id);
      collected->done(fail(ErrorCode::kFull, "its answer is too large"));
    } else {
      body += bytes;
    }
    return HttpFlow::kContinue;
  };
  sink.on_end = [collected](Result<void> result) {
    if (!result) return collected->done(std::unexpected(result.error()));
    collected->done(std::move(collected->answer));
  };
  collected->id = start(std::move(call), std::move(sink));
  return collected->id;
}

void HttpClient::cancel(HttpCallId id) {
  const auto found = state_->calls.find(id);
  if (found == state_->calls.end()) return;
  const auto call = std::move(found->second);
  state_->calls.erase(found);
  call->drop();
}

void HttpClient::cancel_when_sent(HttpCallId id) {
  const auto found = state_->calls.find(id);
  if (found != state_->calls.end() && !found->second->drop_when_sent()) cancel(id);
}

void HttpClient::resume(HttpCallId id) {
  const auto found = state_->calls.find(id);
  if (found != state_->calls.end()) found->second->resume();
}

std::size_t HttpClient::calls() const {
  return state_->calls.size();
}

std::size_t HttpClient::idle_connections() const {
  std::size_t count = 0;
  for (const auto& [address, kept] : state_->idle) count += kept.size();
  return count;
}

}  // namespace kvpush
