#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "kvpush/http/server.h"
#include "kvpush/standin/completion.h"

namespace kvpush {

// The answer to one completion, while its tokens come.
//
// Job: collects the text, or streams each token as an event; one write at a time, what comes meanwhile waits for it.
//      What waits is bounded by what the call asked for.
// Not here: noticing that the client is gone; whoever owns it destroys it then.
// Owner: StandinEngine.
// Thread: engine role.
class Answering {
 public:
  // `done` runs once, when everything is said and written; never inside a call of this class but finish() and fail().
  // This object may be destroyed in it.
  Answering(CompletionNames names, bool streams, HttpResponder responder, std::move_only_function<void()> done);

  void add(Token token);
  // Afterwards nothing else is called.
  void finish(CompletionEnd last);
  // With status and error if nothing was sent before, else as a last event before the connection breaks.
  void fail(int status, std::string_view what);

 private:
  void send(std::string_view bytes);
  void write();
  void end();

  const CompletionNames names_;
  const bool streams_;
  HttpResponder responder_;
  std::move_only_function<void()> done_;
  std::string text_;     // not streamed
  std::string pending_;  // streamed, and not handed to the kernel
  std::size_t output_tokens_ = 0;
  bool is_started_ = false;
  bool is_writing_ = false;
  bool is_ended_ = false;
  bool is_broken_ = false;
};

}  // namespace kvpush
