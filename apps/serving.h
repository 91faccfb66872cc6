// How the programs that serve run and end.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

namespace boost::asio {
class io_context;
}

namespace kvpush {

// Every request has connections of its own; the usual soft limit of 1024 is below what the kernel allows.
void raise_descriptor_limit();

inline constexpr std::chrono::milliseconds kDrainMax{25000};  // 30 s is usual before an orchestrator kills

// Prints `addresses` and runs `io` until the first SIGINT or SIGTERM, then calls `drain` and runs on until `is_idle`,
// at most for `drain_max`. A second signal ends the process at once.
void serve(boost::asio::io_context& io, std::string_view addresses, const std::function<void()>& drain,
           const std::function<bool()>& is_idle, std::chrono::milliseconds drain_max = kDrainMax);

}  // namespace kvpush
