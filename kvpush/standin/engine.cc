#include "kvpush/standin/engine.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/log.h"
#include "kvpush/base/overloaded.h"
#include "kvpush/http/server.h"
#include "kvpush/standin/answering.h"
#include "kvpush/standin/debug.h"
#include "kvpush/standin/engine_metrics.h"

namespace kvpush {
namespace {

// A prompt of kPromptTokensMax tokens as numbers.
constexpr std::uint64_t kBodyBytesMax = 12u << 20;
// Connections beside those of requests: health, metrics, debug calls, and clients that are refused.
constexpr std::size_t kSideConnectionsMax = 128;
// Until an agent with a full mailbox is asked again; it takes microseconds to make room.
constexpr Duration kSubmitPause = std::chrono::milliseconds(1);

HttpReply refusal(int status, std::string_view what) {
  HttpReply reply = completion_error(status, what);
  if (status == 503) reply.headers.add("Retry-After", "1");
  return reply;
}

}  // namespace

class StandinEngine::Impl {
 public:
  Impl(boost::asio::io_context& io, StandinOptions options, StandinWorld world)
      : options_(std::move(options)),
        world_(world),
        cache_(options_.kv),
        scheduler_(options_.scheduler),
        routes_(completion_error),
        step_timer_(io),
        submit_timer_(io),
        agent_events_(io) {}
  ~Impl() { KVPUSH_CHECK(agent_ == nullptr, "an engine is stopped before its end"); }

  Result<void> open(boost::asio::io_context& io);
  std::uint16_t port() const { return server_->port(); }
  std::uint16_t directory_port() const { return directory_->port(); }
  void drain();
  bool idle() const;
  Result<void> stop(Duration limit);

 private:
  struct Client {
    std::unique_ptr<Answering> answering;
    std::size_t prompt_tokens = 0;
    std::optional<TransferId> sends{};  // of a prefill leg
    bool is_answered = false;           // but perhaps not all of it is written
  };

  Result<void> open_agent();
  void add_routes();
  void on_completion(const HttpRequest& request, HttpResponder responder);
  void on_client_gone(const RequestId& id);
  void on_debug(const DebugCall& call, HttpResponder responder);
  void wait_for_agent();
  void begin_step();
  void end_step(const StepEnd& step_end);
  std::optional<Token> sample(const Work& work);
  // Carries out what the scheduler wants, and begins the next step if there is one.
  template <class Event>
  void tell_scheduler(const Event& event);
  void carry_out(Effects& effects);
  void submit();
  void answer(const Answer& answer);
  std::string failure_text(const AnswerFailed& failed);

  const StandinOptions options_;
  const StandinWorld world_;
  EngineMetrics metrics_;
  KvCache cache_;
  Scheduler scheduler_;
  HttpRoutes routes_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<DirectoryServer> directory_;
  std::unique_ptr<HttpServer> server_;
  std::map<RequestId, Client> clients_;        // until their answers are written
  std::map<RequestId, std::string> wrong_kv_;  // what the last step found, for the answers
  std::uint64_t last_request_ = 0;
  std::vector<Command> unsent_;  // a full agent takes them later; bounded by what kRequestsMax requests can cause
  std::vector<EngineEvent> events_;
  boost::asio::steady_timer step_timer_;
  boost::asio::steady_timer submit_timer_;
  boost::asio::posix::stream_descriptor agent_events_;  // the agent's descriptor, borrowed
  bool is_stepping_ = false;
  bool is_draining_ = false;
  bool is_submit_later_ = false;
  std::uint64_t refuse_count_ = 0;  // of debug calls
  Instant delayed_until_{};
};

Result<std::unique_ptr<StandinEngine>> StandinEngine::open(boost::asio::io_context& io, StandinOptions options,
                                                           StandinWorld world) {
  options.scheduler.block_count = options.kv.block_count;
  options.scheduler.block_tokens = options.kv.block_tokens;
  auto impl = std::make_unique<Impl>(io, std::move(options), world);
  if (const Result<void> opened = impl->open(io); !opened) {
    (void)impl->stop({});
    return std::unexpected(opened.error());
  }
  return std::unique_ptr<StandinEngine>(new StandinEngine(std::move(impl)));
}

StandinEngine::StandinEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StandinEngine::~StandinEngine() = default;

std::uint16_t StandinEngine::port() const {
  return impl_->port();
}

std::uint16_t StandinEngine::directory_port() const {
  return impl_->directory_port();
}

void StandinEngine::drain() {
  impl_->drain();
}

bool StandinEngine::idle() const {
  return impl_->idle();
}

Result<void> StandinEngine::stop(Duration limit) {
  return impl_->stop(limit);
}

Result<void> StandinEngine::Impl::open(boost::asio::io_context& io) {
  if (const Result<void> opened = open_agent(); !opened) return opened;
  add_routes();
  auto server = HttpServer::open(io,
                                 {.listen = options_.listen,
                                  .connections_max = options_.scheduler.requests_max + kSideConnectionsMax,
                                  .body_bytes_max = kBodyBytesMax,
                                  .refusal = completion_error,
                                  .bad_requests = &metrics_.bad_requests()},
                                 [this](HttpRequest request, HttpResponder responder) {
                                   routes_.dispatch(std::move(request), std::move(responder));
                                 });
  if (!server) return std::unexpected(server.error());
  server_ = *std::move(server);
  agent_events_.assign(agent_->event_fd());
  wait_for_agent();
  return {};
}

Result<void> StandinEngine::Impl::open_agent() {
  auto agent = Agent::open({.engine_id = options_.engine_id,
                            .control = {options_.directory.host, 0},
                            .http = {options_.directory.host, 0},
                            .secret_file = options_.secret_file,
                            .allow_unauthenticated = options_.allow_unauthenticated,
                            .transports = options_.transports,
                            .protocol = options_.protocol},
                           cache_.layout(), {cache_.memory()});
  if (!agent) return std::unexpected(agent.error());
  agent_ = *std::move(agent);
  auto directory = DirectoryServer::open(options_.directory);
  if (!directory) return std::unexpected(directory.error());
  directory_ = *std::move(directory);
  return directory_->set_ranks({agent_->document()});
}

void StandinEngine::Impl::drain() {
  is_draining_ = true;
  server_->drain();
}

bool StandinEngine::Impl::idle() const {
  const Scheduler::Levels levels = scheduler_.levels();
  return clients_.empty() && levels.receiving == 0 && levels.sending == 0;
}

Result<void> StandinEngine::Impl::stop(Duration limit) {
  server_.reset();
  clients_.clear();
  if (agent_events_.is_open()) agent_events_.release();
  Result<void> stopped;
  if (agent_ != nullptr) stopped = agent_->stop(limit);
  if (directory_ != nullptr) directory_->stop();
  agent_.reset();
  directory_.reset();
  return stopped;
}

void StandinEngine::Impl::add_routes() {
  routes_.add("POST", "/v1/completions", [this](const HttpRequest& request, HttpResponder responder) {
    on_completion(request, std::move(responder));
  });
  routes_.add("GET", "/v1/models", [this](const HttpRequest&, HttpResponder responder) {
    responder.reply({.body = models_json(options_.model)});
  });
  routes_.add("GET", "/health", [](const HttpRequest&, HttpResponder responder) { responder.reply({.body = "{}"}); });
  routes_.add("GET", "/metrics", [this](const HttpRequest&, HttpResponder responder) {
    responder.reply({.content_type = std::string(kMetricsContentType), .body = metrics_.render(scheduler_)});
  });
  for (const std::string_view verb : kDebugVerbs) {
    routes_.add("POST", fmt::format("/debug/{}", verb),
                [this, verb](const HttpRequest& request, HttpResponder responder) {
                  const auto call = read_debug_call(verb, request.body);
                  if (!call) return responder.reply(completion_error(400, call.error().what));
                  on_debug(*call, std::move(responder));
                });
  }
}

void StandinEngine::Impl::on_completion(const HttpRequest& request, HttpResponder responder) {
  const auto refuse = [&](int status, std::string_view what) {
    metrics_.request_ended(EngineMetrics::Outcome::kRefused);
    responder.reply(refusal(status, what));
  };
  if (is_draining_) return refuse(503, "the engine is stopping");
  if (refuse_count_ > 0) {
    --refuse_count_;
    return refuse(503, "the engine was told to refuse this");
  }
  auto call = read_completion(request.body, options_.role);
  if (!call) return refuse(400, call.error().what);
  const RequestId id = fmt::format("cmpl-{}", ++last_request_);
  Client& client = clients_[id];
  client.prompt_tokens = call->prompt.size();
  if (auto* const leg = std::get_if<PrefillLeg>(&call->leg)) {
    if (leg->transfer_id.empty()) leg->transfer_id = fmt::format("{:016x}{:016x}", world_.entropy(), world_.entropy());
    client.sends = leg->transfer_id;
  }
  responder.on_gone([this, id] { on_client_gone(id); });
  const auto created = std::chrono::floor<std::chrono::seconds>(world_.wall_clock()).time_since_epoch().count();
  client.answering = std::make_unique<Answering>(CompletionNames{id, created, options_.model}, call->streams,
                                                 std::move(responder), [this, id] { clients_.erase(id); });
  tell_scheduler(Arrival{id, std::move(call->prompt), call->output_tokens, std::move(call->leg)});
}

void StandinEngine::Impl::on_client_gone(const RequestId& id) {
  auto client = clients_.extract(id);
  if (client.mapped().is_answered) return;
  metrics_.request_ended(EngineMetrics::Outcome::kClientGone);
  tell_scheduler(Abort{client.key()});
}

void StandinEngine::Impl::on_debug(const DebugCall& call, HttpResponder responder) {
  const bool is_done = std::visit(
      Overloaded{[](DebugDie) { return kill(getpid(), SIGKILL) == 0; },
                 [](DebugStop) { return kill(getpid(), SIGSTOP) == 0; },
                 [this](const DebugRefuse& refuse) {
                   refuse_count_ = refuse.count;
                   return true;
                 },
                 [this](const DebugDelay& delay) {
                   delayed_until_ = world_.now() + delay.time;
                   return true;
                 },
                 [this](const DebugCorrupt& corrupt) { return cache_.invert(corrupt.block, corrupt.offset); }},
      call);
  responder.reply(is_done ? HttpReply{.body = "{}"} : completion_error(400, "there is no such byte of KV"));
}

void StandinEngine::Impl::wait_for_agent() {
  agent_events_.async_wait(boost::asio::posix::descriptor_base::wait_read, [this](boost::system::error_code error) {
    if (error) return;
    agent_->take_events(events_);
    for (const EngineEvent& event : events_) tell_scheduler(event);
    wait_for_agent();
  });
}

void StandinEngine::Impl::begin_step() {
  if (is_stepping_) return;
  const Instant begin = world_.now();
  Effects effects;
  const std::vector<Work> step = scheduler_.step(begin, effects);
  carry_out(effects);
  if (step.empty()) return;
  is_stepping_ = true;
  wrong_kv_.clear();
  StepEnd step_end;
  std::size_t tokens = 0;
  for (const Work& work : step) {
    tokens += work.keys.size() - work.first;
    cache_.compute({work.first, static_cast<std::uint32_t>(work.keys.size())}, work.keys, work.blocks);
    if (work.samples) step_end.samples.push_back({work.request, sample(work)});
  }
  const Duration time = options_.step_time + options_.token_time * tokens;
  // The work that was done above is part of the step's time.
  step_timer_.expires_after(std::max(begin + time, delayed_until_) - world_.now());
  step_timer_.async_wait([this, step_end = std::move(step_end)](boost::system::error_code error) {
    if (!error) end_step(step_end);
  });
}

void StandinEngine::Impl::end_step(const StepEnd& step_end) {
  is_stepping_ = false;
  tell_scheduler(step_end);
}

std::optional<Token> StandinEngine::Impl::sample(const Work& work) {
  const KvCache::Reading reading = cache_.read(work.keys, work.blocks);
  if (!reading.wrong) return token_after(reading.digest);
  const WrongRow& row = *reading.wrong;
  std::string text = fmt::format("wrong KV in block {}: token {}, layer {}, {}, head {}", row.block.value, row.token,
                                 row.layer, component_name(row.component), row.head);
  log(LogLevel::kError, fmt::format("request {}: {}", work.request, text));
  metrics_.read_wrong_kv();
  wrong_kv_[work.request] = std::move(text);
  return std::nullopt;
}

template <class Event>
void StandinEngine::Impl::tell_scheduler(const Event& event) {
  Effects effects;
  scheduler_.on(event, world_.now(), effects);
  carry_out(effects);
  begin_step();
}

void StandinEngine::Impl::carry_out(Effects& effects) {
  for (const BlockId block : effects.taken) cache_.wipe(block);
  std::move(effects.commands.begin(), effects.commands.end(), std::back_inserter(unsent_));
  submit();
  for (const Answer& one : effects.answers) answer(one);
  for (Scheduled& one : effects.scheduled) directory_->add(std::move(one));
}

void StandinEngine::Impl::submit() {
  if (unsent_.empty() || is_submit_later_) return;
  const Result<void> submitted = agent_->submit(unsent_);
  if (submitted) return unsent_.clear();
  KVPUSH_CHECK(submitted.error().code == ErrorCode::kFull, "an engine's agent runs until the engine is stopped");
  is_submit_later_ = true;
  submit_timer_.expires_after(kSubmitPause);
  submit_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    is_submit_later_ = false;
    submit();
  });
}

void StandinEngine::Impl::answer(const Answer& told) {
  const RequestId& id = std::visit([](const auto& one) -> const RequestId& { return one.request; }, told);
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;  // gone
  Client& client = found->second;
  std::visit(Overloaded{[&](const AnswerToken& generated) { client.answering->add(generated.token); },
                        [&](const AnswerEnded&) {
                          client.is_answered = true;
                          metrics_.request_ended(EngineMetrics::Outcome::kOk);
                          CompletionEnd end{.prompt_tokens = client.prompt_tokens};
                          if (client.sends) {
                            end.transfer = DecodeLeg{*client.sends, {options_.directory.host, directory_port()}};
                          }
                          client.answering->finish(std::move(end));
                        },
                        [&](const AnswerRefused& refused) {
                          client.is_answered = true;
                          metrics_.request_ended(EngineMetrics::Outcome::kRefused);
                          client.answering->fail(refused.error.code == ErrorCode::kFull ? 503 : 400,
                                                 refused.error.what);
                        },
                        [&](const AnswerFailed& failed) {
                          client.is_answered = true;
                          metrics_.request_ended(EngineMetrics::Outcome::kFailed);
                          client.answering->fail(500, failure_text(failed));
                        }},
             told);
}

std::string StandinEngine::Impl::failure_text(const AnswerFailed& failed) {
  const auto wrong = wrong_kv_.extract(failed.request);
  if (!wrong.empty()) return wrong.mapped();
  return fmt::format("{}: {}", failed.error.what, error_name(failed.error.code));
}

}  // namespace kvpush
