#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kvpush/directory/client.h"
#include "kvpush/directory/engine.h"
#include "kvpush/directory/server.h"
#include "kvpush/http/client.h"
#include "kvpush/http/server.h"

namespace kvpush {
namespace {

using namespace std::chrono_literals;
using boost::asio::ip::tcp;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr auto kTestLimit = 10s;

RankDocument rank_at(std::uint16_t http_port) {
  return {.engine_id = "e",
          .incarnation = {1},
          .version = "0.1.0",
          .protocol = 1,
          .control = {"127.0.0.1", 1},
          .http = {"127.0.0.1", http_port},
          .planes = {}};
}

// A directory, and a loop on the test's own thread for what talks to it.
class Directory : public testing::Test {
 protected:
  ~Directory() override { server_->stop(); }

  // Runs the loop until `value` is there.
  template <class T>
  T wait_for(std::optional<T>& value) {
    const auto until = std::chrono::steady_clock::now() + kTestLimit;
    while (!value && std::chrono::steady_clock::now() < until) {
      io_.restart();
      io_.run_one_until(until);
    }
    if (!value) throw std::runtime_error("no answer within the test's limit");
    return std::move(*value);
  }

  HttpAnswer get(const std::string& target) {
    std::optional<Result<HttpAnswer>> answer;
    HttpCall call{.address = {"127.0.0.1", server_->port()}, .target = target, .headers = {}, .body = {}};
    http_.collect(std::move(call), [&](Result<HttpAnswer> got) { answer = std::move(got); });
    return wait_for(answer).value();
  }

  Result<EngineDocument> resolve(std::uint16_t port) {
    std::optional<Result<EngineDocument>> engine;
    directories_->resolve({"127.0.0.1", port}, [&](Result<EngineDocument> got) { engine = std::move(got); });
    return wait_for(engine);
  }

  boost::asio::io_context io_;
  HttpClient http_{io_};
  std::unique_ptr<DirectoryClient> directories_ = std::make_unique<DirectoryClient>(io_);
  std::unique_ptr<DirectoryServer> server_ = DirectoryServer::open({"127.0.0.1", 0}).value();
};

TEST_F(Directory, AsksToComeBackUntilItsRanksAreKnown) {
  const HttpAnswer answer = get("/kvpush/v1/engine");

  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.find("Retry-After"), "1");
  EXPECT_EQ(resolve(server_->port()).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_THAT(get("/kvpush/v1/transfers").body, EndsWith(R"("engine":[],"ranks":[]})"));
}

TEST_F(Directory, TellsWhoItsEngineIs) {
  ASSERT_TRUE(server_->set_ranks({to_json(rank_at(1))}));

  const Result<EngineDocument> engine = resolve(server_->port());

  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->ranks, std::vector{rank_at(1)});
}

// Shows E3.
TEST_F(Directory, RefusesDocumentsThatAreNoEngine) {
  EXPECT_EQ(server_->set_ranks({"{}"}).error().code, ErrorCode::kBadMessage);
  EXPECT_EQ(server_->set_ranks({}).error().code, ErrorCode::kBadMessage);
  EXPECT_EQ(get("/kvpush/v1/engine").status, 503);
}

TEST_F(Directory, PassesOnWhatItsRanksSay) {
  auto rank = HttpServer::open(io_, {}, [](HttpRequest request, HttpResponder out) {
    const bool metrics = request.path() == "/metrics";
    out.reply({.body = metrics ? "a 1\n" : R"({"live":[],"ended":[]})", .headers = {}});
  });
  ASSERT_TRUE(rank);
  ASSERT_TRUE(server_->set_ranks({to_json(rank_at((*rank)->port()))}));

  EXPECT_THAT(get("/kvpush/v1/transfers").body, EndsWith(R"("ranks":[{"rank":0,"live":[],"ended":[]}]})"));
  EXPECT_TRUE(get("/metrics").body.starts_with("a{rank=\"0\"} 1\n"));
}

TEST_F(Directory, TellsWhatTheSchedulerSaw) {
  const Instant start{100s};
  server_->add({.side = Scheduled::Side::kProducer,
                .transfer_id = "t",
                .request = "p",
                .tokens = 7,
                .arrived = start,
                .admitted = start + 1ms,
                .computed = start + 9ms});
  server_->add({.side = Scheduled::Side::kConsumer,
                .transfer_id = "t",
                .request = "d",
                .tokens = 7,
                .producer = {"10.0.0.1", 9100},
                .arrived = start,
                .admitted = start + 2ms,
                .reported = start + 12ms,
                .first_step = start + 14ms});

  const std::string transfers = get("/kvpush/v1/transfers").body;

  EXPECT_THAT(
      transfers,
      HasSubstr(R"("engine":[{"transfer_id":"t","request":"p","role":"producer","peer":"","outcome":"scheduled",)"
                R"("tokens":7,"start_boot_seconds":100.000000,)"
                R"("timeline_seconds":{"arrived":0.000000,"admitted":0.001000,"prefill_end":0.009000}},)"));
  EXPECT_THAT(transfers, HasSubstr(R"("role":"consumer","peer":"10.0.0.1:9100")"));
  EXPECT_THAT(transfers, HasSubstr(R"("admitted":0.002000,"reported":0.012000,"first_step":0.014000}}],"ranks":[]})"));
  EXPECT_THAT(get("/metrics").body, HasSubstr("kvpush_resume_seconds_sum 0.002\n"));
}

TEST_F(Directory, SaysThatARequestEndedBeforeItsTransferMattered) {
  server_->add({.side = Scheduled::Side::kConsumer, .transfer_id = "t", .request = "d", .arrived = Instant{100s}});

  EXPECT_THAT(get("/kvpush/v1/transfers").body, HasSubstr(R"("outcome":"aborted","tokens":0)"));
  EXPECT_THAT(get("/metrics").body, HasSubstr("kvpush_resume_seconds_count 0\n"));
}

TEST_F(Directory, TellsBothClocksForReadersOnOtherMachines) {
  EXPECT_THAT(get("/kvpush/v1/transfers").body, StartsWith(R"({"now_boot_seconds":)"));
  EXPECT_THAT(get("/kvpush/v1/transfers").body, HasSubstr(R"(,"now_unix_seconds":1)"));
}

TEST_F(Directory, AnswersInTimeWhenARankIsSilent) {
  tcp::acceptor silent(io_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));  // never accepts
  ASSERT_TRUE(server_->set_ranks({to_json(rank_at(silent.local_endpoint().port()))}));

  EXPECT_THAT(get("/kvpush/v1/transfers").body, EndsWith(R"("ranks":[{"rank":0,"error":"timeout"}]})"));
}

TEST_F(Directory, SaysThatARankIsGone) {
  const std::uint16_t port = tcp::acceptor(io_, tcp::endpoint(tcp::v4(), 0)).local_endpoint().port();
  ASSERT_TRUE(server_->set_ranks({to_json(rank_at(port))}));

  EXPECT_THAT(get("/kvpush/v1/transfers").body, EndsWith(R"("ranks":[{"rank":0,"error":"peer_lost"}]})"));
  EXPECT_NE(get("/metrics").body.find("kvpush_rank_up{rank=\"0\"} 0"), std::string::npos);
}

TEST_F(Directory, StopsWhileARankIsSilent) {
  tcp::acceptor silent(io_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  ASSERT_TRUE(server_->set_ranks({to_json(rank_at(silent.local_endpoint().port()))}));
  bool called = false;
  HttpCall call{.address = {"127.0.0.1", server_->port()}, .target = "/kvpush/v1/transfers", .headers = {}, .body = {}};
  http_.collect(std::move(call), [&](const Result<HttpAnswer>&) { called = true; });
  std::optional<bool> asked;
  silent.async_accept([&](boost::system::error_code, tcp::socket) { asked = true; });
  wait_for(asked);

  const auto begin = std::chrono::steady_clock::now();
  server_->stop();

  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_FALSE(called);
}

TEST_F(Directory, RefusesAnAddressThatIsTaken) {
  EXPECT_EQ(DirectoryServer::open({"127.0.0.1", server_->port()}).error().code, ErrorCode::kBadConfig);
}

TEST_F(Directory, ClientRefusesWhatIsNoDocument) {
  auto other = HttpServer::open(
      io_, {}, [](HttpRequest, HttpResponder out) { out.reply({.body = R"({"engine_id":"e"})", .headers = {}}); });
  ASSERT_TRUE(other);

  EXPECT_EQ(resolve((*other)->port()).error().code, ErrorCode::kBadMessage);
}

TEST_F(Directory, ClientForgetsItsQuestionsAtItsEnd) {
  bool called = false;
  directories_->resolve({"127.0.0.1", server_->port()}, [&](const Result<EngineDocument>&) { called = true; });

  directories_.reset();
  io_.run_for(50ms);

  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace kvpush
