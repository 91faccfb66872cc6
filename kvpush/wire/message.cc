#include "kvpush/wire/message.h"

#include <iterator>

namespace kvpush {
namespace {

// In the order of Message.
constexpr std::string_view kNames[] = {"Hello",     "Welcome", "Assign",  "Assigned", "Refused", "Register", "Writing",
                                       "Delivered", "Failed",  "Quiet",   "Revoke",   "Revoked", "Unwanted", "Done",
                                       "Goodbye",   "Renew",   "Renewed", "Expect",   "Admitted"};
static_assert(std::size(kNames) == std::variant_size_v<Message>);

}  // namespace

std::string_view message_name(const Message& message) {
  return kNames[message.index()];
}

}  // namespace kvpush
