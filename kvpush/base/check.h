#pragma once

// KVPUSH_CHECK(condition, "sentence"): a bug of ours. Prints the sentence with its place and ends the process, also in
// release builds. What a peer, the network or time can cause is never checked this way; it is a Result.
// KVPUSH_DCHECK is the same for the per-write path and exists in debug builds only.
#define KVPUSH_CHECK(condition, sentence) \
  ((condition) ? static_cast<void>(0) : ::kvpush::check_failed(#condition, sentence, __FILE__, __LINE__))
#ifdef NDEBUG
#define KVPUSH_DCHECK(condition, sentence) static_cast<void>(sizeof(condition))
#else
#define KVPUSH_DCHECK(condition, sentence) KVPUSH_CHECK(condition, sentence)
#endif

namespace kvpush {

[[noreturn]] void check_failed(const char* condition, const char* sentence, const char* file, int line);

}  // namespace kvpush
