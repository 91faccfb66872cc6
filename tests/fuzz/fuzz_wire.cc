// Any bytes as the body of a frame: refused, or a message that survives being sent on.
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvpush/base/check.h"
#include "kvpush/wire/codec.h"
#include "tests/fuzz/messages.h"

// Shows E3.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvpush;
  const Result<Message> message = decode(std::as_bytes(std::span(data, size)));
  if (!message) {
    KVPUSH_CHECK(message.error().code == ErrorCode::kBadMessage, "bytes that are no message are a bad message");
    return 0;
  }
  KVPUSH_CHECK(testing::heard(*message).has_value(), "what was decoded can be sent on");
  return 0;
}
