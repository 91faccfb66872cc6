#include "kvpush/router/exchange.h"

#include <fmt/format.h>

#include <utility>

#include "kvpush/base/log.h"
#include "kvpush/router/answer.h"

namespace kvpush {
namespace {

// Of a leg's error: the longest that vLLM sends are a few KiB (a request that fails validation is quoted).
constexpr std::size_t kErrorBytesMax = 64u << 10;
// Of a leg's error inside the router's own error.
constexpr std::size_t kQuotedBytesMax = 1000;

Role other(Role role) {
  return role == Role::kPrefill ? Role::kDecode : Role::kPrefill;
}

bool is_client_error(int status) {
  return status >= 400 && status < 500;
}

// At most so many bytes, and no half character at the end.
std::string_view quoted(std::string_view text) {
  if (text.size() <= kQuotedBytesMax) return text;
  std::size_t end = kQuotedBytesMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace

std::string_view role_name(Role role) {
  return role == Role::kPrefill ? "prefill" : "decode";
}

std::string_view outcome_name(RequestOutcome outcome) {
  switch (outcome) {
    case RequestOutcome::kOk: return "ok";
    case RequestOutcome::kRefused: return "refused";
    case RequestOutcome::kFull: return "full";
    case RequestOutcome::kPrefillFailed: return "prefill_failed";
    case RequestOutcome::kDecodeFailed: return "decode_failed";
    case RequestOutcome::kBroken: return "broken";
    case RequestOutcome::kClientGone: return "client_gone";
  }
  return "";
}

Exchange::Exchange(HttpClient& client, std::string request_id, HttpResponder responder, ExchangeEvents events)
    : client_(client),
      request_id_(std::move(request_id)),
      responder_(std::move(responder)),
      events_(std::move(events)) {}

Exchange::~Exchange() {
  if (prefill_.running) client_.cancel(prefill_.call);
  if (decode_.running) client_.cancel(decode_.call);
}

void Exchange::start(LegCalls calls) {
  responder_->on_gone([this] { on_client_gone(); });
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    HttpCall& call = role == Role::kPrefill ? calls.prefill : calls.decode;
    leg(role).server = to_string(call.address);
    leg(role).running = true;
    leg(role).call = start_leg(role, std::move(call));
  }
}

HttpCallId Exchange::start_leg(Role role, HttpCall call) {
  return client_.start(std::move(call),
                       {.on_head = [this, role](const HttpHead& head) { leg(role).head = head; },
                        .on_body = [this, role](std::string_view bytes) { return on_body(role, bytes); },
                        .on_end = [this, role](Result<void> result) { on_leg_end(role, result); }});
}

HttpFlow Exchange::on_body(Role role, std::string_view bytes) {
  Leg& from = leg(role);
  if (from.head.status >= 400) {
    from.error_body += bytes.substr(0, kErrorBytesMax - from.error_body.size());
    return HttpFlow::kContinue;
  }
  if (role == Role::kPrefill) return HttpFlow::kContinue;
  if (!streaming_) {
    streaming_ = true;
    if (events_.on_first_byte) events_.on_first_byte();
    HttpHead head{from.head.status, end_to_end(from.head.headers), from.head.content_bytes};
    head.headers.set("X-Request-Id", request_id_);
    responder_->start(std::move(head));
  }
  responder_->write(std::string(bytes), [this] { client_.resume(decode_.call); });
  return HttpFlow::kPause;
}

void Exchange::on_leg_end(Role role, const Result<void>& result) {
  leg(role).running = false;
  const bool ok = result.has_value() && leg(role).head.status < 400;
  if (events_.on_leg_end) {
    events_.on_leg_end(role, ok                         ? LegOutcome::kOk
                             : is_refused(role, result) ? LegOutcome::kRefused
                                                        : LegOutcome::kFailed);
  }
  if (!ok) {
    fail(role, result);
  } else if (role == Role::kDecode) {
    finish_answer();
  }
  end_if_idle();
}

// Whether what the server says is about the client's request, and the client's to read.
bool Exchange::is_refused(Role role, const Result<void>& result) const {
  return result.has_value() && is_client_error(leg(role).head.status) && leg(role).error_body.size() < kErrorBytesMax;
}

void Exchange::fail(Role role, const Result<void>& result) {
  const bool refused = is_refused(role, result);
  const HttpReply reply = failure_reply(role, result);
  // Clients make mistakes as often as they like, and nobody who runs the router can mend them.
  log(refused ? LogLevel::kInfo : LogLevel::kWarning,
      fmt::format("request {}: {} leg at {} {}: {}", request_id_, role_name(role), leg(role).server,
                  refused ? "refused" : "failed", quoted(reply.body)));
  if (!responder_.has_value()) return;
  if (streaming_) {
    if (role == Role::kPrefill) return;
    cancel(Role::kPrefill);
    responder_.reset();  // in the middle of a stream: the client sees that it is broken
    return end_answer(RequestOutcome::kBroken);
  }
  cancel(other(role));
  responder_->reply(reply);
  responder_.reset();
  if (refused) return end_answer(RequestOutcome::kRefused);
  end_answer(role == Role::kPrefill ? RequestOutcome::kPrefillFailed : RequestOutcome::kDecodeFailed);
}

// All but a refusal is a fault behind the router.
HttpReply Exchange::failure_reply(Role role, const Result<void>& result) const {
  const Leg& failed = leg(role);
  HttpReply reply;
  if (!result.has_value()) {
    reply = error_reply(
        502, fmt::format("the {} server {} failed: {}", role_name(role), failed.server, result.error().what));
  } else if (is_refused(role, result)) {
    reply.status = failed.head.status;
    reply.headers = end_to_end(failed.head.headers);
    reply.content_type = reply.headers.find("Content-Type").value_or("application/json");
    reply.body = failed.error_body;
  } else {
    reply = error_reply(502, fmt::format("the {} server {} answered {}: {}", role_name(role), failed.server,
                                         failed.head.status, quoted(failed.error_body)));
  }
  reply.headers.set("X-Request-Id", request_id_);
  return reply;
}

void Exchange::finish_answer() {
  if (streaming_) {
    responder_->finish();
  } else {
    HttpReply reply{decode_.head.status, "", "", end_to_end(decode_.head.headers)};
    reply.headers.set("X-Request-Id", request_id_);
    responder_->reply(std::move(reply));
  }
  responder_.reset();
  end_answer(RequestOutcome::kOk);
}

void Exchange::on_client_gone() {
  cancel(Role::kPrefill);
  cancel(Role::kDecode);
  responder_.reset();
  end_answer(RequestOutcome::kClientGone);
  end_if_idle();
}

void Exchange::cancel(Role role) {
  if (!std::exchange(leg(role).running, false)) return;
  if (role == Role::kPrefill) {
    client_.cancel(prefill_.call);
  } else {
    // Prefill may have finished, and keeps its KV until decode says that it does not want it.
    client_.cancel_when_sent(decode_.call);
  }
  if (events_.on_leg_end) events_.on_leg_end(role, LegOutcome::kCancelled);
}

void Exchange::end_answer(RequestOutcome outcome) {
  if (events_.on_answered) events_.on_answered(outcome);
}

void Exchange::end_if_idle() {
  if (responder_.has_value() || prefill_.running || decode_.running) return;
  // A local, as the exchange may be destroyed in the call.
  auto on_end = std::move(events_.on_end);
  if (on_end) on_end();
}

}  // namespace kvpush
