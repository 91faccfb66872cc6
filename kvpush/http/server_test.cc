#include "kvpush/http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "kvpush/http/testing.h"

namespace kvpush {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// The socket of this process whose other end has this port of this machine; -1 if there is none.
int descriptor_connected_to(std::uint16_t port) {
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family == AF_INET && ntohs(address.sin_port) == port) return descriptor;
  }
  return -1;
}

int socket_option(int socket, int level, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  EXPECT_EQ(::getsockopt(socket, level, option, &value, &size), 0);
  return value;
}

// A server that hands its requests to the test, and the peers that talk to it.
class HttpServerTest : public testing::Test {
 protected:
  struct Asked {
    HttpRequest request;
    HttpResponder responder;
  };

  void serve(HttpServerOptions options = {}) {
    options.bad_requests = &bad_requests_;
    auto server = HttpServer::open(loop_.io, std::move(options), [this](HttpRequest request, HttpResponder responder) {
      asked_.push_back({std::move(request), std::move(responder)});
    });
    ASSERT_TRUE(server.has_value());
    server_ = std::move(*server);
  }
  TestPeer client() { return TestPeer::connected_to(loop_, server_->port()); }
  // The oldest request that has arrived.
  Asked next() {
    loop_.until("a request arrives", [this] { return !asked_.empty(); });
    Asked asked = std::move(asked_.front());
    asked_.pop_front();
    return asked;
  }
  // A whole exchange, after which the peer keeps its connection.
  void ask_and_answer(TestPeer& peer) {
    peer.send("GET / HTTP/1.1\r\n\r\n");
    next().responder.reply({.body = "answer"});
    peer.take_until(loop_, "answer");
  }
  void expect_closed(TestPeer& peer) {
    loop_.until("the server closes", [&] { return peer.closed(); });
  }
  std::string metrics() const { return registry_.render(); }

  TestLoop loop_;
  Registry registry_;
  Counter& bad_requests_ = http_bad_requests(registry_);
  std::deque<Asked> asked_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, HandsOverARequestAndSendsItsAnswer) {
  serve();
  TestPeer peer = client();

  peer.send("POST /a?b=1 HTTP/1.1\r\nHost: x\r\nX-Request-Id: 7\r\nContent-Length: 4\r\n\r\nbody");
  Asked asked = next();
  asked.responder.reply({.status = 201, .body = "{}"});

  EXPECT_EQ(asked.request.method, "POST");
  EXPECT_EQ(asked.request.target, "/a?b=1");
  EXPECT_EQ(asked.request.path(), "/a");
  EXPECT_EQ(asked.request.headers.find("x-request-id"), "7");
  EXPECT_EQ(asked.request.body, "body");
  EXPECT_EQ(peer.take_until(loop_, "{}"),
            "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
}

TEST_F(HttpServerTest, ReadsARequestThatComesInPieces) {
  serve();
  TestPeer peer = client();

  for (const char* piece : {"PO", "ST /a HTTP/1.1\r\nContent-", "Length: 4\r\n\r", "\nbo"}) {
    peer.send(piece);
    loop_.settle();
    EXPECT_TRUE(asked_.empty());
  }
  peer.send("dy");

  EXPECT_EQ(next().request.body, "body");
}

TEST_F(HttpServerTest, KeepsTheConnectionForTheNextRequest) {
  serve();
  TestPeer peer = client();

  for (const char* target : {"/1", "/2", "/3"}) {
    peer.send("GET " + std::string(target) + " HTTP/1.1\r\n\r\n");
    Asked asked = next();
    EXPECT_EQ(asked.request.target, target);
    asked.responder.reply({.body = target});
    peer.take_until(loop_, target);
  }

  EXPECT_EQ(server_->connections(), 1u);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  serve();
  TestPeer peer = client();

  peer.send("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\n");
  for (const char* target : {"/1", "/2", "/3"}) {
    Asked asked = next();
    EXPECT_EQ(asked.request.target, target);
    EXPECT_TRUE(asked_.empty());
    asked.responder.reply({.body = target});
    peer.take_until(loop_, target);
  }
}

TEST_F(HttpServerTest, ClosesAfterTheAnswerWhenTheClientAsksForIt) {
  serve();
  TestPeer peer = client();

  peer.send("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
  next().responder.reply({.body = "last"});

  EXPECT_THAT(peer.take_until(loop_, "last"), HasSubstr("Connection: close\r\n"));
  expect_closed(peer);
}

TEST_F(HttpServerTest, StreamsPiecesAsChunksWhenTheyAreWritten) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  bool taken = false;

  HttpHead head;
  head.headers.add("Content-Type", "text/event-stream");
  responder.start(head);
  responder.write("data: 1\n\n", [&] { taken = true; });
  EXPECT_FALSE(taken);
  EXPECT_THAT(peer.take_until(loop_, "data: 1\n\n\r\n"),
              AllOf(HasSubstr("Content-Type: text/event-stream\r\n"), HasSubstr("Transfer-Encoding: chunked\r\n"),
                    EndsWith("\r\n\r\n9\r\ndata: 1\n\n\r\n")));
  loop_.until("the write is done", [&] { return taken; });
  responder.finish();

  EXPECT_EQ(peer.take_until(loop_, "0\r\n\r\n"), "0\r\n\r\n");
}

TEST_F(HttpServerTest, StreamsABodyOfKnownSizeAsItIs) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  bool taken = false;

  responder.start({.content_bytes = 4});
  responder.write("bo", [&] { taken = true; });
  loop_.until("the write is done", [&] { return std::exchange(taken, false); });
  responder.write("dy", [&] { taken = true; });
  loop_.until("the write is done", [&] { return std::exchange(taken, false); });
  responder.finish();

  EXPECT_EQ(peer.take_until(loop_, "body"), "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody");
}

TEST_F(HttpServerTest, ClosesAnAnswerThatIsShorterThanAnnounced) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  bool taken = false;

  responder.start({.content_bytes = 4});
  responder.write("bo", [&] { taken = true; });
  loop_.until("the write is done", [&] { return taken; });
  responder.finish();

  expect_closed(peer);
  EXPECT_THAT(peer.received(), EndsWith("\r\n\r\nbo"));
}

TEST_F(HttpServerTest, HoldsAWriteBackWhileTheClientReadsNothing) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  responder.start({});
  bool taken = true;
  std::size_t written_bytes = 0;

  // Far more than the kernel buffers of both sides together hold.
  while (taken && written_bytes < 64u << 20) {
    taken = false;
    responder.write(std::string(1u << 20, 'x'), [&] { taken = true; });
    written_bytes += 1u << 20;
    loop_.settle();
  }
  EXPECT_FALSE(taken);

  loop_.until("the client has read", [&] { return peer.received(), taken; });
}

TEST_F(HttpServerTest, TellsThatTheClientWentAwayBeforeTheAnswer) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  int gone = 0;
  responder.on_gone([&] { ++gone; });

  peer.close();

  loop_.until("the client is gone", [&] { return gone > 0; });
  responder.reply({.body = "too late"});
  loop_.settle();
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(HttpServerTest, TellsThatTheClientWentAwayInTheMiddleOfAStream) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  responder.start({});
  responder.write("one", {});
  peer.take_until(loop_, "one\r\n");
  bool gone = false;
  responder.on_gone([&] { gone = true; });

  peer.close();

  loop_.until("the client is gone", [&] { return gone; });
}

TEST_F(HttpServerTest, TellsNothingOnceTheAnswerIsComplete) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  bool gone = false;
  responder.on_gone([&] { gone = true; });

  responder.reply({.body = "all"});
  peer.take_until(loop_, "all");
  peer.close();

  loop_.until("the connection is closed", [&] { return server_->connections() == 0; });
  EXPECT_FALSE(gone);
}

TEST_F(HttpServerTest, TakesNobodyForGoneWhoHasAllAnnouncedBytes) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  bool gone = false;
  bool taken = false;
  responder.on_gone([&] { gone = true; });

  responder.start({.content_bytes = 4});
  responder.write("body", [&] { taken = true; });
  peer.take_until(loop_, "body");
  peer.close();
  loop_.until("the write is done", [&] { return taken; });
  loop_.settle();
  responder.finish();

  loop_.until("the connection is closed", [&] { return server_->connections() == 0; });
  EXPECT_FALSE(gone);
}

TEST_F(HttpServerTest, AnswersARequestThatWasDroppedWithAnError) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");

  {
    const Asked dropped = next();
  }

  EXPECT_THAT(peer.take_until(loop_, "answer\n"), StartsWith("HTTP/1.1 500 "));
}

TEST_F(HttpServerTest, BreaksAStreamThatWasDropped) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");

  {
    Asked dropped = next();
    dropped.responder.start({});
    dropped.responder.write("one", {});
    peer.take_until(loop_, "one\r\n");
  }

  expect_closed(peer);
  EXPECT_EQ(peer.received(), "");
  EXPECT_FALSE(peer.reset());  // the missing last chunk says enough, and a reset could lose bytes
}

TEST_F(HttpServerTest, RefusesABodyAboveItsLimit) {
  serve({.body_bytes_max = 4});
  TestPeer announced = client();
  TestPeer chunked = client();

  announced.send("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n");
  chunked.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n");

  EXPECT_THAT(announced.take_until(loop_, "4 bytes\n"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(chunked.take_until(loop_, "4 bytes\n"), StartsWith("HTTP/1.1 413 "));
  expect_closed(announced);
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(bad_requests_.value(), 2u);
}

TEST_F(HttpServerTest, RefusesHeaderFieldsAboveTheirLimit) {
  serve({.header_bytes_max = 1000});
  TestPeer peer = client();

  peer.send("GET / HTTP/1.1\r\nA: " + std::string(2000, 'a') + "\r\n\r\n");

  EXPECT_THAT(peer.take_until(loop_, "1000 bytes\n"), StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(bad_requests_.value(), 1u);
}

TEST_F(HttpServerTest, RefusesWhatIsNotHttp) {
  serve(
      {.refusal = [](int status, std::string_view) { return HttpReply{.status = status, .body = "{\"mine\":true}"}; }});
  TestPeer peer = client();

  peer.send("\x16\x03\x01 hello\r\n\r\n");

  EXPECT_THAT(peer.take_until(loop_, "{\"mine\":true}"), StartsWith("HTTP/1.1 400 "));
  expect_closed(peer);
}

// Shows E3, F1.
TEST_F(HttpServerTest, CountsAndLogsEachConnectionWhoseBytesAreNoRequestOnce) {
  serve();
  const std::string_view garbage[] = {
      "\x16\x03\x01 hello\r\n\r\n and more\r\n\r\n",
      "GET / HTTP/9.9\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
  };
  testing::internal::CaptureStderr();

  for (const std::string_view bytes : garbage) {
    TestPeer peer = client();
    peer.send(bytes);
    expect_closed(peer);
  }

  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), std::ssize(garbage)) << log;
  EXPECT_THAT(log, HasSubstr("http: the connection to 127.0.0.1 port "));
  EXPECT_THAT(log, HasSubstr(" is closed: the request is not HTTP: "));
  EXPECT_THAT(metrics(), HasSubstr("kvpush_http_bad_requests_total 4\n"));
}

// Shows E3, F1.
TEST_F(HttpServerTest, LogsOnlySomeOfManyBadRequestsAndCountsAll) {
  constexpr int kBad = 25;
  serve();
  testing::internal::CaptureStderr();

  for (int i = 0; i < kBad; ++i) {
    TestPeer peer = client();
    peer.send("nonsense\r\n\r\n");
    expect_closed(peer);
  }

  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), 20) << log;
  EXPECT_EQ(bad_requests_.value(), kBad);
}

TEST_F(HttpServerTest, CountsARequestThatItsClientBreaksOff) {
  serve();
  TestPeer truncated = client();
  TestPeer silent = client();
  loop_.until("both are connected", [&] { return server_->connections() == 2; });

  truncated.send("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo");
  truncated.close();
  silent.close();

  loop_.until("both are gone", [&] { return server_->connections() == 0; });
  EXPECT_EQ(bad_requests_.value(), 1u);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(HttpServerTest, CountsNoRequestThatAHandlerRefuses) {
  serve();
  TestPeer peer = client();

  peer.send("GET /nothing HTTP/1.1\r\nConnection: close\r\n\r\n");
  next().responder.reply({.status = 404});

  expect_closed(peer);
  EXPECT_EQ(bad_requests_.value(), 0u);
}

TEST_F(HttpServerTest, AsksForABodyThatTheClientHoldsBack) {
  serve();
  TestPeer peer = client();

  peer.send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(peer.take_until(loop_, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  peer.send("body");

  EXPECT_EQ(next().request.body, "body");
}

TEST_F(HttpServerTest, LeavesTheBodyOutOfAnAnswerToHead) {
  serve();
  TestPeer peer = client();

  peer.send("HEAD / HTTP/1.1\r\n\r\n");
  next().responder.reply({.body = "body"});
  EXPECT_THAT(peer.take_until(loop_, "\r\n\r\n"), HasSubstr("Content-Length: 4\r\n"));
  peer.send("GET / HTTP/1.1\r\n\r\n");
  next().responder.reply({.body = "body"});

  EXPECT_THAT(peer.take_until(loop_, "body"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, EndsAnAnswerToHttp10ByClosing) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.0\r\n\r\n");
  HttpResponder responder = next().responder;
  bool taken = false;

  responder.start({});
  responder.write("piece", [&] { taken = true; });
  loop_.until("the write is done", [&] { return taken; });
  responder.finish();

  expect_closed(peer);
  EXPECT_FALSE(peer.reset());
  EXPECT_THAT(peer.received(), AllOf(Not(HasSubstr("chunked")), EndsWith("\r\n\r\npiece")));
}

TEST_F(HttpServerTest, ResetsAStreamToHttp10ThatWasDropped) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.0\r\n\r\n");

  {
    Asked dropped = next();
    dropped.responder.start({});
    dropped.responder.write("piece", {});
    peer.take_until(loop_, "piece");
  }

  expect_closed(peer);
  EXPECT_TRUE(peer.reset());
}

TEST_F(HttpServerTest, ResetsAStreamToHttp10WhoseServerStops) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.0\r\n\r\n");
  HttpResponder responder = next().responder;
  responder.start({});
  responder.write("piece", {});
  peer.take_until(loop_, "piece");

  server_.reset();

  expect_closed(peer);
  EXPECT_TRUE(peer.reset());
}

TEST_F(HttpServerTest, ClosesConnectionsThatSayNothing) {
  serve({.idle_timeout = milliseconds(1)});
  TestPeer peer = client();

  expect_closed(peer);
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(HttpServerTest, ClosesARequestThatNeverEnds) {
  serve({.read_timeout = milliseconds(1)});
  TestPeer peer = client();

  peer.send("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo");

  expect_closed(peer);
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(bad_requests_.value(), 1u);
}

TEST_F(HttpServerTest, GivesUpAClientThatTakesNoBytes) {
  serve({.write_timeout = milliseconds(1)});
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  bool gone = false;
  responder.on_gone([&] { gone = true; });

  responder.start({});
  responder.write(std::string(64u << 20, 'x'), {});

  loop_.until("the client counts as gone", [&] { return gone; });
}

TEST_F(HttpServerTest, LeavesConnectionsAboveItsLimitWaiting) {
  serve({.connections_max = 1});
  TestPeer first = client();
  TestPeer second = client();
  second.send("GET /second HTTP/1.1\r\n\r\n");
  first.send("GET /first HTTP/1.1\r\nConnection: close\r\n\r\n");

  Asked asked = next();
  EXPECT_EQ(asked.request.target, "/first");
  loop_.settle();
  EXPECT_TRUE(asked_.empty());
  asked.responder.reply({});
  expect_closed(first);
  first.close();

  EXPECT_EQ(next().request.target, "/second");
}

TEST_F(HttpServerTest, ClosesTheConnectionThatIsIdleLongestForOneAboveItsLimit) {
  serve({.connections_max = 2});
  TestPeer first = client();
  TestPeer second = client();
  for (TestPeer* peer : {&first, &second, &first}) ask_and_answer(*peer);
  TestPeer third = client();

  ask_and_answer(third);

  expect_closed(second);
  EXPECT_EQ(server_->connections(), 2u);
  ask_and_answer(first);
}

TEST_F(HttpServerTest, ClosesAConnectionThatTurnsIdleWhileAnotherWaits) {
  serve({.connections_max = 1});
  TestPeer first = client();
  TestPeer second = client();
  first.send("GET /first HTTP/1.1\r\n\r\n");
  second.send("GET /second HTTP/1.1\r\n\r\n");
  Asked asked = next();
  loop_.settle();
  EXPECT_TRUE(asked_.empty());

  asked.responder.reply({.body = "answer"});

  first.take_until(loop_, "answer");
  expect_closed(first);
  EXPECT_EQ(next().request.target, "/second");
}

TEST_F(HttpServerTest, KeepsConnectionsAtItsLimitWhoseFirstOrNextRequestIsOnItsWay) {
  serve({.connections_max = 2});
  TestPeer silent = client();
  TestPeer kept = client();
  ask_and_answer(kept);
  loop_.until("both are accepted", [&] { return server_->connections() == 2; });

  // The listening socket is ready before that of the connection that it could close.
  TestPeer above = client();
  kept.send("GET /next HTTP/1.1\r\n\r\n");
  Asked asked = next();
  silent.send("GET /first HTTP/1.1\r\n\r\n");

  EXPECT_EQ(asked.request.target, "/next");
  EXPECT_EQ(next().request.target, "/first");
  EXPECT_FALSE(above.closed());
}

TEST_F(HttpServerTest, ClosesAfterAReplyThatEndsTheConnection) {
  serve();
  TestPeer peer = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");

  next().responder.reply({.body = "last", .close = true});

  EXPECT_THAT(peer.take_until(loop_, "last"), HasSubstr("Connection: close\r\n"));
  expect_closed(peer);
}

TEST_F(HttpServerTest, ProbesClientsThatSayNothing) {
  serve();
  TestPeer peer = client();
  loop_.until("it is accepted", [&] { return server_->connections() == 1; });

  const int socket = descriptor_connected_to(peer.port());

  ASSERT_GE(socket, 0);
  EXPECT_EQ(socket_option(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
  const int silent_seconds_max =
      socket_option(socket, IPPROTO_TCP, TCP_KEEPIDLE) +
      socket_option(socket, IPPROTO_TCP, TCP_KEEPINTVL) * socket_option(socket, IPPROTO_TCP, TCP_KEEPCNT);
  EXPECT_LE(silent_seconds_max, 25);
}

TEST_F(HttpServerTest, DrainsByFinishingWhatItHasAndTakingNothingNew) {
  serve();
  TestPeer idle = client();
  TestPeer busy = client();
  busy.send("GET / HTTP/1.1\r\n\r\n");
  HttpResponder responder = next().responder;
  loop_.until("both are accepted", [&] { return server_->connections() == 2; });
  const std::uint16_t port = server_->port();

  server_->drain();

  expect_closed(idle);
  EXPECT_THROW(TestPeer::connected_to(loop_, port), boost::system::system_error);
  responder.reply({.body = "done"});
  busy.take_until(loop_, "done");
  expect_closed(busy);
  busy.close();
  loop_.until("no connection is left", [&] { return server_->connections() == 0; });
}

TEST_F(HttpServerTest, StopsWithRequestsInFlight) {
  serve();
  TestPeer peer = client();
  TestPeer reading = client();
  peer.send("GET / HTTP/1.1\r\n\r\n");
  reading.send("GET / HTTP/1.1\r\n");
  Asked asked = next();
  bool called = false;
  asked.responder.on_gone([&] { called = true; });
  asked.responder.start({});
  asked.responder.write("1", [&] { called = true; });

  server_.reset();

  asked.responder.finish();
  loop_.settle();
  EXPECT_FALSE(called);
  EXPECT_TRUE(peer.closed());
  EXPECT_TRUE(reading.closed());
}

TEST_F(HttpServerTest, CannotListenOnATakenPort) {
  serve();

  const auto second = HttpServer::open(loop_.io, {.listen = {"127.0.0.1", server_->port()}}, {});

  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kBadConfig);
  EXPECT_STREQ(second.error().what, "the port to listen on is taken");
}

TEST_F(HttpServerTest, CannotListenOnAnAddressOfAnotherMachine) {
  EXPECT_FALSE(HttpServer::open(loop_.io, {.listen = {"192.0.2.1", 0}}, {}).has_value());
}

TEST_F(HttpServerTest, RoutesByPathAndMethod) {
  HttpRoutes routes;
  routes.add("GET", "/a", [](HttpRequest, HttpResponder responder) { responder.reply({.body = "got"}); });
  routes.add("PUT", "/a", [](HttpRequest, HttpResponder responder) { responder.reply({.body = "put"}); });
  auto server = HttpServer::open(loop_.io, {}, [&](HttpRequest request, HttpResponder responder) {
    routes.dispatch(std::move(request), std::move(responder));
  });
  TestPeer peer = TestPeer::connected_to(loop_, (*server)->port());

  peer.send("GET /a?x=/b HTTP/1.1\r\n\r\n");
  peer.take_until(loop_, "got");
  peer.send("POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(peer.take_until(loop_, "method\n"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET\r\nAllow: PUT\r\n")));
  peer.send("GET /a/ HTTP/1.1\r\n\r\n");
  EXPECT_THAT(peer.take_until(loop_, "path\n"), StartsWith("HTTP/1.1 404 "));
}

}  // namespace
}  // namespace kvpush
