#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kvpush/base/instant.h"
#include "kvpush/http/client.h"
#include "kvpush/http/server.h"
#include "kvpush/router/legs.h"

namespace kvpush {

enum class Role : std::uint8_t { kPrefill, kDecode };
std::string_view role_name(Role role);

// How a leg ended, and how a client's request did: label values of the metrics.
enum class LegOutcome : std::uint8_t {
  kOk,
  kRefused,  // by the server, with a status 4xx: the client's mistake
  kFailed,
  kCancelled,
};
enum class RequestOutcome : std::uint8_t {
  kOk,
  kRefused,        // by the router or a server: the client's mistake
  kFull,           // by the router: too many in flight
  kPrefillFailed,  // the client got an error
  kDecodeFailed,   // the client got an error
  kBroken,         // decode failed in the middle of its answer: the client saw it end early
  kClientGone,
};
inline constexpr RequestOutcome kRequestOutcomes[] = {
    RequestOutcome::kOk,           RequestOutcome::kRefused,
    RequestOutcome::kFull,         RequestOutcome::kPrefillFailed,
    RequestOutcome::kDecodeFailed, RequestOutcome::kBroken,
    RequestOutcome::kClientGone,
};
std::string_view outcome_name(RequestOutcome outcome);

// What an exchange tells about itself while it runs.
struct ExchangeEvents {
  std::move_only_function<void(Role, LegOutcome)> on_leg_end{};
  std::move_only_function<void()> on_first_byte{};
  // Once, when the client has its answer or will get none.
  std::move_only_function<void(RequestOutcome)> on_answered{};
  // Once and last: nothing runs any more. The exchange may be destroyed in the call.
  std::move_only_function<void()> on_end{};
};

// The requests of the two legs, ready to be sent.
struct LegCalls {
  HttpCall prefill{};
  HttpCall decode{};
};

// One client's request: both legs sent at once, decode's answer streamed back.
//
//   client       router                     prefill     decode
//     |--request-->|------ one token ---------->|           |
//     |            |------ the request ---------------------->|
//     |            |<----- 200, thrown away ----|  ..KV..>   |
//     |<--pieces---|<---------------- pieces ----------------|
//
// Job: passes decode's bytes on untouched and no faster than the client takes them; cancels what is pointless; says
//      why when a leg fails.
//      Until decode's first byte either leg's failure cancels the other leg and is the client's answer. (Decode's head
//      alone proves nothing: a streaming server sends it before it has computed anything.) After it prefill no longer
//      matters: decode has its KV, or fails by itself. So its failure then is only logged and counted.
// Not here: choosing servers, checking the request.
// Owner: Router. Destroying it cancels both legs and drops the client.
// Thread: router role.
class Exchange {
 public:
  Exchange(HttpClient& client, std::string request_id, HttpResponder responder, ExchangeEvents events);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void start(LegCalls calls);

 private:
  struct Leg {
    HttpCallId call{};
    bool running = false;
    std::string server{};  // for people
    HttpHead head{};
    std::string error_body{};  // of an answer with an error status
  };

  HttpCallId start_leg(Role role, HttpCall call);
  HttpFlow on_body(Role role, std::string_view bytes);
  void on_leg_end(Role role, const Result<void>& result);
  bool is_refused(Role role, const Result<void>& result) const;
  void fail(Role role, const Result<void>& result);
  HttpReply failure_reply(Role role, const Result<void>& result) const;
  void finish_answer();
  void on_client_gone();
  void cancel(Role role);
  void end_answer(RequestOutcome outcome);
  void end_if_idle();
  Leg& leg(Role role) { return role == Role::kPrefill ? prefill_ : decode_; }
  const Leg& leg(Role role) const { return role == Role::kPrefill ? prefill_ : decode_; }

  HttpClient& client_;
  const std::string request_id_;
  std::optional<HttpResponder> responder_;  // until the client has its answer or will get none
  ExchangeEvents events_;
  Leg prefill_;
  Leg decode_;
  bool streaming_ = false;  // decode's first byte was passed on
};

}  // namespace kvpush
