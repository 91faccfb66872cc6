#include "kvpush/control/control.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/completion_condition.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kvpush/base/check.h"
#include "kvpush/base/clock.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/log.h"
#include "kvpush/base/log_limit.h"
#include "kvpush/control/authentication.h"
#include "kvpush/control/secret.h"
#include "kvpush/wire/codec.h"

namespace kvpush {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A connection that carries nothing is probed this often, so that a host that died without a word is noticed. Few
// packets for a thousand sessions, and several within kSilenceMax.
constexpr seconds kProbeInterval{5};
// How long a peer's kernel may be silent, or its receive buffer full, before the connection is given up: longer than a
// network takes to find another path, far shorter than a request waits.
constexpr seconds kSilenceMax{15};
// Pause after a failed accept (no file descriptors left): others may have ended by then.
constexpr milliseconds kAcceptPause{100};

Result<tcp::endpoint> resolve_now(asio::io_context& context, const Endpoint& endpoint) {
  error_code error;
  const auto found = tcp::resolver(context).resolve(endpoint.host, std::to_string(endpoint.port),
                                                    tcp::resolver::numeric_service, error);
  if (error || found.empty()) return fail(ErrorCode::kBadConfig, "the host to listen on has no address");
  return found.begin()->endpoint();
}

void set_option(tcp::socket& socket, int level, int name, int value) {
  // Cannot fail on a TCP socket; one that broke meanwhile says so when it is read.
  static_cast<void>(::setsockopt(socket.native_handle(), level, name, &value, sizeof(value)));
}

// A child that the engine starts must not keep connections and the port alive.
void close_on_exec(int socket) {
  fcntl(socket, F_SETFD, FD_CLOEXEC);
}

// What a frame begins with, little-endian: how many bytes of message follow.
constexpr std::size_t kLengthBytes = 4;

std::uint32_t size_of(std::span<const std::byte, kLengthBytes> length) {
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < length.size(); ++i) size |= std::to_integer<std::uint32_t>(length[i]) << (8 * i);
  return size;
}

Nonce new_nonce() {
  Nonce nonce;
  KVPUSH_CHECK(::getentropy(nonce.data(), nonce.size()) == 0, "the kernel gives random bytes");
  return nonce;
}

// Listens and accepts.
//
// Job: gives each accepted socket to `accepted`, until it is closed.
// Owner: ControlPlane and its running operation, shared: Asio may call a handler after close().
// Thread: agent role.
class Listener : public std::enable_shared_from_this<Listener> {
 public:
  Listener(asio::io_context& context, std::function<void(tcp::socket)> accepted)
      : acceptor_(context), pause_(context), accepted_(std::move(accepted)) {}

  Result<void> listen(const tcp::endpoint& endpoint);
  std::uint16_t port() const { return port_; }
  void accept();
  void close();

 private:
  void on_accept(error_code error, tcp::socket socket);

  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::function<void(tcp::socket)> accepted_;
  std::uint16_t port_ = 0;
};

Result<void> Listener::listen(const tcp::endpoint& endpoint) {
  error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error) close_on_exec(acceptor_.native_handle());
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use) return fail(ErrorCode::kBadConfig, "the port to listen on is taken");
  if (error) return fail(ErrorCode::kBadConfig, "cannot listen on this host and port");
  port_ = acceptor_.local_endpoint(error).port();
  return {};
}

void Listener::accept() {
  acceptor_.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
    if (self->acceptor_.is_open()) self->on_accept(error, std::move(socket));
  });
}

void Listener::on_accept(error_code error, tcp::socket socket) {
  if (error) {
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([self = shared_from_this()](error_code) {
      if (self->acceptor_.is_open()) self->accept();
    });
    return;
  }
  accepted_(std::move(socket));
  if (acceptor_.is_open()) accept();
}

void Listener::close() {
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

// What a connection tells.
struct ConnectionEvents {
  std::function<void(Message)> received;
  std::function<void()> connected;  // and proven, if there is a secret
  std::function<void()> forged;     // a frame was; `ended` follows
  // What the peer sent is no message; `ended` follows.
  std::function<void(const tcp::endpoint& peer, const Error&)> garbled;
  std::function<void(Error)> ended;
};

// One TCP connection with its frames.
//
// Job: connects, proves and asks for proof, reads one message at a time, writes what is queued, ends.
// Owner: ControlPlane and its running operations, shared: Asio may call a handler after the socket was closed, and what
//        the handler reads into must exist until then.
// Thread: agent role.
// Invariant: tells nothing from inside a call, nothing after close(), and nothing after `ended`.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // Without a secret, none is asked for.
  Connection(tcp::socket socket, Side side, const ControlLimits& limits, std::shared_ptr<const Secret> secret,
             ConnectionEvents events)
      : socket_(std::move(socket)),
        resolver_(socket_.get_executor()),
        timer_(socket_.get_executor()),
        side_(side),
        limits_(limits),
        secret_(std::move(secret)),
        events_(std::move(events)) {}

  void dial(const Endpoint& peer);
  // Of a connected socket.
  void start();
  void send(const Message& message);
  void close();

 private:
  enum class State : std::uint8_t {
    kConnecting,
    kProving,
    kOpen,
    kMute,    // writing failed; what the peer said before is still read
    kEnding,  // `ended` is posted
    kClosed,
  };

  void connect(const tcp::resolver::results_type& endpoints);
  void on_connected(error_code error);
  void prove();
  void read_handshake();
  void on_handshake();
  void open();
  void read_length();
  void on_length();
  void on_foreign_handshake();
  void read_body(std::uint32_t size);
  void on_body();
  void seal(std::size_t begin);
  void seal_queued();
  void say(std::span<const std::byte> bytes);
  void flush();
  void write_out();
  // What was read is no message.
  void refuse(Error error);
  void end(Error error);
  void release();
  bool is_live() const { return state_ != State::kEnding && state_ != State::kClosed; }
  // A handler that does `step` unless the connection has ended by then.
  template <class Step>
  auto while_live(Step step) {
    return [self = shared_from_this(), step]<class... Results>(const Results&... results)
      requires std::invocable<const Step&, const Results&...>
    {
      if (self->is_live()) step(results...);
    };
  }

  tcp::socket socket_;
  tcp::resolver resolver_;
  asio::steady_timer timer_;  // one of limits_
  const Side side_;
  const ControlLimits limits_;
  const std::shared_ptr<const Secret> secret_;  // outlives what is keyed by it below
  ConnectionEvents events_;
  State state_ = State::kConnecting;

  std::optional<Handshake> handshake_;  // while kProving
  std::array<std::byte, kHandshakePartBytesMax> part_{};
  struct Macs {
    FrameMac sending;
    FrameMac receiving;
  };
  std::optional<Macs> macs_;  // from then on
  bool has_heard_ = false;    // the length of a first frame

  std::array<std::byte, kLengthBytes> length_{};
  std::vector<std::byte> body_;

  std::vector<std::byte> out_;  // frames; the first sent_ bytes are in the kernel
  std::size_t sent_ = 0;
  bool waiting_ = false;  // until the socket takes more
};

void Connection::dial(const Endpoint& peer) {
  timer_.expires_after(limits_.connect);
  timer_.async_wait(while_live([this](error_code) {
    if (state_ <= State::kProving) end({ErrorCode::kTimeout, "the peer did not answer within the connect limit"});
  }));

  error_code not_numeric;
  const auto address = asio::ip::make_address(peer.host, not_numeric);
  if (!not_numeric) {
    return connect(tcp::resolver::results_type::create(tcp::endpoint(address, peer.port), peer.host, ""));
  }
  // Asio asks the system in a thread of its own, one for all names of an io_context: a name server that does not
  // answer delays other names and the end of the io_context, but no connection.
  resolver_.async_resolve(peer.host, std::to_string(peer.port), tcp::resolver::numeric_service,
                          while_live([this](error_code error, const tcp::resolver::results_type& endpoints) {
                            if (error) return end({ErrorCode::kPeerLost, "the peer's host name has no address"});
                            connect(endpoints);
                          }));
}

void Connection::connect(const tcp::resolver::results_type& endpoints) {
  asio::async_connect(socket_, endpoints,
                      while_live([this](error_code error, const tcp::endpoint&) { on_connected(error); }));
}

void Connection::on_connected(error_code error) {
  if (error) return end({ErrorCode::kPeerLost, "the peer cannot be connected to"});
  // Where nobody listens, the kernel may give a dialled port of this machine to the dialling socket itself.
  if (socket_.local_endpoint(error) == socket_.remote_endpoint(error)) {
    return end({ErrorCode::kPeerLost, "the peer cannot be connected to"});
  }
  start();
}

void Connection::start() {
  error_code ignored;
  close_on_exec(socket_.native_handle());
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);  // messages are small and waited for
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  set_option(socket_, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(kProbeInterval.count()));
  set_option(socket_, IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(kProbeInterval.count()));
  set_option(socket_, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds(kSilenceMax).count()));
  secret_ == nullptr ? open() : prove();
}

void Connection::prove() {
  state_ = State::kProving;
  if (side_ == Side::kAcceptor) {
    timer_.expires_after(limits_.proof);
    timer_.async_wait(while_live([this](error_code) {
      if (state_ == State::kProving) end({ErrorCode::kTimeout, "the peer did not prove its secret in time"});
    }));
  }
  handshake_.emplace(secret_, side_, new_nonce());
  say(handshake_->greeting());
  read_handshake();
}

void Connection::read_handshake() {
  asio::async_read(
      socket_, asio::buffer(part_, handshake_->wanted_bytes()), while_live([this](error_code error, std::size_t) {
        if (error) return end({ErrorCode::kPeerLost, "the connection to the peer broke before it proved its secret"});
        on_handshake();
      }));
}

void Connection::on_handshake() {
  std::vector<std::byte> answer;
  const Result<void> heard = handshake_->on(std::span(part_).first(handshake_->wanted_bytes()), answer);
  say(answer);
  if (!heard) return end(heard.error());
  if (!handshake_->is_proven()) return read_handshake();
  macs_.emplace(handshake_->sending(), handshake_->receiving());
  handshake_.reset();
  seal_queued();
  open();
}

void Connection::open() {
  timer_.cancel();
  state_ = State::kOpen;
  events_.connected();
  if (state_ == State::kOpen) flush();
  if (is_live()) read_length();
}

void Connection::read_length() {
  asio::async_read(socket_, asio::buffer(length_), while_live([this](error_code error, std::size_t) {
                     if (error == asio::error::eof) {
                       return end({ErrorCode::kPeerLost, "the peer closed the connection"});
                     }
                     if (error) return end({ErrorCode::kPeerLost, "the connection to the peer broke"});
                     on_length();
                   }));
}

void Connection::on_length() {
  if (!std::exchange(has_heard_, true) && !macs_ && is_handshake(length_)) return on_foreign_handshake();
  const std::uint32_t size = size_of(length_);
  if (size > kFrameBytesMax) return refuse({ErrorCode::kBadMessage, "a frame is too large"});
  read_body(size + static_cast<std::uint32_t>(macs_ ? kMacBytes : 0));
}

// The peer begins a proof, or says that it would have wanted one; this side has no secret.
void Connection::on_foreign_handshake() {
  if (side_ == Side::kAcceptor) say(handshake_header(Verdict::kNoSecret));
  end({ErrorCode::kUnauthenticated, "the peer has a secret_file, this side has none"});
}

// The buffer grows with what arrives, so a peer that only claims to send much takes no memory.
void Connection::read_body(std::uint32_t size) {
  asio::async_read(socket_, asio::dynamic_buffer(body_), asio::transfer_exactly(size),
                   while_live([this](error_code error, std::size_t) {
                     if (error) return end({ErrorCode::kPeerLost, "the connection to the peer broke in a message"});
                     on_body();
                   }));
}

// One message a turn: Asio runs every other handler that is ready before that of the next read.
void Connection::on_body() {
  const std::vector<std::byte> body = std::exchange(body_, {});
  std::span<const std::byte> bytes = body;
  if (macs_) {
    bytes = bytes.first(body.size() - kMacBytes);
    if (!is_equal(macs_->receiving.next(length_, bytes), std::span(body).last(kMacBytes))) {
      events_.forged();
      return end({ErrorCode::kBadMessage, "a frame is not the one that the peer sent next"});
    }
  }
  Result<Message> message = decode(bytes);
  if (!message) return refuse(message.error());
  events_.received(std::move(*message));
  if (is_live()) read_length();
}

void Connection::send(const Message& message) {
  if (state_ > State::kOpen) return;
  const std::size_t begin = out_.size();
  if (const auto encoded = encode(message, out_); !encoded) return end(encoded.error());
  if (macs_) seal(begin);
  if (state_ == State::kOpen) flush();
  if (out_.size() - sent_ > kSendQueueBytesMax) end({ErrorCode::kFull, "the peer does not read what it is sent"});
}

// What out_ holds from `begin` on is one frame.
void Connection::seal(std::size_t begin) {
  const std::span<const std::byte> frame = std::span(out_).subspan(begin);
  const Mac mac = macs_->sending.next(frame.first(kLengthBytes), frame.subspan(kLengthBytes));
  out_.insert(out_.end(), mac.begin(), mac.end());
}

// What was sent before there was a key.
void Connection::seal_queued() {
  const std::vector<std::byte> frames = std::exchange(out_, {});
  for (std::span<const std::byte> rest = frames; !rest.empty();) {
    const std::size_t size = kLengthBytes + size_of(rest.first<kLengthBytes>());
    const std::size_t begin = out_.size();
    out_.insert(out_.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(size));
    seal(begin);
    rest = rest.subspan(size);
  }
}

// A part of a handshake: fewer bytes than any kernel buffers for a connection on which nothing was written yet. If the
// connection broke, the reader finds it.
void Connection::say(std::span<const std::byte> bytes) {
  error_code ignored;
  if (!bytes.empty()) socket_.write_some(asio::buffer(bytes.data(), bytes.size()), ignored);
}

// Asio's own asynchronous write would not say how much of it is done, which close() has to know.
void Connection::flush() {
  if (waiting_) return;
  write_out();
  if (state_ != State::kOpen || out_.empty()) return;
  waiting_ = true;
  socket_.async_wait(tcp::socket::wait_write, while_live([this](error_code) {
                       waiting_ = false;
                       if (state_ == State::kOpen) flush();
                     }));
}

// Until all is written or the socket takes no more.
void Connection::write_out() {
  error_code error;
  while (sent_ < out_.size() && !error) sent_ += socket_.write_some(asio::buffer(out_) + sent_, error);
  if (error == asio::error::would_block) {
    if (sent_ < out_.size() / 2) return;
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(sent_));
    sent_ = 0;
    return;
  }
  out_ = {};
  sent_ = 0;
  if (!error) return;
  // The peer may have said why before it closed: the reader tells that first, then finds the end.
  state_ = State::kMute;
  socket_.shutdown(tcp::socket::shutdown_both, error);
}

void Connection::refuse(Error error) {
  error_code gone;
  events_.garbled(socket_.remote_endpoint(gone), error);
  end(error);
}

void Connection::end(Error error) {
  state_ = State::kEnding;
  release();
  asio::post(socket_.get_executor(), [self = shared_from_this(), error] {
    if (self->state_ != State::kEnding) return;
    self->state_ = State::kClosed;
    self->events_.ended(error);
  });
}

void Connection::close() {
  if (state_ == State::kOpen) write_out();
  state_ = State::kClosed;
  release();
}

void Connection::release() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);  // whoever else holds the descriptor
  socket_.close(ignored);
  resolver_.cancel();
  timer_.cancel();
}

// Owner of the listener and the connections.
class ControlPlane final : public Control {
 public:
  ControlPlane(asio::io_context& context, const ControlLimits& limits, std::shared_ptr<const Secret> secret,
               ControlEvents events)
      : context_(context), limits_(limits), secret_(std::move(secret)), events_(std::move(events)) {}
  ~ControlPlane() override { stop(); }

  Result<void> listen(const ControlOptions& options);

  std::uint16_t port() const override { return listener_->port(); }
  const ControlCounters& counters() const override { return counters_; }
  ConnectionId connect(const Endpoint& peer) override;
  void send(ConnectionId connection, const Message& message) override;
  void close(ConnectionId connection) override;
  void stop() override;

 private:
  void accept(tcp::socket socket);
  std::shared_ptr<Connection> add(Side side, tcp::socket socket);
  void on_connected(ConnectionId connection);
  void on_ended(ConnectionId connection, const Error& error);
  void on_garbled(const tcp::endpoint& peer, const Error& error);
  void log_once(const std::string& host, const Error& error);
  void remove(ConnectionId connection);

  asio::io_context& context_;
  const ControlLimits limits_;
  const std::shared_ptr<const Secret> secret_;
  const ControlEvents events_;
  std::shared_ptr<Listener> listener_;
  struct Entry {
    Side side;
    std::string host;  // of an accepted peer
    std::shared_ptr<Connection> connection;
    bool is_told = false;  // `accepted` or `connected`
  };
  std::unordered_map<ConnectionId, Entry> connections_;
  std::size_t accepted_count_ = 0;
  bool refusing_ = false;
  ConnectionId id_next_{1};
  ControlCounters counters_;
  std::set<std::string> logged_;  // hosts without proof; at most kSessionsMax
  LogLimit garbled_logged_;
};

Result<void> ControlPlane::listen(const ControlOptions& options) {
  const auto address = resolve_now(context_, options.listen);
  if (!address) return std::unexpected(address.error());
  if (secret_ == nullptr && !options.allow_unauthenticated && !address->address().is_loopback()) {
    return fail(
        ErrorCode::kBadConfig,
        "other machines reach this address: set secret_file (docs/authentication.md), or allow_unauthenticated");
  }
  listener_ = std::make_shared<Listener>(context_, [this](tcp::socket socket) { accept(std::move(socket)); });
  if (const auto ok = listener_->listen(*address); !ok) return ok;
  listener_->accept();
  return {};
}

void ControlPlane::accept(tcp::socket socket) {
  const bool full = accepted_count_ >= kSessionsMax;
  if (full && !refusing_) log(LogLevel::kWarning, "control: as many peers as allowed are connected; refusing more");
  refusing_ = full;
  // Closed by its destructor: the peer learns at once that it has to come again later.
  if (full) return;
  add(Side::kAcceptor, std::move(socket))->start();
}

ConnectionId ControlPlane::connect(const Endpoint& peer) {
  const ConnectionId id = id_next_;
  add(Side::kConnector, tcp::socket(context_))->dial(peer);
  return id;
}

void ControlPlane::send(ConnectionId connection, const Message& message) {
  const auto found = connections_.find(connection);
  if (found != connections_.end()) found->second.connection->send(message);
}

void ControlPlane::close(ConnectionId connection) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  found->second.connection->close();
  remove(connection);
}

void ControlPlane::stop() {
  if (listener_ != nullptr) listener_->close();
  for (const auto& [id, entry] : connections_) entry.connection->close();
  connections_.clear();
  accepted_count_ = 0;
}

std::shared_ptr<Connection> ControlPlane::add(Side side, tcp::socket socket) {
  const ConnectionId id{id_next_.value++};
  ConnectionEvents events{
      .received = [this, id](Message message) { events_.received(id, std::move(message)); },
      .connected = [this, id] { on_connected(id); },
      .forged = [this] { ++counters_.frames_forged; },
      .garbled = [this](const tcp::endpoint& peer, const Error& error) { on_garbled(peer, error); },
      .ended = [this, id](const Error& error) { on_ended(id, error); },
  };
  error_code unconnected;
  const auto peer = socket.remote_endpoint(unconnected);
  auto connection = std::make_shared<Connection>(std::move(socket), side, limits_, secret_, std::move(events));
  if (side == Side::kAcceptor) ++accepted_count_;
  connections_.emplace(id, Entry{side, unconnected ? "" : peer.address().to_string(), connection});
  return connection;
}

void ControlPlane::on_connected(ConnectionId connection) {
  Entry& entry = connections_.at(connection);
  entry.is_told = true;
  if (entry.side == Side::kConnector) return events_.connected(connection);
  logged_.erase(entry.host);
  events_.accepted(connection);
}

void ControlPlane::on_ended(ConnectionId connection, const Error& error) {
  const Entry entry = connections_.at(connection);
  remove(connection);
  const bool is_unproven = error.code == ErrorCode::kUnauthenticated || (secret_ != nullptr && !entry.is_told);
  if (entry.side == Side::kAcceptor && is_unproven) {
    ++counters_.unauthenticated_accepted;
    log_once(entry.host, error);
  }
  // Of an accepted connection that was never told, no end is.
  if (entry.side == Side::kAcceptor && !entry.is_told) return;
  if (entry.side == Side::kAcceptor || error.code != ErrorCode::kUnauthenticated) {
    return events_.closed(connection, error);
  }
  events_.refused(connection, error);
}

// Who sends such things may be nobody that the protocol knows, so the log names the address.
void ControlPlane::on_garbled(const tcp::endpoint& peer, const Error& error) {
  if (!garbled_logged_.take(read_clock())) return;
  log(LogLevel::kWarning, fmt::format("control: the connection to {} port {} is closed: {}", peer.address().to_string(),
                                      peer.port(), error.what));
}

void ControlPlane::log_once(const std::string& host, const Error& error) {
  if (logged_.size() >= kSessionsMax || !logged_.insert(host).second) return;
  log(LogLevel::kWarning, fmt::format("control: refusing {}: {} ({})", host, error.what, error_name(error.code)));
}

void ControlPlane::remove(ConnectionId connection) {
  const auto found = connections_.find(connection);
  if (found->second.side == Side::kAcceptor) --accepted_count_;
  connections_.erase(found);
}

}  // namespace

Result<std::unique_ptr<Control>> Control::open(asio::io_context& context, const ControlOptions& options,
                                               ControlEvents events) {
  std::shared_ptr<const Secret> secret;
  if (!options.secret_file.empty()) {
    auto read = Secret::read(options.secret_file);
    if (!read) return std::unexpected(read.error());
    secret = *std::move(read);
  }
  auto control = std::make_unique<ControlPlane>(context, options.limits, std::move(secret), std::move(events));
  if (const auto ok = control->listen(options); !ok) return std::unexpected(ok.error());
  return control;
}

}  // namespace kvpush
