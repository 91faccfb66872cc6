#include "kvpush/base/error.h"

namespace kvpush {

std::string_view error_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kBadMessage: return "bad_message";
    case ErrorCode::kBadConfig: return "bad_config";
    case ErrorCode::kBadParams: return "bad_params";
    case ErrorCode::kVersionMismatch: return "version_mismatch";
    case ErrorCode::kLayoutMismatch: return "layout_mismatch";
    case ErrorCode::kFull: return "full";
    case ErrorCode::kBusy: return "busy";
    case ErrorCode::kUnknownTransfer: return "unknown_transfer";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kAborted: return "aborted";
    case ErrorCode::kPeerLost: return "peer_lost";
    case ErrorCode::kPeerRestarted: return "peer_restarted";
    case ErrorCode::kTransportFailed: return "transport_failed";
    case ErrorCode::kOutOfRegion: return "out_of_region";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kStopped: return "stopped";
    case ErrorCode::kStaleSession: return "stale_session";
    case ErrorCode::kUnauthenticated: return "unauthenticated";
  }
  return "unknown";
}

}  // namespace kvpush
