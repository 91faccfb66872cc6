// For tests: what a vendor's library must leave alone in the process that opens it.
#pragma once

#include <dlfcn.h>
#include <signal.h>

#include <map>
#include <vector>

namespace kvpush {

struct ProcessState {
  std::map<int, void (*)(int)> signal_handlers;
  std::vector<unsigned char> code;  // the first bytes of a function that libraries like to patch
  bool operator==(const ProcessState&) const = default;
};

inline ProcessState read_process_state() {
  ProcessState state;
  for (int number = 1; number < SIGRTMIN; ++number) {
    struct sigaction action{};
    if (sigaction(number, nullptr, &action) == 0) state.signal_handlers[number] = action.sa_handler;
  }
  const auto* first = reinterpret_cast<const unsigned char*>(dlsym(RTLD_NEXT, "munmap"));
  state.code.assign(first, first + 16);
  return state;
}

}  // namespace kvpush
