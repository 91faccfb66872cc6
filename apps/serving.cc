#include "apps/serving.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>

namespace kvpush {
namespace {

constexpr std::chrono::milliseconds kDrainCheckEvery{20};

}  // namespace

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void serve(boost::asio::io_context& io, std::string_view addresses, const std::function<void()>& drain,
           const std::function<bool()>& is_idle, std::chrono::milliseconds drain_max) {
  boost::asio::signal_set signals(io, SIGINT, SIGTERM);
  bool stopping = false;
  signals.async_wait([&](const boost::system::error_code&, int) {
    stopping = true;
    signals.clear();
    drain();
  });
  fmt::print("{}", addresses);
  std::fflush(stdout);
  while (!stopping) io.run_one();
  const auto drain_end = std::chrono::steady_clock::now() + drain_max;
  while (!is_idle() && std::chrono::steady_clock::now() < drain_end) io.run_one_for(kDrainCheckEvery);
}

}  // namespace kvpush
