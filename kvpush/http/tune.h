#pragma once

#include <boost/asio/ip/tcp.hpp>

namespace kvpush {

// What every connection that speaks HTTP is set to: small writes leave at once, and the kernel finds out that the
// machine of a silent peer has vanished, in about 25 seconds.
void tune(boost::asio::ip::tcp::socket& socket);

}  // namespace kvpush
