#include "kvpush/agent/report.h"

#include <algorithm>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/overloaded.h"

namespace kvpush {

namespace {

std::string_view outcome_of(const std::optional<ErrorCode>& error) {
  return error ? error_name(*error) : "delivered";
}

// What the producer told as times before it was delivered, put on this machine's clock.
void note_before(Timeline& timeline, const char* name, Instant delivered, Duration before) {
  if (before > Duration{}) timeline.note(name, delivered - before);
}

}  // namespace

Report::Report()
    : receive_seconds_(registry_.histogram("kvpush_receive_seconds",
                                           "From the engine's request for KV to its delivery.", kSecondsBuckets)),
      early_seconds_(registry_.histogram("kvpush_early_seconds",
                                         "How long a registered destination waited for its computed prompt.",
                                         kSecondsBuckets)),
      exposed_seconds_(registry_.histogram(
          "kvpush_exposed_seconds", "From KV being computed and asked for, whichever was later, to its delivery.",
          kSecondsBuckets)),
      seen_seconds_(registry_.histogram("kvpush_seen_by_engine_seconds",
                                        "From the end of a received transfer to the engine taking the event.",
                                        kSecondsBuckets)),
      send_seconds_(
          registry_.histogram("kvpush_send_seconds", "From computed KV to the end of its transfer.", kSecondsBuckets)),
      write_seconds_(registry_.histogram("kvpush_write_seconds", "From the first posted batch to the last completion.",
                                         kSecondsBuckets)),
      receive_bytes_(registry_.histogram("kvpush_receive_bytes", "KV bytes of a received transfer.", kBytesBuckets)) {
  // From the start, so that a rate over the first event is not lost.
  receives(std::nullopt);
  sends(std::nullopt);
  for (const ErrorCode code : kErrorCodes) {
    receives(code);
    sends(code);
  }
}

Counter& Report::receives(std::optional<ErrorCode> error) {
  return registry_.counter("kvpush_receives_total", "Requests for KV by how they ended.",
                           {{"outcome", std::string(outcome_of(error))}});
}

Counter& Report::sends(std::optional<ErrorCode> error) {
  return registry_.counter("kvpush_sends_total", "Computed prompts by how their transfer ended.",
                           {{"outcome", std::string(outcome_of(error))}});
}

std::uint64_t Report::ended(const EngineEvent& event) {
  return std::visit(Overloaded{[this](const ReceiveEnded& ended) { return add(ended); },
                               [this](const SendEnded& ended) { return add(ended); },
                               [](const AwaitEnded&) { return std::uint64_t{0}; }},
                    event);
}

std::uint64_t Report::add(const ReceiveEnded& event) {
  receives(event.error).add();
  TransferRecord record{.transfer_id = event.transfer_id,
                        .request = event.request,
                        .role = "consumer",
                        .peer = to_string(event.producer),
                        .outcome = outcome_of(event.error),
                        .bytes = event.bytes,
                        .tokens = event.tokens,
                        .timeline = {}};
  const ReceiveTimes& times = event.times;
  record.timeline.note("received", times.received);
  record.timeline.note("registered", times.registered);
  if (!event.error) {
    const Instant delivered = times.ended.value_or(times.received);
    observe(times, delivered);
    receive_bytes_.observe(static_cast<double>(event.bytes));
    note_before(record.timeline, "offered", delivered, times.producer.since_offered);
    note_before(record.timeline, "matched", delivered, times.producer.since_matched);
    note_before(record.timeline, "first_post", delivered, times.producer.since_first_post);
    note_before(record.timeline, "last_post", delivered, times.producer.since_last_post);
    record.timeline.note("delivered", delivered);
  }
  return log_.add(std::move(record));
}

std::uint64_t Report::add(const SendEnded& event) {
  sends(event.error).add();
  TransferRecord record{.transfer_id = event.transfer_id,
                        .request = event.request,
                        .role = "producer",
                        .peer = event.consumer,
                        .outcome = outcome_of(event.error),
                        .bytes = event.bytes,
                        .tokens = event.tokens,
                        .timeline = {}};
  const SendingTimes& times = event.times;
  if (times.completed) {
    send_seconds_.observe(*times.completed - times.offered);
    if (times.first_post && !event.error) write_seconds_.observe(*times.completed - *times.first_post);
  }
  record.timeline.note("offered", times.offered);
  record.timeline.note("matched", times.matched);
  record.timeline.note("first_post", times.first_post);
  record.timeline.note("last_post", times.last_post);
  record.timeline.note("completed", times.completed);
  return log_.add(std::move(record));
}

void Report::observe(const ReceiveTimes& times, Instant delivered) {
  receive_seconds_.observe(delivered - times.received);
  exposed_seconds_.observe(std::min(delivered - times.received, times.producer.since_offered));
  const Instant matched = delivered - times.producer.since_matched;
  if (times.registered) early_seconds_.observe(std::max(matched - *times.registered, Duration{}));
}

void Report::seen(const SeenByEngine& seen) {
  seen_seconds_.observe(seen.seen - seen.ended);
  log_.note(seen.record, "seen_by_engine", seen.seen);
}

std::string Report::transfers(const Producer& producer, const Consumer& consumer) const {
  std::string out = "{\"live\": [";
  bool is_first = true;
  const auto append = [&](const TransferRecord& record) {
    if (!is_first) out += ", ";
    is_first = false;
    append_json(out, record);
  };
  for (const Producer::Held& held : producer.held()) {
    TransferRecord record{.transfer_id = held.transfer_id,
                          .request = held.request,
                          .role = "producer",
                          .peer = held.consumer,
                          .outcome = held.registrations == 0 ? "held" : "writing",
                          .bytes = 0,
                          .tokens = held.tokens,
                          .timeline = {}};
    record.timeline.note("offered", held.offered);
    append(record);
  }
  for (const Consumer::Waiting& waiting : consumer.waiting()) {
    TransferRecord record{.transfer_id = waiting.transfer_id,
                          .request = waiting.request,
                          .role = "consumer",
                          .peer = to_string(waiting.producer),
                          .outcome = waiting.quarantined  ? "quarantined"
                                     : waiting.writing    ? "writing"
                                     : waiting.registered ? "registered"
                                                          : "connecting",
                          .bytes = 0,
                          .tokens = waiting.tokens,
                          .timeline = {}};
    record.timeline.note("received", waiting.received);
    append(record);
  }
  return out + "], \"ended\": " + log_.to_json() + "}";
}

void Report::follow(const char* name, const char* help, std::uint64_t total, const Labels& labels) {
  Counter& counter = registry_.counter(name, help, labels);
  counter.add(total - counter.value());
}

void Report::level(const char* name, const char* help, std::size_t value, const Labels& labels) {
  registry_.gauge(name, help, labels).set(static_cast<std::int64_t>(value));
}

void Report::show(const std::vector<Wire>& wires) {
  constexpr const char* kName = "kvpush_transport_info";
  constexpr const char* kHelp = "1 for each transport and the wires that it uses now.";
  for (const Wire& wire : wires_) level(kName, kHelp, 0, {{"transport", wire.transport}, {"wire", wire.wire}});
  for (const Wire& wire : wires) level(kName, kHelp, 1, {{"transport", wire.transport}, {"wire", wire.wire}});
  wires_ = wires;
}

std::string Report::metrics(const Producer& producer, const Consumer& consumer, const ControlCounters& control,
                            const std::vector<Wire>& wires) {
  show(wires);
  const ProducerCounters& sent = producer.counters();
  const ConsumerCounters& got = consumer.counters();
  const Labels as_producer{{"role", "producer"}};
  const Labels as_consumer{{"role", "consumer"}};

  follow("kvpush_sessions_started_total", "Sessions that became ready.", sent.sessions_started, as_producer);
  follow("kvpush_sessions_started_total", "Sessions that became ready.", got.sessions_started, as_consumer);
  follow("kvpush_sessions_refused_total", "Session starts that failed.", sent.sessions_refused, as_producer);
  follow("kvpush_sessions_refused_total", "Session starts that failed.", got.sessions_refused, as_consumer);
  follow("kvpush_sessions_lost_total", "Ready sessions that ended.", sent.sessions_lost, as_producer);
  follow("kvpush_sessions_lost_total", "Ready sessions that ended.", got.sessions_lost, as_consumer);
  follow("kvpush_sessions_silent_total", "Sessions lost to silence.", sent.sessions_silent, as_producer);
  follow("kvpush_sessions_silent_total", "Sessions lost to silence.", got.sessions_silent, as_consumer);
  follow("kvpush_links_overdue_total", "Links ended because a producer owed proof.", got.links_overdue);
  follow("kvpush_sessions_unauthenticated_total", "Session starts without proof of the secret.",
         control.unauthenticated_accepted, as_producer);
  follow("kvpush_sessions_unauthenticated_total", "Session starts without proof of the secret.",
         got.sessions_unauthenticated, as_consumer);
  follow("kvpush_frames_forged_total", "Frames of a session that its peer did not send.", control.frames_forged);
  follow("kvpush_leases_expired_total", "Leases that ended while a batch waited.", sent.leases_expired);
  follow("kvpush_registrations_total", "Registrations made or received.", sent.registrations, as_producer);
  follow("kvpush_registrations_total", "Registrations made or received.", got.registrations, as_consumer);
  follow("kvpush_bad_messages_total", "Messages that do not fit the conversation.", sent.bad_messages, as_producer);
  follow("kvpush_bad_messages_total", "Messages that do not fit the conversation.", got.bad_messages, as_consumer);
  follow("kvpush_bytes_total", "KV bytes delivered.", sent.bytes_delivered, as_producer);
  follow("kvpush_bytes_total", "KV bytes delivered.", got.bytes_received, as_consumer);
  follow("kvpush_unwanted_total", "Transfers of which a consumer rank needed nothing.", sent.unwanted, as_producer);
  follow("kvpush_unwanted_total", "Transfers of which a consumer rank needed nothing.", got.declines, as_consumer);
  follow("kvpush_expected_total", "Transfers expected by a request in a queue.", sent.expects, as_producer);
  follow("kvpush_expected_total", "Transfers expected by a request in a queue.", got.awaits, as_consumer);
  follow("kvpush_expects_refused_total", "Transfers not kept: too many were expected.", sent.expects_refused);
  follow("kvpush_late_messages_total", "Messages about registrations that had ended.", got.late_messages, as_consumer);
  follow("kvpush_writes_failed_total", "Posted batches that the transport could not write.", sent.writes_failed);
  follow("kvpush_revokes_total", "Registrations stopped before their end.", got.revokes);
  follow("kvpush_fences_total", "Registrations proven quiescent by closing an endpoint.", got.fences);
  follow("kvpush_resolves_failed_total", "Directories that could not be read.", got.resolves_failed);

  const ProducerGauges sending = producer.gauges();
  const ConsumerGauges receiving = consumer.gauges();
  level("kvpush_sessions", "Sessions that are open now.", sending.sessions, as_producer);
  level("kvpush_sessions", "Sessions that are open now.", receiving.sessions_ready, as_consumer);
  level("kvpush_requests", "Requests whose blocks a transfer holds.", sending.requests, as_producer);
  level("kvpush_requests", "Requests whose blocks a transfer holds.", receiving.requests, as_consumer);
  level("kvpush_expected", "Transfers that a request in a queue expects.", sending.expected, as_producer);
  level("kvpush_expected", "Transfers that a request in a queue expects.", receiving.awaited, as_consumer);
  level("kvpush_registrations_waiting", "Registrations that have not ended.", sending.registrations);
  level("kvpush_writes_in_flight", "Posted batches that have not ended.", sending.writes_in_flight);
  level("kvpush_quarantined_requests", "Ended requests whose blocks may still be written to.", receiving.quarantined);
  return registry_.render();
}

}  // namespace kvpush
