#pragma once

#include <cstdint>
#include <expected>
#include <string_view>

namespace kvpush {

// Every way in which the world can say no. The numbers are those on the wire, in metrics and in Python, so a value is
// never renumbered or reused. docs/errors.md says for each who sees it and what to do; a test compares the two.
enum class ErrorCode : std::uint8_t {
  kBadMessage = 1,
  kBadConfig = 2,
  kBadParams = 3,
  kVersionMismatch = 4,
  kLayoutMismatch = 5,
  kFull = 6,
  kBusy = 7,
  kUnknownTransfer = 8,
  kTimeout = 9,
  kAborted = 10,
  kPeerLost = 11,
  kPeerRestarted = 12,
  kTransportFailed = 13,
  kOutOfRegion = 14,
  kUnavailable = 15,
  kStopped = 16,
  kStaleSession = 17,
  kUnauthenticated = 18,
};

// Every code once, in order of number.
inline constexpr ErrorCode kErrorCodes[] = {
    ErrorCode::kBadMessage,      ErrorCode::kBadConfig,      ErrorCode::kBadParams,   ErrorCode::kVersionMismatch,
    ErrorCode::kLayoutMismatch,  ErrorCode::kFull,           ErrorCode::kBusy,        ErrorCode::kUnknownTransfer,
    ErrorCode::kTimeout,         ErrorCode::kAborted,        ErrorCode::kPeerLost,    ErrorCode::kPeerRestarted,
    ErrorCode::kTransportFailed, ErrorCode::kOutOfRegion,    ErrorCode::kUnavailable, ErrorCode::kStopped,
    ErrorCode::kStaleSession,    ErrorCode::kUnauthenticated};

// snake_case without the k, as in metrics labels and Python: "bad_message".
std::string_view error_name(ErrorCode code);

// A code and a sentence that is a string literal; small and copied freely. Context (which peer, which transfer) is
// added once, in the log line where the error is found.
struct Error {
  ErrorCode code{};
  const char* what = "";
};

template <class T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> fail(ErrorCode code, const char* what) {
  return std::unexpected(Error{code, what});
}

}  // namespace kvpush
