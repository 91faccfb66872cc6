// What the router itself says to clients, in the shape that clients of the OpenAI API read.
#pragma once

#include <string_view>

#include "kvpush/http/message.h"

namespace kvpush {

// {"error": {"message", "type", "param", "code"}}: `code` is the status, as vLLM has it; `param` is null when empty.
HttpReply error_reply(int status, std::string_view message, std::string_view param = {});
// The same as an HttpRefusal.
HttpReply refuse_request(int status, std::string_view what);

}  // namespace kvpush
