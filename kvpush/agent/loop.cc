#include "kvpush/agent/loop.h"

#include <functional>
#include <optional>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "kvpush/agent/core.h"
#include "kvpush/base/check.h"
#include "kvpush/base/clock.h"
#include "kvpush/base/log.h"
#include "kvpush/base/random.h"
#include "kvpush/control/control.h"
#include "kvpush/directory/client.h"
#include "kvpush/directory/engine.h"
#include "kvpush/http/server.h"
#include "kvpush/metrics/metrics.h"

namespace kvpush {

namespace {

namespace asio = boost::asio;

// Waits for a descriptor that somebody else owns.
//
// Job: calls back once for each wait(), when the descriptor is readable.
// Thread: agent role.
class Watch {
 public:
  Watch(asio::io_context& context, int fd, std::function<void()> readable)
      : descriptor_(context, fd), readable_(std::move(readable)) {}
  ~Watch() { descriptor_.release(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void wait() {
    if (std::exchange(is_waiting_, true)) return;
    descriptor_.async_wait(asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      is_waiting_ = false;
      readable_();
    });
  }

 private:
  asio::posix::stream_descriptor descriptor_;
  std::function<void()> readable_;
  bool is_waiting_ = false;
};

class Loop : public AgentLoop {
 public:
  Loop(AgentOptions options, Exchange& exchange) : options_(std::move(options)), exchange_(exchange) {}
  ~Loop() override {
    watches_.clear();
    http_.reset();
    directories_.reset();
    core_.reset();
    control_.reset();
  }

  Result<void> start(const RankLayout& layout, const std::vector<MemoryRange>& regions);
  std::string document() const override { return document_; }
  void run() override;
  void ask_to_stop(Duration limit) override;
  std::size_t failed_at_stop() const override { return failed_at_stop_; }

 private:
  ControlEvents control_events();
  HttpRoutes routes();
  // A turn soon; several wishes make one.
  void wish_turn();
  void turn();
  void sleep();
  void begin_stop(Duration limit);
  void end_stop(Instant now);

  const AgentOptions options_;
  Exchange& exchange_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  asio::steady_timer timer_{context_};
  std::unique_ptr<Control> control_;
  std::unique_ptr<DirectoryClient> directories_;
  Registry registry_;  // of what the core does not know
  std::unique_ptr<HttpServer> http_;
  std::optional<AgentCore> core_;
  std::vector<std::unique_ptr<Watch>> watches_;
  std::string document_;
  bool turn_wished_ = false;
  std::optional<Instant> stop_at_;
  std::size_t failed_at_stop_ = 0;
};

Result<void> Loop::start(const RankLayout& layout, const std::vector<MemoryRange>& regions) {
  Result<Transports> transports = open_transports(options_.transports, regions);
  if (!transports) return std::unexpected(transports.error());
  Result<std::unique_ptr<Control>> control = Control::open(context_,
                                                           {.listen = options_.control,
                                                            .secret_file = options_.secret_file,
                                                            .allow_unauthenticated = options_.allow_unauthenticated},
                                                           control_events());
  if (!control) return std::unexpected(control.error());
  control_ = std::move(*control);
  Result<std::unique_ptr<HttpServer>> http = HttpServer::open(
      context_, {.listen = {options_.http.host, options_.http.port}, .bad_requests = &http_bad_requests(registry_)},
      [routes = routes()](HttpRequest request, HttpResponder responder) {
        routes.dispatch(std::move(request), std::move(responder));
      });
  if (!http) return std::unexpected(http.error());
  http_ = std::move(*http);
  directories_ = std::make_unique<DirectoryClient>(context_);

  const RankName self{options_.engine_id, Incarnation{read_entropy()}, options_.rank, options_.rank_count};
  document_ = to_json(RankDocument{.engine_id = self.engine_id,
                                   .incarnation = self.incarnation,
                                   .version = KVPUSH_VERSION,
                                   .protocol = kProtocolVersion,
                                   .rank = self.rank,
                                   .rank_count = self.rank_count,
                                   .control = {options_.control.host, control_->port()},
                                   .http = {options_.http.host, http_->port()},
                                   .planes = plane_kinds(layout)});
  const auto resolve = [this](const Endpoint& directory) {
    directories_->resolve(directory, [this, directory](Result<EngineDocument> document) {
      Result<ProducerEngine> engine;
      if (document) {
        engine->engine_id = document->engine_id();
        engine->incarnation = document->incarnation();
        for (const RankDocument& rank : document->ranks) engine->ranks.push_back(rank.control);
      } else {
        engine = std::unexpected(document.error());
      }
      core_->on_resolved(directory, engine, read_clock());
      wish_turn();
    });
  };
  core_.emplace(self, layout, std::move(*transports), options_.protocol, Random{read_entropy()},
                AgentCore::Surroundings{exchange_, *control_, resolve, read_clock});
  watches_.push_back(std::make_unique<Watch>(context_, exchange_.command_fd(), [this] { wish_turn(); }));
  for (const int fd : core_->event_fds()) {
    KVPUSH_CHECK(fd >= 0, "each transport has a descriptor to wait for");
    watches_.push_back(std::make_unique<Watch>(context_, fd, [this] { wish_turn(); }));
  }
  wish_turn();
  return {};
}

ControlEvents Loop::control_events() {
  return {.accepted =
              [this](ConnectionId connection) {
                core_->on_accepted(connection, read_clock());
                wish_turn();
              },
          .connected =
              [this](ConnectionId connection) {
                core_->on_connected(connection, read_clock());
                wish_turn();
              },
          .received =
              [this](ConnectionId connection, const Message& message) {
                core_->on_message(connection, message, read_clock());
                wish_turn();
              },
          .closed =
              [this](ConnectionId connection, Error error) {
                core_->on_closed(connection, error, read_clock());
                wish_turn();
              },
          .refused =
              [this](ConnectionId connection, Error error) {
                core_->on_message(connection, Refused{error.code, error.what}, read_clock());
                wish_turn();
              }};
}

HttpRoutes Loop::routes() {
  HttpRoutes routes;
  routes.add("GET", "/kvpush/v1/engine",
             [this](const HttpRequest&, HttpResponder responder) { responder.reply({.body = document_}); });
  routes.add("GET", "/kvpush/v1/transfers",
             [this](const HttpRequest&, HttpResponder responder) { responder.reply({.body = core_->transfers()}); });
  routes.add("GET", "/metrics", [this](const HttpRequest&, HttpResponder responder) {
    responder.reply({.content_type = std::string(kMetricsContentType), .body = core_->metrics() + registry_.render()});
  });
  return routes;
}

void Loop::run() {
  context_.run();
}

void Loop::wish_turn() {
  if (std::exchange(turn_wished_, true)) return;
  asio::post(context_, [this] { turn(); });
}

void Loop::turn() {
  turn_wished_ = false;
  const Instant now = read_clock();
  const std::size_t done = core_->turn(now);
  if (stop_at_ && (core_->idle() || now >= *stop_at_)) return end_stop(now);
  // Sockets have their say between two turns, however much there is to do.
  if (done > 0 || !core_->arm()) return wish_turn();
  sleep();
}

void Loop::sleep() {
  for (const auto& watch : watches_) watch->wait();
  std::optional<Instant> until = core_->deadline();
  if (stop_at_ && (!until || *stop_at_ < *until)) until = stop_at_;
  if (!until) return;
  timer_.expires_after(*until - read_clock());
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) wish_turn();
  });
}

void Loop::ask_to_stop(Duration limit) {
  asio::post(context_, [this, limit] { begin_stop(limit); });
}

void Loop::begin_stop(Duration limit) {
  const Instant now = read_clock();
  stop_at_ = now + limit;
  core_->drain(now);
  wish_turn();
}

void Loop::end_stop(Instant now) {
  watches_.clear();  // of descriptors that the transports close
  timer_.cancel();
  failed_at_stop_ = core_->fail_rest(now);
  http_.reset();
  directories_.reset();
  work_.reset();
  context_.stop();
}

}  // namespace

Result<std::unique_ptr<AgentLoop>> AgentLoop::open(AgentOptions options, const RankLayout& layout,
                                                   const std::vector<MemoryRange>& regions, Exchange& exchange) {
  auto loop = std::make_unique<Loop>(std::move(options), exchange);
  if (const Result<void> started = loop->start(layout, regions); !started) {
    return std::unexpected(started.error());
  }
  return loop;
}

}  // namespace kvpush
