#include "kvpush/standin/answering.h"

#include <utility>

namespace kvpush {

Answering::Answering(CompletionNames names, bool streams, HttpResponder responder, std::move_only_function<void()> done)
    : names_(std::move(names)), streams_(streams), responder_(std::move(responder)), done_(std::move(done)) {}

void Answering::add(Token token) {
  ++output_tokens_;
  if (!streams_) {
    text_ += text_of(token);
    return;
  }
  send(completion_event(names_, text_of(token), nullptr));
}

void Answering::finish(CompletionEnd last) {
  last.output_tokens = output_tokens_;
  is_ended_ = true;
  if (!streams_) {
    responder_.reply({.body = completion_json(names_, text_, last)});
    return end();
  }
  send(completion_event(names_, "", &last).append(kLastEvent));
}

void Answering::fail(int status, std::string_view what) {
  is_ended_ = is_broken_ = true;
  if (!is_started_) {
    responder_.reply(completion_error(status, what));
    return end();
  }
  send("data: " + error_json(status, what) + "\n\n");
}

void Answering::send(std::string_view bytes) {
  if (!std::exchange(is_started_, true)) {
    HttpHead head;
    head.headers.add("Content-Type", "text/event-stream");
    responder_.start(std::move(head));
  }
  pending_ += bytes;
  if (!is_writing_) write();
}

void Answering::write() {
  is_writing_ = true;
  responder_.write(std::exchange(pending_, {}), [this] {
    is_writing_ = false;
    if (!pending_.empty()) return write();
    if (!is_ended_) return;
    if (!is_broken_) responder_.finish();
    end();
  });
}

void Answering::end() {
  auto done = std::move(done_);  // outlives this object
  done();
}

}  // namespace kvpush
