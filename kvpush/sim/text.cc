#include "kvpush/sim/text.h"

#include <fmt/format.h>

#include <string_view>

#include "kvpush/base/overloaded.h"

namespace kvpush::sim {

namespace {

std::string text(TokenRange tokens) {
  return fmt::format("tokens {}-{}", tokens.first, tokens.end);
}

std::string outcome(std::optional<ErrorCode> error, std::uint64_t bytes) {
  return error ? fmt::format("ended: {}", error_name(*error)) : fmt::format("is complete, {} bytes", bytes);
}

}  // namespace

std::string text(const Message& message) {
  const std::string_view name = message_name(message);
  const auto with = [&](const auto& what) { return fmt::format("{} {}", name, what); };
  return std::visit(
      Overloaded{[&](const Hello& m) { return with(fmt::format("session {}", m.session.value)); },
                 [&](const Assign& m) { return with("over " + m.transport); },
                 [&](const Refused& m) { return with(fmt::format("{}: {}", error_name(m.code), m.text)); },
                 [&](const Register& m) {
                   return with(fmt::format("{} for {}, {}", m.registration.value, m.transfer_id, text(m.tokens)));
                 },
                 [&](const Delivered& m) { return with(fmt::format("{}, {} bytes", m.registration.value, m.bytes)); },
                 [&](const Failed& m) {
                   return with(fmt::format("{} {}{}", m.registration.value, error_name(m.code),
                                           m.quiescent ? "" : ", writes in flight"));
                 },
                 [&](const Unwanted& m) { return with(m.transfer_id); },
                 [&](const Expect& m) { return with(m.transfer_id); },
                 [&](const Admitted& m) { return with(m.transfer_id); },
                 [&](const Done& m) { return with(fmt::format("up to {}", m.up_to.value)); },
                 [&](const Renew& m) { return with(m.stamp.time_since_epoch().count()); },
                 [&](const Renewed& m) { return with(m.stamp.time_since_epoch().count()); },
                 [&](const auto& m) {
                   if constexpr (requires { m.registration; }) return with(m.registration.value);
                   return std::string(name);
                 }},
      message);
}

std::string text(const EngineEvent& event) {
  return std::visit(Overloaded{[](const ReceiveEnded& e) { return e.request + " " + outcome(e.error, e.bytes); },
                               [](const SendEnded& e) { return e.request + " " + outcome(e.error, e.bytes); },
                               [](const AwaitEnded& e) { return e.transfer_id + " need not be awaited any more"; }},
                    event);
}

}  // namespace kvpush::sim
