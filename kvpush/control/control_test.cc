#include "kvpush/control/control.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvpush/base/check.h"
#include "kvpush/wire/codec.h"

namespace kvpush {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Far beyond what anything here takes, so that only a fault reaches it.
constexpr auto kPatience = 20s;
// Of a control that is to give up, far below what ControlLimits says by itself.
constexpr auto kShortLimit = 100ms;

bool run_until(asio::io_context& context, const std::function<bool()>& happened) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!happened()) {
    if (context.run_one_until(deadline) == 0) return false;
  }
  return true;
}

// Runs what is ready, and what becomes ready at once.
void run_ready(asio::io_context& context) {
  while (context.run_one_for(20ms) > 0) {
  }
}

// A control plane that writes down what it is told.
class Node {
 public:
  struct Closed {
    ConnectionId connection;
    ErrorCode code;
    bool operator==(const Closed&) const = default;
  };

  explicit Node(asio::io_context& context, const ControlOptions& options = {}) {
    ControlEvents events{
        .accepted = [this](ConnectionId id) { on_event([&] { accepted.push_back(id); }); },
        .connected = [this](ConnectionId id) { on_event([&] { connected.push_back(id); }); },
        .received =
            [this](ConnectionId id, Message message) {
              on_event([&] {
                received.emplace_back(id, std::move(message));
                if (on_received) on_received(id);
              });
            },
        .closed = [this](ConnectionId id, Error error) { on_event([&] { closed.push_back({id, error.code}); }); },
        .refused = [this](ConnectionId id, Error error) { on_event([&] { refused.emplace_back(id, error.what); }); },
    };
    control_ = Control::open(context, options, std::move(events)).value();
  }

  Endpoint endpoint() const { return {"127.0.0.1", control_->port()}; }
  ConnectionId connect(const Endpoint& peer) {
    const Inside call(calling_);
    return control_->connect(peer);
  }
  void send(ConnectionId id, const Message& message) {
    const Inside call(calling_);
    control_->send(id, message);
  }
  void close(ConnectionId id) {
    const Inside call(calling_);
    control_->close(id);
  }
  void stop() {
    const Inside call(calling_);
    control_->stop();
  }
  void destroy() { control_.reset(); }
  const ControlCounters& counters() const { return control_->counters(); }

  std::vector<ConnectionId> accepted;
  std::vector<ConnectionId> connected;
  std::vector<std::pair<ConnectionId, Message>> received;
  std::vector<Closed> closed;
  std::vector<std::pair<ConnectionId, std::string>> refused;
  std::function<void(ConnectionId)> on_received;

 private:
  // Marks that a call runs.
  class Inside {
   public:
    explicit Inside(bool& flag) : flag_(flag) { flag_ = true; }
    ~Inside() { flag_ = false; }

   private:
    bool& flag_;
  };

  template <class Event>
  void on_event(Event event) {
    KVPUSH_CHECK(!calling_, "an event came from inside a call");
    event();
  }

  bool calling_ = false;
  std::unique_ptr<Control> control_;
};

constexpr std::size_t kMacBytesOnWire = 32;

// A file with a secret, while it lives.
class SharedSecret {
 public:
  explicit SharedSecret(char letter)
      : path_(testing::TempDir() + "kvpush_control_" + letter + std::to_string(getpid())) {
    std::ofstream(path_) << std::string(32, letter);
    EXPECT_EQ(chmod(path_.c_str(), 0600), 0);
  }
  ~SharedSecret() { std::remove(path_.c_str()); }
  SharedSecret(const SharedSecret&) = delete;
  SharedSecret& operator=(const SharedSecret&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A peer that speaks bytes, not messages.
class RawPeer {
 public:
  RawPeer(asio::io_context& context, const Endpoint& peer) : socket_(context) {
    socket_.connect({asio::ip::make_address(peer.host), peer.port});
  }
  explicit RawPeer(tcp::socket socket) : socket_(std::move(socket)) {}

  void write(std::string_view bytes) { asio::write(socket_, asio::buffer(bytes)); }
  void write(const std::vector<std::byte>& bytes) { asio::write(socket_, asio::buffer(bytes)); }
  void close() { socket_.close(); }
  // Makes the kernel send a reset instead of an end.
  void reset() {
    socket_.set_option(asio::socket_base::linger(true, 0));
    socket_.close();
  }
  // Until the other side has ended the connection.
  std::string read_all() {
    std::string bytes;
    boost::system::error_code ignored;
    asio::read(socket_, asio::dynamic_buffer(bytes), ignored);
    return bytes;
  }

 private:
  tcp::socket socket_;
};

std::vector<std::byte> frame(const Message& message) {
  std::vector<std::byte> bytes;
  encode(message, bytes).value();
  return bytes;
}

Message writing(std::uint64_t registration) {
  return Writing{RegistrationNumber{registration}};
}

// Nearly as large as a message can be.
Message large_message() {
  std::vector<BlockSpan> spans;
  for (std::uint32_t i = 0; i < kBlocksPerTableMax; ++i) spans.push_back({BlockId{2 * i}, 1});
  return Register{.registration = RegistrationNumber{1}, .transfer_id = "t", .tokens = {0, 16}, .tables = {{spans}}};
}

class ControlTest : public testing::Test {
 protected:
  // A session from `consumer` to `producer`.
  void connect() {
    to_producer = consumer.connect(producer.endpoint());
    ASSERT_TRUE(run_until(context, [&] { return !producer.accepted.empty() && !consumer.connected.empty(); }));
    to_consumer = producer.accepted.back();
  }

  // A socket of our own that is accepted by `producer`.
  RawPeer raw_peer() {
    RawPeer peer(context, producer.endpoint());
    const std::size_t before = producer.accepted.size();
    EXPECT_TRUE(run_until(context, [&] { return producer.accepted.size() > before; }));
    to_consumer = producer.accepted.back();
    return peer;
  }

  void expect_closed(Node& node, ConnectionId id, ErrorCode code) {
    ASSERT_TRUE(run_until(context, [&] { return !node.closed.empty(); })) << "closed was not told";
    run_ready(context);
    EXPECT_THAT(node.closed, ElementsAre(Node::Closed{id, code}));
  }

  asio::io_context context;
  Node producer{context};
  Node consumer{context};
  ConnectionId to_producer;  // as the consumer names it
  ConnectionId to_consumer;  // as the producer names it
};

TEST_F(ControlTest, CarriesMessagesBothWaysInOrder) {
  connect();

  for (std::uint64_t i = 0; i < 5; ++i) {
    consumer.send(to_producer, writing(i));
    producer.send(to_consumer, writing(100 + i));
  }

  ASSERT_TRUE(run_until(context, [&] { return producer.received.size() == 5 && consumer.received.size() == 5; }));
  for (std::uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(producer.received[i], std::pair(to_consumer, writing(i)));
    EXPECT_EQ(consumer.received[i], std::pair(to_producer, writing(100 + i)));
  }
}

TEST_F(ControlTest, SendsWhatWasQueuedBeforeItWasConnected) {
  const ConnectionId id = consumer.connect(producer.endpoint());
  consumer.send(id, writing(1));
  consumer.send(id, writing(2));

  ASSERT_TRUE(run_until(context, [&] { return producer.received.size() == 2; }));
  EXPECT_EQ(producer.received[0].second, writing(1));
  EXPECT_EQ(producer.received[1].second, writing(2));
}

TEST_F(ControlTest, ConnectsToAName) {
  consumer.connect({"localhost", producer.endpoint().port});
  EXPECT_TRUE(run_until(context, [&] { return !producer.accepted.empty() && !consumer.connected.empty(); }));
}

TEST_F(ControlTest, CarriesLargeMessages) {
  connect();
  const Message message = large_message();

  consumer.send(to_producer, message);
  consumer.send(to_producer, writing(2));

  ASSERT_TRUE(run_until(context, [&] { return producer.received.size() == 2; }));
  EXPECT_EQ(producer.received[0].second, message);
  EXPECT_EQ(producer.received[1].second, writing(2));
}

TEST_F(ControlTest, CarriesManyMessages) {
  connect();
  constexpr std::size_t kMessages = 20'000;

  for (std::size_t i = 0; i < kMessages; ++i) consumer.send(to_producer, writing(i));

  ASSERT_TRUE(run_until(context, [&] { return producer.received.size() == kMessages; })) << producer.received.size();
  for (std::size_t i = 0; i < kMessages; ++i) ASSERT_EQ(producer.received[i].second, writing(i));
}

TEST_F(ControlTest, DoesNotLetAPeerThatSendsMuchHoldUpAnother) {
  RawPeer busy = raw_peer();
  const ConnectionId busy_id = to_consumer;
  connect();
  std::vector<std::byte> many;
  for (std::uint64_t i = 0; i < 1000; ++i) encode(writing(i), many).value();
  busy.write(many);
  consumer.send(to_producer, writing(1));

  ASSERT_TRUE(run_until(context, [&] {
    return std::ranges::any_of(producer.received, [&](const auto& got) { return got.first != busy_id; });
  }));
  EXPECT_LT(producer.received.size(), 100u) << "messages were handled before that of the quiet peer";
}

TEST_F(ControlTest, ReadsAMessageThatArrivesByteByByte) {
  RawPeer peer = raw_peer();
  for (const std::byte byte : frame(writing(3))) {
    peer.write(std::vector{byte});
    context.poll();
  }
  ASSERT_TRUE(run_until(context, [&] { return !producer.received.empty(); }));
  EXPECT_EQ(producer.received[0].second, writing(3));
}

TEST_F(ControlTest, ClosesAPeerThatDoesNotRead) {
  RawPeer peer = raw_peer();
  const Message message = large_message();

  for (int i = 0; i < 100 && producer.closed.empty(); ++i) {
    producer.send(to_consumer, message);
    context.poll();
  }

  expect_closed(producer, to_consumer, ErrorCode::kFull);
}

// Shows E3.
TEST_F(ControlTest, ClosesAPeerThatSpeaksAnotherProtocol) {
  RawPeer peer = raw_peer();
  peer.write("GET / HTTP/1.1\r\nHost: decode-1\r\n\r\n");
  expect_closed(producer, to_consumer, ErrorCode::kBadMessage);
  EXPECT_THAT(peer.read_all(), IsEmpty());
}

// Shows E3.
TEST_F(ControlTest, ClosesAPeerWhoseFrameIsNoMessage) {
  RawPeer peer = raw_peer();
  peer.write(std::string_view("\x08\0\0\0garbage!", 12));
  peer.write(frame(writing(1)));
  expect_closed(producer, to_consumer, ErrorCode::kBadMessage);
  EXPECT_THAT(producer.received, IsEmpty());
}

TEST_F(ControlTest, ClosesAPeerWhoseFrameIsEmpty) {
  RawPeer peer = raw_peer();
  peer.write(std::string_view("\0\0\0\0", 4));
  expect_closed(producer, to_consumer, ErrorCode::kBadMessage);
}

// Shows E3.
TEST_F(ControlTest, ClosesAPeerWhoseFrameIsTooLargeBeforeItArrives) {
  RawPeer peer = raw_peer();
  peer.write(std::string_view("\x01\0\x20\0", 4));  // kFrameBytesMax + 1
  expect_closed(producer, to_consumer, ErrorCode::kBadMessage);
}

TEST_F(ControlTest, TellsThatAPeerLeftInTheMiddleOfAMessage) {
  RawPeer peer = raw_peer();
  std::vector<std::byte> bytes = frame(writing(1));
  bytes.pop_back();
  peer.write(bytes);
  peer.close();
  expect_closed(producer, to_consumer, ErrorCode::kPeerLost);
  EXPECT_THAT(producer.received, IsEmpty());
}

TEST_F(ControlTest, TellsWhatAPeerSaidBeforeItLeft) {
  RawPeer peer = raw_peer();
  peer.write(frame(writing(1)));
  peer.write(frame(writing(2)));
  peer.close();
  expect_closed(producer, to_consumer, ErrorCode::kPeerLost);
  EXPECT_EQ(producer.received.size(), 2u);
}

TEST_F(ControlTest, TellsThatAConnectionWasReset) {
  RawPeer peer = raw_peer();
  peer.reset();
  expect_closed(producer, to_consumer, ErrorCode::kPeerLost);
}

TEST_F(ControlTest, TellsThatNobodyListens) {
  tcp::acceptor unused(context, {asio::ip::make_address("127.0.0.1"), 0});
  const Endpoint nobody{"127.0.0.1", unused.local_endpoint().port()};
  unused.close();

  const ConnectionId id = consumer.connect(nobody);

  expect_closed(consumer, id, ErrorCode::kPeerLost);
  EXPECT_THAT(consumer.connected, IsEmpty());
}

TEST_F(ControlTest, TellsThatANameHasNoAddress) {
  // No name is longer than 255 bytes, so this is known without asking a name server.
  const ConnectionId id = consumer.connect({std::string(300, 'x'), 1});
  expect_closed(consumer, id, ErrorCode::kPeerLost);
}

TEST_F(ControlTest, GivesUpOnAPeerThatDoesNotAnswer) {
  // Once a backlog is full, Linux answers no more first packets.
  tcp::acceptor deaf(context);
  deaf.open(tcp::v4());
  deaf.bind({asio::ip::make_address("127.0.0.1"), 0});
  deaf.listen(0);
  const Endpoint endpoint{"127.0.0.1", deaf.local_endpoint().port()};
  RawPeer first(context, endpoint);

  const auto start = std::chrono::steady_clock::now();
  Node hasty(context, {.limits = {.connect = kShortLimit}});
  const ConnectionId id = hasty.connect(endpoint);

  expect_closed(hasty, id, ErrorCode::kTimeout);
  EXPECT_GE(std::chrono::steady_clock::now() - start, kShortLimit);
}

TEST_F(ControlTest, DeliversNothingAfterClose) {
  RawPeer peer = raw_peer();
  for (std::uint64_t i = 0; i < 10; ++i) peer.write(frame(writing(i)));
  producer.on_received = [&](ConnectionId id) { producer.close(id); };

  ASSERT_TRUE(run_until(context, [&] { return !producer.received.empty(); }));
  run_ready(context);

  EXPECT_EQ(producer.received.size(), 1u);
  EXPECT_THAT(producer.closed, IsEmpty());
}

TEST_F(ControlTest, TellsNoEndAfterClose) {
  connect();
  const Message message = large_message();
  // The end is found in this call, and told later.
  for (int i = 0; i < 100; ++i) consumer.send(to_producer, message);
  consumer.close(to_producer);
  run_ready(context);
  EXPECT_THAT(consumer.closed, IsEmpty());
}

TEST_F(ControlTest, LeavesNothingToChildrenOfItsProcess) {
  connect();

  std::size_t sockets = 0;
  for (int fd = 0; fd < 256; ++fd) {
    struct stat status{};
    if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
    ++sockets;
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC) << "descriptor " << fd;
  }
  EXPECT_GE(sockets, 4u) << "two that listen, two that are connected";
}

TEST_F(ControlTest, EndsAConnectionOfWhichAChildHoldsACopy) {
  connect();
  std::vector<int> copies;
  for (int fd = 0; fd < 256; ++fd) {
    struct stat status{};
    if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode)) copies.push_back(dup(fd));
  }

  producer.close(to_consumer);

  expect_closed(consumer, to_producer, ErrorCode::kPeerLost);
  for (const int copy : copies) close(copy);
}

TEST_F(ControlTest, ClosesWhileItConnects) {
  const ConnectionId by_address = consumer.connect(producer.endpoint());
  const ConnectionId by_name = consumer.connect({"localhost", producer.endpoint().port});
  consumer.close(by_address);
  consumer.close(by_name);
  run_ready(context);
  EXPECT_THAT(consumer.connected, IsEmpty());
  EXPECT_THAT(consumer.closed, IsEmpty());
}

TEST_F(ControlTest, HandsOverWhatWasSentBeforeClose) {
  connect();
  producer.send(to_consumer, Refused{ErrorCode::kStaleSession, "older than one already seen"});
  producer.close(to_consumer);
  expect_closed(consumer, to_producer, ErrorCode::kPeerLost);
  EXPECT_EQ(consumer.received.size(), 1u);
}

TEST_F(ControlTest, TellsTheLastWordOfAPeerThatNoLongerReads) {
  connect();
  // What the producer has not read makes its kernel answer with a reset, and the consumer's next writes fail.
  consumer.send(to_producer, writing(1));
  producer.send(to_consumer, Refused{ErrorCode::kStopped, "draining"});
  producer.close(to_consumer);
  consumer.send(to_producer, writing(2));
  consumer.send(to_producer, writing(3));

  expect_closed(consumer, to_producer, ErrorCode::kPeerLost);
  ASSERT_EQ(consumer.received.size(), 1u);
  EXPECT_EQ(message_name(consumer.received[0].second), "Refused");
}

TEST_F(ControlTest, ClosesAConnectionWhoseMessageCannotBeEncoded) {
  connect();
  consumer.send(to_producer, Unwanted{std::string(kTransferIdBytesMax + 1, 'x')});
  expect_closed(consumer, to_producer, ErrorCode::kBadMessage);
}

TEST_F(ControlTest, IgnoresConnectionsItDoesNotKnow) {
  connect();
  consumer.close(to_producer);
  consumer.close(to_producer);
  consumer.send(to_producer, writing(1));
  consumer.send(ConnectionId{12345}, writing(1));
  run_ready(context);
  EXPECT_THAT(producer.received, IsEmpty());
}

TEST_F(ControlTest, NeverReusesAnId) {
  const ConnectionId first = consumer.connect(producer.endpoint());
  consumer.close(first);
  const ConnectionId second = consumer.connect(producer.endpoint());
  EXPECT_NE(first, second);
}

TEST_F(ControlTest, StopsWithTrafficInFlight) {
  connect();
  RawPeer peer = raw_peer();
  peer.write(frame(large_message()));
  for (std::uint64_t i = 0; i < 1000; ++i) consumer.send(to_producer, writing(i));
  consumer.connect(producer.endpoint());
  context.poll_one();
  const std::size_t before = producer.received.size();

  producer.stop();
  const Endpoint endpoint = producer.endpoint();
  run_ready(context);

  EXPECT_EQ(producer.received.size(), before);
  EXPECT_THAT(producer.closed, IsEmpty());
  EXPECT_FALSE(consumer.closed.empty());
  boost::system::error_code refused;
  tcp::socket(context).connect({asio::ip::make_address(endpoint.host), endpoint.port}, refused);
  EXPECT_EQ(refused, asio::error::connection_refused);
}

TEST_F(ControlTest, StopsFromInsideAnEvent) {
  connect();
  producer.on_received = [&](ConnectionId) { producer.stop(); };
  consumer.send(to_producer, writing(1));
  consumer.send(to_producer, writing(2));
  run_ready(context);
  EXPECT_EQ(producer.received.size(), 1u);
}

TEST_F(ControlTest, IsDestroyedWithOperationsRunning) {
  connect();
  consumer.connect({"localhost", producer.endpoint().port});
  consumer.send(to_producer, large_message());
  producer.destroy();
  consumer.destroy();
  run_ready(context);
}

TEST_F(ControlTest, RefusesMorePeersThanAllowed) {
  // Both ends of each connection are in this process.
  constexpr rlim_t kFilesNeeded = 2 * kSessionsMax + 100;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < kFilesNeeded) GTEST_SKIP() << "only " << files.rlim_max << " open files are allowed";
  files.rlim_cur = std::max(files.rlim_cur, kFilesNeeded);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);

  std::vector<RawPeer> peers;
  for (std::size_t i = 0; i < kSessionsMax; ++i) {
    peers.emplace_back(context, producer.endpoint());
    // As they come: the kernel holds only so many back.
    ASSERT_TRUE(run_until(context, [&] { return producer.accepted.size() == i + 1; }));
  }

  RawPeer refused(context, producer.endpoint());
  run_ready(context);
  EXPECT_THAT(refused.read_all(), IsEmpty());
  EXPECT_EQ(producer.accepted.size(), kSessionsMax);

  peers.back().close();
  ASSERT_TRUE(run_until(context, [&] { return !producer.closed.empty(); }));
  raw_peer();
}

// Shows C6.
TEST(ControlOpen, RefusesAPortThatIsTaken) {
  asio::io_context context;
  const Node first(context);
  const auto second = Control::open(context, {.listen = first.endpoint()}, {});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kBadConfig);
}

// Shows C6.
TEST(ControlOpen, RefusesAHostOfAnotherMachine) {
  asio::io_context context;
  const auto control = Control::open(context, {.listen = {"192.0.2.1", 0}, .allow_unauthenticated = true}, {});
  ASSERT_FALSE(control.has_value());
  EXPECT_EQ(control.error().code, ErrorCode::kBadConfig);
}

TEST(ControlOpen, RefusesToListenBeyondLoopbackWithoutASecret) {
  asio::io_context context;
  const auto control = Control::open(context, {.listen = {"0.0.0.0", 0}}, {});
  ASSERT_FALSE(control.has_value());
  EXPECT_EQ(control.error().code, ErrorCode::kBadConfig);
  EXPECT_THAT(control.error().what, testing::AllOf(HasSubstr("secret_file"), HasSubstr("allow_unauthenticated")));

  EXPECT_TRUE(Control::open(context, {.listen = {"0.0.0.0", 0}, .allow_unauthenticated = true}, {}).has_value());
  const SharedSecret file('s');
  EXPECT_TRUE(Control::open(context, {.listen = {"0.0.0.0", 0}, .secret_file = file.path()}, {}).has_value());
}

TEST(ControlOpen, RefusesASecretThatCannotBeRead) {
  asio::io_context context;
  const auto control = Control::open(context, {.secret_file = "/nowhere"}, {});
  ASSERT_FALSE(control.has_value());
  EXPECT_EQ(control.error().code, ErrorCode::kBadConfig);
}

// Passes the bytes between two controls on, as a test wants them.
//
// Job: a man in the middle, by whole reads.
// Thread: the test's.
class Middle {
 public:
  Middle(asio::io_context& context, const Endpoint& target)
      : acceptor_(context, {asio::ip::make_address("127.0.0.1"), 0}), near_(context), far_(context) {
    acceptor_.async_accept(near_, [this, target](boost::system::error_code) {
      far_.connect({asio::ip::make_address(target.host), target.port});
      pass(near_, far_, forth_, on_forth);
      pass(far_, near_, back_, on_back);
    });
  }

  Endpoint endpoint() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }

  std::function<void(std::string&)> on_forth = [](std::string&) {};
  std::function<void(std::string&)> on_back = [](std::string&) {};

 private:
  void pass(tcp::socket& from, tcp::socket& to, std::array<char, 1 << 16>& buffer,
            std::function<void(std::string&)>& change) {
    from.async_read_some(asio::buffer(buffer), [&](boost::system::error_code error, std::size_t size) {
      boost::system::error_code gone;
      if (error) return static_cast<void>(to.shutdown(tcp::socket::shutdown_send, gone));
      std::string bytes(buffer.data(), size);
      change(bytes);
      asio::write(to, asio::buffer(bytes), gone);
      pass(from, to, buffer, change);
    });
  }

  tcp::acceptor acceptor_;
  tcp::socket near_;
  tcp::socket far_;
  std::array<char, 1 << 16> forth_{};
  std::array<char, 1 << 16> back_{};
};

class AuthenticationTest : public testing::Test {
 protected:
  // A session through `middle`, on which one message went forth.
  void connect() {
    to_producer = consumer.connect(middle.endpoint());
    consumer.send(to_producer, writing(1));
    ASSERT_TRUE(run_until(context, [&] { return producer.received.size() == 1; }));
    ASSERT_THAT(consumer.connected, ElementsAre(to_producer));
  }
  void expect_forged() {
    ASSERT_TRUE(run_until(context, [&] { return !producer.closed.empty() && !consumer.closed.empty(); }));
    EXPECT_EQ(producer.closed[0].code, ErrorCode::kBadMessage);
    EXPECT_EQ(producer.received.size(), 1u);
    EXPECT_EQ(producer.counters().frames_forged, 1u);
  }
  // A connection between two nodes of which the second listens, and which both refuse.
  void expect_refused(Node& from, Node& to) {
    const ConnectionId id = from.connect(to.endpoint());
    from.send(id, writing(1));
    ASSERT_TRUE(run_until(context, [&] {
      return !from.refused.empty() && to.counters().unauthenticated_accepted == 1;
    })) << "one side did not learn of it";
    run_ready(context);
    EXPECT_EQ(from.refused.size(), 1u);
    EXPECT_THAT(from.closed, IsEmpty());
    EXPECT_THAT(to.received, IsEmpty());
  }

  const SharedSecret file{'s'};
  const SharedSecret other{'o'};
  asio::io_context context;
  Node producer{context, {.secret_file = file.path()}};
  Node consumer{context, {.secret_file = file.path()}};
  Middle middle{context, producer.endpoint()};
  ConnectionId to_producer;
};

TEST_F(AuthenticationTest, CarriesMessagesBothWaysWhenTheSecretIsTheSame) {
  connect();
  producer.send(producer.accepted[0], writing(2));
  consumer.send(to_producer, large_message());
  consumer.send(to_producer, writing(3));

  ASSERT_TRUE(run_until(context, [&] { return producer.received.size() == 3 && consumer.received.size() == 1; }));
  EXPECT_EQ(consumer.received[0].second, writing(2));
  EXPECT_EQ(producer.received[1].second, large_message());
  EXPECT_EQ(producer.received[2].second, writing(3));
}

TEST_F(AuthenticationTest, RefusesAnotherSecret) {
  Node stranger(context, {.secret_file = other.path()});
  expect_refused(stranger, producer);
  EXPECT_THAT(stranger.refused[0].second, HasSubstr("another secret"));
  EXPECT_THAT(producer.accepted, IsEmpty());
}

TEST_F(AuthenticationTest, TellsBothSidesThatTheConnectingOneHasNoSecret) {
  Node open(context);
  expect_refused(open, producer);
  EXPECT_EQ(open.refused[0].second, "the peer has a secret_file, this side has none");
  EXPECT_THAT(producer.accepted, IsEmpty());
}

TEST_F(AuthenticationTest, TellsBothSidesThatTheListeningOneHasNoSecret) {
  Node open(context);
  expect_refused(producer, open);
  EXPECT_EQ(producer.refused[0].second, "the peer has no secret_file, this side has one");
  EXPECT_THAT(producer.connected, IsEmpty());
}

// Shows E3, F1.
TEST_F(AuthenticationTest, ClosesAndCountsAPeerThatSendsGarbage) {
  for (const std::string_view garbage : {"GET / HTTP/1.1\r\n\r\n", "kvPS\1\7\0\0", "kvPS\2\0\0\0"}) {
    const std::uint64_t before = producer.counters().unauthenticated_accepted;
    RawPeer peer(context, producer.endpoint());
    peer.write(std::string(garbage) + std::string(100, '\0'));
    ASSERT_TRUE(run_until(context, [&] { return producer.counters().unauthenticated_accepted == before + 1; }));
    EXPECT_THAT(peer.read_all(), IsEmpty());
  }
  EXPECT_THAT(producer.accepted, IsEmpty());
  EXPECT_THAT(producer.closed, IsEmpty()) << "nothing was told of them";
}

TEST_F(AuthenticationTest, LogsAPeerWithoutProofOnce) {
  testing::internal::CaptureStderr();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    RawPeer(context, producer.endpoint()).close();
    ASSERT_TRUE(run_until(context, [&] { return producer.counters().unauthenticated_accepted == i; }));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("refusing 127.0.0.1"), said.rfind("refusing 127.0.0.1")) << said;
  EXPECT_THAT(said, HasSubstr("refusing 127.0.0.1"));
}

TEST_F(AuthenticationTest, GivesUpOnAPeerThatDoesNotProveItself) {
  const auto start = std::chrono::steady_clock::now();
  Node hasty(context, {.secret_file = file.path(), .limits = {.proof = kShortLimit}});
  RawPeer peer(context, hasty.endpoint());
  peer.write("kv");
  ASSERT_TRUE(run_until(context, [&] { return hasty.counters().unauthenticated_accepted == 1; }));
  EXPECT_GE(std::chrono::steady_clock::now() - start, kShortLimit);
}

TEST_F(AuthenticationTest, GivesUpOnAListenerThatDoesNotProveItself) {
  tcp::acceptor mute(context, {asio::ip::make_address("127.0.0.1"), 0});
  Node hasty(context, {.secret_file = file.path(), .limits = {.connect = kShortLimit}});
  const ConnectionId id = hasty.connect({"127.0.0.1", mute.local_endpoint().port()});
  ASSERT_TRUE(run_until(context, [&] { return !hasty.closed.empty(); }));
  EXPECT_THAT(hasty.closed, ElementsAre(Node::Closed{id, ErrorCode::kTimeout}));
}

TEST_F(AuthenticationTest, ClosesASessionInWhichAFrameWasChanged) {
  connect();
  middle.on_forth = [](std::string& bytes) { bytes[bytes.size() - kMacBytesOnWire - 1] ^= 1; };
  consumer.send(to_producer, writing(2));
  expect_forged();
}

TEST_F(AuthenticationTest, ClosesASessionInWhichAFrameWasRepeated) {
  connect();
  middle.on_forth = [](std::string& bytes) { bytes += bytes; };
  consumer.send(to_producer, writing(2));
  ASSERT_TRUE(run_until(context, [&] { return !producer.closed.empty(); }));
  EXPECT_EQ(producer.received.size(), 2u) << "the first time it was right";
  EXPECT_EQ(producer.counters().frames_forged, 1u);
}

TEST_F(AuthenticationTest, ClosesASessionInWhichAFrameWasLeftOut) {
  connect();
  middle.on_forth = [](std::string& bytes) { bytes.clear(); };
  consumer.send(to_producer, writing(2));
  run_ready(context);
  middle.on_forth = [](std::string&) {};
  consumer.send(to_producer, writing(3));
  expect_forged();
}

TEST_F(AuthenticationTest, ClosesASessionIntoWhichAPlainFrameWasPut) {
  connect();
  middle.on_forth = [](std::string& bytes) {
    const std::vector<std::byte> plain = frame(writing(9));
    bytes.assign(reinterpret_cast<const char*>(plain.data()), plain.size());
    bytes += std::string(kMacBytesOnWire, 'x');
  };
  consumer.send(to_producer, writing(2));
  expect_forged();
}

TEST_F(AuthenticationTest, GivesNothingToASessionWhoseHandshakeIsPlayedAgain) {
  std::string said;
  middle.on_forth = [&](std::string& bytes) { said += bytes; };
  connect();
  const std::uint64_t before = producer.counters().unauthenticated_accepted;

  RawPeer replay(context, producer.endpoint());
  replay.write(said);

  ASSERT_TRUE(run_until(context, [&] { return producer.counters().unauthenticated_accepted == before + 1; }));
  EXPECT_EQ(producer.received.size(), 1u);
}

}  // namespace
}  // namespace kvpush
