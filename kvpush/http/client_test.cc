#include "kvpush/http/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvpush/http/testing.h"

namespace kvpush {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-A: 1\r\n\r\nbody";

constexpr std::size_t kLargeBytes = 16u << 20;
constexpr std::string_view kLargeEnd = "end";

// A client, and a server whose every byte the test decides.
class HttpClientTest : public testing::Test {
 protected:
  // What the sink of one call has been told.
  struct Seen {
    std::optional<HttpHead> head;
    std::string body;
    std::optional<Result<void>> end;
    HttpFlow flow = HttpFlow::kContinue;
  };

  HttpCall call(std::string target = "/") { return {.address = {"127.0.0.1", listener_.port()}, .target = target}; }
  // More than the socket buffers hold: its write still runs when something else happens.
  HttpCall large_call() {
    HttpCall large = call();
    large.method = "POST";
    large.body = std::string(kLargeBytes - kLargeEnd.size(), 'x').append(kLargeEnd);
    return large;
  }
  // The next connection, whose request has arrived: a peer that closed with bytes unread would reset it.
  TestPeer asked() {
    TestPeer peer = listener_.next();
    peer.take_until(loop_, "\r\n\r\n");
    return peer;
  }
  static HttpSink sink(Seen& seen) {
    return {.on_head = [&seen](const HttpHead& head) { seen.head = head; },
            .on_body =
                [&seen](std::string_view bytes) {
                  seen.body += bytes;
                  return seen.flow;
                },
            .on_end = [&seen](Result<void> end) { seen.end = end; }};
  }
  Result<HttpAnswer> collect(HttpClient& client, HttpCall call, const std::function<void()>& serve) {
    std::optional<Result<HttpAnswer>> answer;
    client.collect(std::move(call), [&](Result<HttpAnswer> got) { answer = std::move(got); });
    serve();
    loop_.until("a call ends", [&] { return answer.has_value(); });
    return *std::move(answer);
  }
  void expect_end(Seen& seen, ErrorCode code) {
    loop_.until("a call ends", [&] { return seen.end.has_value(); });
    ASSERT_FALSE(seen.end->has_value());
    EXPECT_EQ(error_name(seen.end->error().code), error_name(code)) << seen.end->error().what;
  }

  TestLoop loop_;
  TestListener listener_{loop_};
  HttpClient client_{loop_.io};
};

TEST_F(HttpClientTest, SendsARequestAndCollectsItsAnswer) {
  HttpCall posted = call("/a?b=1");
  posted.method = "POST";
  posted.headers.add("X-Request-Id", "7");
  posted.body = "{}";
  std::string request;

  const auto answer = collect(client_, std::move(posted), [&] {
    TestPeer peer = listener_.next();
    request = peer.take_until(loop_, "{}");
    peer.send(kAnswer);
    loop_.settle();
  });

  EXPECT_EQ(request, "POST /a?b=1 HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(listener_.port()) +
                         "\r\nX-Request-Id: 7\r\nContent-Length: 2\r\n\r\n{}");
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->headers.find("x-a"), "1");
  EXPECT_EQ(answer->body, "body");
  EXPECT_EQ(client_.calls(), 0u);
}

TEST_F(HttpClientTest, RunsNoCallbackInsideItsOwnFunctions) {
  Seen seen;
  client_.start({.address = {"127.0.0.1", 1}}, sink(seen));

  EXPECT_FALSE(seen.end.has_value());
  EXPECT_EQ(client_.calls(), 1u);
}

TEST_F(HttpClientTest, ReusesTheConnectionOfACompleteAnswer) {
  std::optional<TestPeer> peer;

  for (const char* target : {"/1", "/2"}) {
    const auto answer = collect(client_, call(target), [&] {
      if (!peer.has_value()) peer = listener_.next();
      EXPECT_THAT(peer->take_until(loop_, "\r\n\r\n"), StartsWith("GET " + std::string(target)));
      peer->send(kAnswer);
    });
    EXPECT_TRUE(answer.has_value());
  }

  EXPECT_EQ(listener_.accepted(), 1u);
  EXPECT_EQ(client_.idle_connections(), 1u);
}

TEST_F(HttpClientTest, ClosesTheConnectionWhenTheServerSaysSo) {
  const auto answer = collect(client_, call(), [&] {
    TestPeer peer = asked();
    peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    loop_.until("the client closes", [&] { return peer.closed(); });
  });

  EXPECT_TRUE(answer.has_value());
  EXPECT_EQ(client_.idle_connections(), 0u);
}

TEST_F(HttpClientTest, DoesNotReuseAConnectionThatIsKnownToBeClosed) {
  collect(client_, call(), [&] { asked().send(kAnswer); });
  ASSERT_EQ(client_.idle_connections(), 1u);

  const auto answer = collect(client_, call(), [&] { asked().send(kAnswer); });

  EXPECT_TRUE(answer.has_value());
}

TEST_F(HttpClientTest, ReplacesAKeptConnectionThatClosesInsteadOfAnswering) {
  std::optional<TestPeer> peer;
  collect(client_, call(), [&] {
    peer = asked();
    peer->send(kAnswer);
  });

  const auto answer = collect(client_, large_call(), [&] {
    peer->take_until(loop_, "POST / HTTP/1.1\r\n");
    peer->close();
    TestPeer second = listener_.next();
    EXPECT_THAT(second.take_until(loop_, "\r\n\r\n"), StartsWith("POST / HTTP/1.1\r\n"));
    EXPECT_EQ(second.take_until(loop_, kLargeEnd).size(), kLargeBytes);
    second.send(kAnswer);
  });

  EXPECT_TRUE(answer.has_value());
  EXPECT_EQ(listener_.accepted(), 2u);
}

TEST_F(HttpClientTest, ReportsANewConnectionThatClosesInsteadOfAnswering) {
  Seen seen;
  client_.start(call(), sink(seen));

  asked().close();

  expect_end(seen, ErrorCode::kPeerLost);
  EXPECT_EQ(listener_.accepted(), 1u);
}

TEST_F(HttpClientTest, ReportsAConnectionThatClosesInTheMiddleOfTheAnswer) {
  Seen seen;
  client_.start(call(), sink(seen));

  asked().send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo");

  expect_end(seen, ErrorCode::kPeerLost);
  EXPECT_EQ(seen.body, "bo");
  EXPECT_STREQ(seen.end->error().what, "closed in the middle of its answer");
}

TEST_F(HttpClientTest, ReportsThatNobodyListens) {
  std::uint16_t port = 0;
  {
    const TestListener gone(loop_);
    port = gone.port();
  }
  Seen seen;

  client_.start({.address = {"127.0.0.1", port}}, sink(seen));

  expect_end(seen, ErrorCode::kPeerLost);
}

TEST_F(HttpClientTest, ReportsAHostThatDoesNotExist) {
  Seen seen;
  client_.start({.address = {"no-such-host.invalid", 80}, .connect_timeout = hours(1)}, sink(seen));

  expect_end(seen, ErrorCode::kPeerLost);
}

TEST_F(HttpClientTest, ReportsWhatIsNotHttp) {
  Seen seen;
  client_.start(call(), sink(seen));

  TestPeer peer = asked();
  peer.send("220 mail.example ESMTP\r\n\r\n");

  expect_end(seen, ErrorCode::kBadMessage);
}

TEST_F(HttpClientTest, RefusesAStatusThatIsNone) {
  for (const char* status : {"007", "101"}) {
    const auto answer = collect(client_, call(), [&] {
      TestPeer peer = asked();
      peer.send("HTTP/1.1 " + std::string(status) + " X\r\nContent-Length: 0\r\n\r\n");
      loop_.settle();
    });
    ASSERT_FALSE(answer.has_value()) << status;
    EXPECT_EQ(answer.error().code, ErrorCode::kBadMessage) << status;
  }
}

TEST_F(HttpClientTest, WaitsForTheAnswerBehindInterimOnes) {
  const auto answer = collect(client_, call(), [&] {
    TestPeer peer = asked();
    peer.send("HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + std::string(kAnswer));
    loop_.settle();
  });

  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "body");
  EXPECT_FALSE(answer->headers.find("Link").has_value());
}

TEST_F(HttpClientTest, WaitsForNoAnswerBehindInterimOnesWithoutEnd) {
  Seen seen;
  client_.start(call(), sink(seen));

  TestPeer peer = asked();
  for (int i = 0; i < 9; ++i) peer.send("HTTP/1.1 100 Continue\r\n\r\n");

  expect_end(seen, ErrorCode::kBadMessage);
  EXPECT_FALSE(seen.head.has_value());
}

TEST_F(HttpClientTest, HandsOverPiecesAsTheyCome) {
  Seen seen;
  client_.start(call(), sink(seen));
  TestPeer peer = asked();

  peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
  loop_.until("the head arrives", [&] { return seen.head.has_value(); });
  EXPECT_FALSE(seen.head->content_bytes.has_value());
  peer.send("3\r\none\r\n");
  loop_.until("a piece arrives", [&] { return seen.body == "one"; });
  peer.send("3\r\ntwo\r\n");
  loop_.until("a piece arrives", [&] { return seen.body == "onetwo"; });
  EXPECT_FALSE(seen.end.has_value());
  peer.send("0\r\n\r\n");

  loop_.until("the call ends", [&] { return seen.end.has_value(); });
  EXPECT_TRUE(seen.end->has_value());
}

TEST_F(HttpClientTest, ReadsABodyThatTheEndOfTheConnectionEnds) {
  const auto answer = collect(client_, call(), [&] {
    TestPeer peer = asked();
    peer.send("HTTP/1.1 200 OK\r\n\r\nall of it");
    peer.close();
  });

  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->body, "all of it");
}

TEST_F(HttpClientTest, ReadsNothingMoreWhilePaused) {
  Seen seen;
  seen.flow = HttpFlow::kPause;
  HttpCall patient = call();
  patient.silence_timeout = hours(1);
  const HttpCallId id = client_.start(std::move(patient), sink(seen));
  TestPeer peer = asked();
  peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + std::string(100000, 'x'));
  loop_.until("a piece arrives", [&] { return !seen.body.empty(); });
  const std::size_t first = seen.body.size();

  loop_.settle();
  EXPECT_EQ(seen.body.size(), first);
  client_.resume(id);
  EXPECT_EQ(seen.body.size(), first);
  loop_.until("the next piece arrives", [&] { return seen.body.size() > first; });
  EXPECT_LT(seen.body.size(), 100000u);
  seen.flow = HttpFlow::kContinue;
  client_.resume(id);

  loop_.until("the call ends", [&] { return seen.end.has_value(); });
  EXPECT_EQ(seen.body, std::string(100000, 'x'));
}

TEST_F(HttpClientTest, ClosesTheConnectionOfACancelledCall) {
  Seen seen;
  const HttpCallId id = client_.start(call(), sink(seen));
  TestPeer peer = asked();
  peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo");
  loop_.until("a piece arrives", [&] { return seen.body == "bo"; });

  client_.cancel(id);

  loop_.until("the client closes", [&] { return peer.closed(); });
  EXPECT_FALSE(seen.end.has_value());
  EXPECT_EQ(client_.calls(), 0u);
  client_.cancel(id);
}

TEST_F(HttpClientTest, SendsTheRequestOfACallThatIsCancelledWhenSent) {
  Seen seen;

  client_.cancel_when_sent(client_.start(large_call(), sink(seen)));

  TestPeer peer = listener_.next();
  peer.take_until(loop_, kLargeEnd);
  loop_.until("the client closes", [&] { return peer.closed(); });
  EXPECT_EQ(client_.calls(), 0u);
  EXPECT_FALSE(seen.end.has_value());
}

TEST_F(HttpClientTest, SendsTheRequestOfACancelledCallAgainIfAKeptConnectionCloses) {
  std::optional<TestPeer> peer;
  collect(client_, call(), [&] {
    peer = asked();
    peer->send(kAnswer);
  });
  Seen seen;
  const HttpCallId id = client_.start(large_call(), sink(seen));
  peer->take_until(loop_, "POST / HTTP/1.1\r\n");

  client_.cancel_when_sent(id);
  peer->close();

  TestPeer second = listener_.next();
  EXPECT_EQ(second.take_until(loop_, "\r\n\r\n").substr(0, 4), "POST");
  EXPECT_EQ(second.take_until(loop_, kLargeEnd).size(), kLargeBytes);
  loop_.until("the client closes", [&] { return second.closed(); });
  EXPECT_EQ(client_.calls(), 0u);
}

TEST_F(HttpClientTest, ClosesACallThatIsCancelledWhenSentAtOnceIfItIsSent) {
  Seen seen;
  const HttpCallId id = client_.start(call(), sink(seen));
  TestPeer peer = asked();
  loop_.settle();

  client_.cancel_when_sent(id);

  EXPECT_EQ(client_.calls(), 0u);
  loop_.until("the client closes", [&] { return peer.closed(); });
  EXPECT_FALSE(seen.end.has_value());
}

TEST_F(HttpClientTest, GivesACancelledCallUpThatCannotBeSent) {
  Seen seen;
  HttpCall posted = large_call();
  posted.connect_timeout = milliseconds(20);
  const HttpCallId id = client_.start(std::move(posted), sink(seen));
  TestPeer peer = asked();  // which reads no more of it

  client_.cancel_when_sent(id);

  EXPECT_EQ(client_.calls(), 1u);
  loop_.until("the call is given up", [&] { return client_.calls() == 0; });
  EXPECT_FALSE(seen.end.has_value());
}

TEST_F(HttpClientTest, CanBeCancelledByItsSink) {
  HttpCallId id;
  Seen seen;
  HttpSink cancelling = sink(seen);
  cancelling.on_body = [&](std::string_view) {
    client_.cancel(id);
    return HttpFlow::kContinue;
  };
  id = client_.start(call(), std::move(cancelling));
  TestPeer peer = asked();

  peer.send(kAnswer);

  loop_.until("the client closes", [&] { return peer.closed(); });
  EXPECT_FALSE(seen.end.has_value());
}

TEST_F(HttpClientTest, RefusesCallsAboveItsLimit) {
  HttpClient small(loop_.io, {.calls_max = 1});
  Seen first;
  Seen second;
  Seen third;
  small.start(call(), sink(first));
  small.start(call(), sink(second));
  small.cancel(small.start(call(), sink(third)));

  expect_end(second, ErrorCode::kFull);
  EXPECT_FALSE(first.end.has_value());
  EXPECT_FALSE(third.end.has_value());
}

TEST_F(HttpClientTest, StopsCollectingAboveItsLimit) {
  HttpClient small(loop_.io, {.collected_bytes_max = 3});
  std::optional<TestPeer> peer;

  const auto answer = collect(small, call(), [&] {
    peer = asked();
    peer->send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbody");  // the rest never comes
  });

  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kFull);
  EXPECT_EQ(small.calls(), 0u);
}

TEST_F(HttpClientTest, RefusesHeaderFieldsAboveTheirLimit) {
  HttpClient small(loop_.io, {.header_bytes_max = 1000});
  Seen seen;
  small.start(call(), sink(seen));
  TestPeer peer = asked();

  peer.send("HTTP/1.1 200 OK\r\nA: " + std::string(2000, 'a') + "\r\n\r\n");

  expect_end(seen, ErrorCode::kBadMessage);
}

TEST_F(HttpClientTest, TimesOutWhenTheServerSaysNothing) {
  HttpCall hasty = call();
  hasty.silence_timeout = milliseconds(1);
  Seen seen;
  client_.start(std::move(hasty), sink(seen));

  const TestPeer peer = asked();

  expect_end(seen, ErrorCode::kTimeout);
}

TEST_F(HttpClientTest, TimesOutAsAWholeWhateverComes) {
  HttpCall hasty = call();
  hasty.total_timeout = milliseconds(1);
  Seen seen;
  client_.start(std::move(hasty), sink(seen));

  expect_end(seen, ErrorCode::kTimeout);
}

TEST_F(HttpClientTest, ClosesKeptConnectionsThatNobodyUses) {
  HttpClient brief(loop_.io, {.idle_timeout = milliseconds(1)});
  std::optional<TestPeer> peer;
  collect(brief, call(), [&] {
    peer = asked();
    peer->send(kAnswer);
  });

  loop_.until("the client closes", [&] { return peer->closed(); });
  loop_.until("the connection is forgotten", [&] { return brief.idle_connections() == 0; });
}

TEST_F(HttpClientTest, KeepsNoMoreConnectionsThanItsLimit) {
  HttpClient small(loop_.io, {.idle_per_address_max = 1});
  Seen first;
  Seen second;
  small.start(call(), sink(first));
  small.start(call(), sink(second));
  TestPeer one = asked();
  TestPeer two = asked();

  one.send(kAnswer);
  two.send(kAnswer);

  loop_.until("both end", [&] { return first.end.has_value() && second.end.has_value(); });
  EXPECT_EQ(small.idle_connections(), 1u);
}

TEST_F(HttpClientTest, StopsWithCallsInFlight) {
  auto client = std::make_unique<HttpClient>(loop_.io);
  Seen connecting;
  Seen answered;
  client->start(call(), sink(answered));
  TestPeer peer = asked();
  peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo");
  loop_.until("a piece arrives", [&] { return answered.body == "bo"; });
  client->start(call(), sink(connecting));

  client.reset();

  loop_.until("the connection is closed", [&] { return peer.closed(); });
  EXPECT_FALSE(answered.end.has_value());
  EXPECT_FALSE(connecting.end.has_value());
}

}  // namespace
}  // namespace kvpush
