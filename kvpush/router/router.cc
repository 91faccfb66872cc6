#include "kvpush/router/router.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <map>
#include <string>
#include <utility>

#include "kvpush/http/client.h"
#include "kvpush/http/server.h"
#include "kvpush/metrics/transfer_log.h"
#include "kvpush/router/answer.h"
#include "kvpush/router/exchange.h"
#include "kvpush/router/legs.h"
#include "kvpush/router/metrics.h"
#include "kvpush/router/policy.h"

namespace kvpush {
namespace {

// A leg that is not streamed is silent until its answer is complete: a long queue and tens of thousands of tokens. A
// server that dies is noticed by its connection long before.
constexpr Duration kLegSilenceMax = std::chrono::minutes(30);
// Below the few seconds that those who ask for health wait.
constexpr Duration kHealthMax = std::chrono::seconds(2);
constexpr Duration kModelsMax = std::chrono::seconds(10);
// Connections beside those of requests in flight: health, metrics, and clients that are told that the router is full.
constexpr std::size_t kSideConnectionsMax = 128;
// Calls beside the legs: one health question goes to every server.
constexpr std::size_t kSideCallsMax = 1024;

// What servers are told of the client's request, besides its body.
constexpr std::string_view kHeadersPassed[] = {"Authorization", "Accept", "traceparent", "tracestate", "X-Request-Id"};

HttpHeaders passed_headers(const HttpHeaders& from) {
  HttpHeaders passed;
  for (const std::string_view name : kHeadersPassed) {
    if (const auto value = from.find(name)) passed.add(name, *value);
  }
  return passed;
}

const char* target(Api api) {
  return api == Api::kChat ? "/v1/chat/completions" : "/v1/completions";
}

HttpServerOptions server_options(const RouterOptions& options, Counter& bad_requests) {
  return {.listen = options.listen,
          .connections_max = options.requests_max + kSideConnectionsMax,
          .body_bytes_max = options.body_bytes_max,
          .refusal = refuse_request,
          .bad_requests = &bad_requests};
}

}  // namespace

class Router::Impl {
 public:
  Impl(boost::asio::io_context& io, RouterOptions options, RouterWorld world)
      : options_(std::move(options)),
        world_(world),
        policy_(options_.prefill.size(), options_.decode.size()),
        client_(io, {.calls_max = 2 * options_.requests_max + kSideCallsMax}),
        routes_(refuse_request) {}

  Result<void> listen(boost::asio::io_context& io);
  std::uint16_t port() const { return server_->port(); }
  void drain() { server_->drain(); }
  bool idle() const { return waiting_clients_ == 0 && server_->connections() == 0; }

 private:
  struct Health;
  struct InFlight {
    std::unique_ptr<Exchange> exchange;
    TransferRecord record;
  };

  void on_request(Api api, const HttpRequest& request, HttpResponder responder);
  LegCalls leg_calls(Api api, const HttpRequest& request, Legs legs, ServerPair servers,
                     const std::string& request_id) const;
  ExchangeEvents events(Api api, std::uint64_t number, Instant arrived);
  void note(std::uint64_t number, const char* point);
  void on_models(const HttpRequest& request, HttpResponder responder);
  void on_health(HttpResponder responder);
  std::string transfers() const;

  const RouterOptions options_;
  const RouterWorld world_;
  RouterMetrics metrics_;
  RoundRobin policy_;
  std::size_t next_models_ = 0;  // decode server that is asked next
  HttpClient client_;
  HttpRoutes routes_;
  std::unique_ptr<HttpServer> server_;
  // In flight. An exchange may outlive its client's answer, by the end of its prefill leg.
  std::map<std::uint64_t, InFlight> exchanges_;
  TransferLog ended_;
  std::uint64_t last_exchange_ = 0;
  std::size_t waiting_clients_ = 0;
};

// One question for health, asked of every server.
struct Router::Impl::Health {
  HttpResponder responder;
  std::size_t unanswered = 0;
  std::size_t prefill_reachable = 0;
  std::size_t decode_reachable = 0;
};

Result<std::unique_ptr<Router>> Router::open(boost::asio::io_context& io, RouterOptions options, RouterWorld world) {
  if (options.prefill.empty()) return fail(ErrorCode::kBadConfig, "a router needs a prefill server");
  if (options.decode.empty()) return fail(ErrorCode::kBadConfig, "a router needs a decode server");
  auto impl = std::make_unique<Impl>(io, std::move(options), world);
  if (const Result<void> listening = impl->listen(io); !listening) return std::unexpected(listening.error());
  return std::unique_ptr<Router>(new Router(std::move(impl)));
}

Router::Router(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Router::~Router() = default;

std::uint16_t Router::port() const {
  return impl_->port();
}

void Router::drain() {
  impl_->drain();
}

bool Router::idle() const {
  return impl_->idle();
}

Result<void> Router::Impl::listen(boost::asio::io_context& io) {
  for (const Api api : {Api::kCompletions, Api::kChat}) {
    routes_.add("POST", target(api), [this, api](const HttpRequest& request, HttpResponder responder) {
      on_request(api, request, std::move(responder));
    });
  }
  routes_.add("GET", "/v1/models", [this](const HttpRequest& request, HttpResponder responder) {
    on_models(request, std::move(responder));
  });
  routes_.add("GET", "/health",
              [this](const HttpRequest&, HttpResponder responder) { on_health(std::move(responder)); });
  routes_.add("GET", "/metrics", [this](const HttpRequest&, HttpResponder responder) {
    responder.reply({.content_type = std::string(kMetricsContentType), .body = metrics_.render()});
  });
  routes_.add("GET", "/kvpush/v1/transfers",
              [this](const HttpRequest&, HttpResponder responder) { responder.reply({.body = transfers()}); });
  auto server = HttpServer::open(io, server_options(options_, metrics_.bad_requests()),
                                 [this](HttpRequest request, HttpResponder responder) {
                                   routes_.dispatch(std::move(request), std::move(responder));
                                 });
  if (!server) return std::unexpected(server.error());
  server_ = *std::move(server);
  return {};
}

void Router::Impl::on_request(Api api, const HttpRequest& request, HttpResponder responder) {
  if (exchanges_.size() >= options_.requests_max) {
    metrics_.request_refused(api, RequestOutcome::kFull);
    HttpReply full = error_reply(503, "the router has as many requests in flight as it takes; try again");
    full.headers.add("Retry-After", "1");
    full.close = true;  // who is refused holds no connection that another client could have
    return responder.reply(std::move(full));
  }
  const Instant arrived = world_.now();
  const ServerPair servers = policy_.next();
  const TransferId transfer = make_transfer_id(world_.entropy(), world_.entropy());
  auto legs = make_legs(api, request.body, transfer, options_.prefill[servers.prefill].directory);
  if (!legs) {
    metrics_.request_refused(api, RequestOutcome::kRefused);
    return responder.reply(error_reply(400, legs.error().message, legs.error().param));
  }
  const std::string request_id(request.headers.find("X-Request-Id").value_or(transfer));
  const std::uint64_t number = ++last_exchange_;
  TransferRecord record{
      .transfer_id = transfer,
      .request = request_id,
      .role = "router",
      .peer = to_string(options_.prefill[servers.prefill].directory) + " " + to_string(options_.decode[servers.decode]),
      .outcome = "in_flight",
      .timeline = {}};
  record.timeline.note("arrived", arrived);
  auto exchange = std::make_unique<Exchange>(client_, request_id, std::move(responder), events(api, number, arrived));
  ++waiting_clients_;
  metrics_.request_started();
  exchange->start(leg_calls(api, request, *std::move(legs), servers, request_id));
  record.timeline.note("legs_sent", world_.now());
  exchanges_.emplace(number, InFlight{std::move(exchange), std::move(record)});
}

LegCalls Router::Impl::leg_calls(Api api, const HttpRequest& request, Legs legs, ServerPair servers,
                                 const std::string& request_id) const {
  HttpCall call;
  call.method = "POST";
  call.target = target(api);
  call.headers = passed_headers(request.headers);
  call.headers.set("Content-Type", "application/json");
  call.headers.set("X-Request-Id", request_id);
  call.silence_timeout = kLegSilenceMax;
  LegCalls calls{call, call};
  calls.prefill.address = options_.prefill[servers.prefill].http;
  calls.prefill.body = std::move(legs.prefill);
  calls.decode.address = options_.decode[servers.decode];
  calls.decode.body = std::move(legs.decode);
  return calls;
}

ExchangeEvents Router::Impl::events(Api api, std::uint64_t number, Instant arrived) {
  return {.on_leg_end =
              [this, number](Role role, LegOutcome outcome) {
                metrics_.leg_ended(role, outcome);
                if (role == Role::kPrefill && outcome == LegOutcome::kOk) note(number, "prefill_answered");
              },
          .on_first_byte =
              [this, api, number, arrived] {
                metrics_.first_byte(api, world_.now() - arrived);
                note(number, "first_byte");
              },
          .on_answered =
              [this, api, number, arrived](RequestOutcome outcome) {
                --waiting_clients_;
                metrics_.request_ended(api, outcome, world_.now() - arrived);
                note(number, "answered");
                exchanges_.at(number).record.outcome = outcome_name(outcome);
              },
          .on_end =
              [this, number] {
                auto ended = exchanges_.extract(number);
                ended_.add(std::move(ended.mapped().record));
              }};
}

void Router::Impl::note(std::uint64_t number, const char* point) {
  exchanges_.at(number).record.timeline.note(point, world_.now());
}

std::string Router::Impl::transfers() const {
  std::string text = "{";
  append_json(text, Moment{world_.now(), world_.wall_clock()});
  text += ",\"live\":[";
  bool first = true;
  for (const auto& [number, in_flight] : exchanges_) {
    if (!std::exchange(first, false)) text += ',';
    append_json(text, in_flight.record);
  }
  return text.append("],\"ended\":").append(ended_.to_json()) += '}';
}

void Router::Impl::on_models(const HttpRequest& request, HttpResponder responder) {
  const Endpoint& server = options_.decode[next_models_++ % options_.decode.size()];
  HttpCall call{.address = server, .target = "/v1/models", .headers = passed_headers(request.headers)};
  call.total_timeout = kModelsMax;
  client_.collect(std::move(call), [server, responder = std::move(responder)](Result<HttpAnswer> answer) mutable {
    if (!answer) {
      return responder.reply(
          error_reply(502, "the decode server " + to_string(server) + " failed: " + answer.error().what));
    }
    HttpReply reply{answer->status, "", std::move(answer->body), end_to_end(answer->headers)};
    responder.reply(std::move(reply));
  });
}

void Router::Impl::on_health(HttpResponder responder) {
  auto health = std::make_shared<Health>(std::move(responder));
  health->unanswered = options_.prefill.size() + options_.decode.size();
  const auto ask = [&](const Endpoint& server, std::size_t Health::* reachable) {
    HttpCall call{.address = server, .target = "/health"};
    call.total_timeout = kHealthMax;
    client_.collect(std::move(call), [this, health, reachable](Result<HttpAnswer> answer) {
      if (answer && answer->status == 200) ++((*health).*reachable);
      if (--health->unanswered > 0) return;
      const bool usable = health->prefill_reachable > 0 && health->decode_reachable > 0;
      const auto side = [](std::size_t reachable_count, std::size_t count) {
        return boost::json::object{{"reachable", reachable_count}, {"configured", count}};
      };
      const boost::json::object body{{"status", usable ? "ok" : "unusable"},
                                     {"prefill", side(health->prefill_reachable, options_.prefill.size())},
                                     {"decode", side(health->decode_reachable, options_.decode.size())}};
      health->responder.reply({.status = usable ? 200 : 503, .body = boost::json::serialize(body)});
    });
  };
  for (const PrefillServer& server : options_.prefill) ask(server.http, &Health::prefill_reachable);
  for (const Endpoint& server : options_.decode) ask(server, &Health::decode_reachable);
}

}  // namespace kvpush
