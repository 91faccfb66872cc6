// How the programs that serve run and end.
#pragma once

#include <functional>
#include <string_view>

namespace boost::asio {
class io_context;
}

namespace kvpush {

// Every request has connections of its own; the usual soft limit of 1024 is below what the kernel allows.
void raise_descriptor_limit();

// Prints `addresses` and runs `io` until the first SIGINT or SIGTERM, then calls `drain` and runs on until `is_idle`,
// for as long as orchestrators wait before they kill. A second signal ends the process at once.
void serve(boost::asio::io_context& io, std::string_view addresses, const std::function<void()>& drain,
           const std::function<bool()>& is_idle);

}  // namespace kvpush
