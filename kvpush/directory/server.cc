#include "kvpush/directory/server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/clock.h"
#include "kvpush/directory/engine.h"
#include "kvpush/directory/gather.h"
#include "kvpush/http/client.h"
#include "kvpush/http/server.h"
#include "kvpush/metrics/metrics.h"
#include "kvpush/metrics/transfer_log.h"

namespace kvpush {
namespace {

// Ranks answer from memory; one that takes longer than this is not well, and who asks wants to know that now.
constexpr Duration kRankLimit = std::chrono::seconds(1);

using Gather = std::function<std::string(const std::vector<RankAnswer>&)>;

// One question to all ranks, and who waits for the answers.
struct Question {
  HttpResponder responder;
  Gather gather;
  std::string content_type;
  std::vector<RankAnswer> answers;  // by rank
  std::size_t open = 0;
};

Result<std::string> body_of(Result<HttpAnswer> answer) {
  if (!answer) return std::unexpected(answer.error());
  if (answer->status != 200) return fail(ErrorCode::kUnavailable, "the rank answers with another status than 200");
  return std::move(answer->body);
}

TransferRecord record_of(Scheduled&& scheduled) {
  const bool producer = scheduled.side == Scheduled::Side::kProducer;
  const std::optional<Instant>& last = producer ? scheduled.computed : scheduled.first_step;
  TransferRecord record{.transfer_id = std::move(scheduled.transfer_id),
                        .request = std::move(scheduled.request),
                        .role = producer ? "producer" : "consumer",
                        .peer = producer ? std::string() : to_string(scheduled.producer),
                        .outcome = last ? "scheduled" : "aborted",
                        .tokens = scheduled.tokens,
                        .timeline = {}};
  record.timeline.note("arrived", scheduled.arrived);
  record.timeline.note("admitted", scheduled.admitted);
  record.timeline.note("prefill_end", scheduled.computed);
  record.timeline.note("reported", scheduled.reported);
  record.timeline.note("first_step", scheduled.first_step);
  return record;
}

}  // namespace

// What runs on the directory's thread.
//
// Job: the loop, the routes, the questions to the ranks.
// Owner: DirectoryServer.
// Thread: directory role, but for open(), set_engine(), add() and stop().
class DirectoryServer::Service {
 public:
  Result<void> open(const Endpoint& listen) {
    routes_.add("GET", "/health",
                [](const HttpRequest&, HttpResponder out) { out.reply({.body = "{}", .headers = {}}); });
    routes_.add("GET", "/kvpush/v1/engine",
                [this](const HttpRequest&, HttpResponder out) { reply_if_ready(std::move(out), document_); });
    routes_.add("GET", "/kvpush/v1/transfers", [this](const HttpRequest& request, HttpResponder out) {
      ask_ranks(
          request.target, [this](const auto& answers) { return transfers(answers); }, "application/json",
          std::move(out));
    });
    routes_.add("GET", "/metrics", [this](const HttpRequest& request, HttpResponder out) {
      ask_ranks(
          request.target, [this](const auto& answers) { return gather_metrics(answers, registry_.render()); },
          std::string(kMetricsContentType), std::move(out));
    });
    auto server = HttpServer::open(
        io_, {.listen = {listen.host, listen.port}, .bad_requests = &http_bad_requests(registry_)},
        [this](HttpRequest request, HttpResponder out) { routes_.dispatch(std::move(request), std::move(out)); });
    if (!server) return std::unexpected(server.error());
    server_ = std::move(*server);
    port_ = server_->port();
    client_.emplace(io_);
    thread_ = std::thread([this] { io_.run(); });
    return {};
  }

  void set_engine(EngineDocument engine) {
    boost::asio::post(io_, [this, engine = std::move(engine)]() mutable {
      document_ = to_json(engine);
      ranks_ = std::move(engine.ranks);
    });
  }

  void add(Scheduled scheduled) {
    boost::asio::post(io_, [this, scheduled = std::move(scheduled)]() mutable {
      if (scheduled.reported && scheduled.first_step) {
        resume_seconds_.observe(*scheduled.first_step - *scheduled.reported);
      }
      scheduled_.add(record_of(std::move(scheduled)));
    });
  }

  void stop() {
    if (!thread_.joinable()) return;
    boost::asio::post(io_, [this] {
      client_.reset();
      server_.reset();
      work_.reset();
    });
    thread_.join();
  }

  bool stopped() const { return !thread_.joinable(); }
  std::uint16_t port() const { return port_; }

 private:
  void reply_if_ready(HttpResponder out, const std::string& body) {
    if (!ranks_.empty()) return out.reply({.body = body, .headers = {}});
    HttpReply starting{.status = 503, .body = R"({"error":"the engine is starting"})", .headers = {}};
    starting.headers.add("Retry-After", "1");
    out.reply(std::move(starting));
  }

  void ask_ranks(const std::string& target, Gather gather, std::string content_type, HttpResponder out) {
    auto question = std::make_shared<Question>(std::move(out), std::move(gather), std::move(content_type));
    question->open = ranks_.size();
    if (ranks_.empty()) return answer(*question);
    for (const RankDocument& rank : ranks_) {
      const std::size_t index = question->answers.size();
      question->answers.push_back({rank.rank, {}});
      HttpCall call{.address = {rank.http.host, rank.http.port},
                    .target = target,
                    .headers = {},
                    .body = {},
                    .connect_timeout = kRankLimit,
                    .total_timeout = kRankLimit};
      client_->collect(std::move(call), [question, index](Result<HttpAnswer> answered) {
        question->answers[index].body = body_of(std::move(answered));
        if (--question->open == 0) answer(*question);
      });
    }
  }

  std::string transfers(const std::vector<RankAnswer>& answers) const {
    std::string text = "{";
    append_json(text, Moment{read_clock(), std::chrono::system_clock::now()});
    text.append(",\"engine\":").append(scheduled_.to_json());
    return text.append(",\"ranks\":").append(gather_transfers(answers)) += '}';
  }

  static void answer(Question& question) {
    question.responder.reply(
        {.content_type = question.content_type, .body = question.gather(question.answers), .headers = {}});
  }

  boost::asio::io_context io_{1};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_{io_.get_executor()};
  HttpRoutes routes_;
  Registry registry_;
  std::unique_ptr<HttpServer> server_;
  std::optional<HttpClient> client_;
  std::uint16_t port_ = 0;
  std::vector<RankDocument> ranks_;
  std::string document_;
  TransferLog scheduled_;
  Histogram& resume_seconds_ =
      registry_.histogram("kvpush_resume_seconds",
                          "From the workers' report of received KV to the first step that uses it.", kSecondsBuckets);
  std::thread thread_;
};

Result<std::unique_ptr<DirectoryServer>> DirectoryServer::open(const Endpoint& listen) {
  auto service = std::make_unique<Service>();
  const Result<void> opened = service->open(listen);
  if (!opened) return std::unexpected(opened.error());
  return std::unique_ptr<DirectoryServer>(new DirectoryServer(std::move(service)));
}

DirectoryServer::DirectoryServer(std::unique_ptr<Service> service) : service_(std::move(service)) {}

DirectoryServer::~DirectoryServer() {
  KVPUSH_CHECK(service_->stopped(), "a directory is stopped before its end");
}

std::uint16_t DirectoryServer::port() const {
  return service_->port();
}

Result<void> DirectoryServer::set_ranks(const std::vector<std::string>& documents) {
  std::vector<RankDocument> ranks;
  for (const std::string& document : documents) {
    Result<RankDocument> rank = parse_rank(document);
    if (!rank) return std::unexpected(rank.error());
    ranks.push_back(std::move(*rank));
  }
  Result<EngineDocument> engine = gather_ranks(std::move(ranks));
  if (!engine) return std::unexpected(engine.error());
  service_->set_engine(std::move(*engine));
  return {};
}

void DirectoryServer::add(Scheduled scheduled) {
  service_->add(std::move(scheduled));
}

void DirectoryServer::stop() {
  service_->stop();
}

}  // namespace kvpush
