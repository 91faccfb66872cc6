#include "kvpush/http/tune.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/system/error_code.hpp>

namespace kvpush {
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

// However long an answer may take: 10 + 3 * 5 seconds.
constexpr int kProbeAfterSeconds = 10;
constexpr int kProbeEverySeconds = 5;
constexpr int kProbesMax = 3;

}  // namespace

void tune(tcp::socket& socket) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&](int option, int value) {
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof(value));
  };
  set(TCP_KEEPIDLE, kProbeAfterSeconds);
  set(TCP_KEEPINTVL, kProbeEverySeconds);
  set(TCP_KEEPCNT, kProbesMax);
}

}  // namespace kvpush
