#include "tests/fuzz/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "kvpush/base/check.h"

namespace kvpush::testing {
namespace {

constexpr std::string_view kBetweenParts = "\n%%\n";
// What is kept of what is heard.
constexpr std::size_t kHeardBytesMax = 1u << 20;

sockaddr_in local_address(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

File open_socket() {
  File socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  KVPUSH_CHECK(socket.get() >= 0, "there are file descriptors left");
  return socket;
}

}  // namespace

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// Closing it resets the connection, or its port could not be used again for a minute: a fuzzer would soon have used
// all.
Speaker::Speaker(File socket, std::string text) : socket_(std::move(socket)), text_(std::move(text)) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
}

Speaker Speaker::connect(std::uint16_t port, std::string text) {
  File socket = open_socket();
  const sockaddr_in address = local_address(port);
  int result = 0;
  do {
    result = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);  // libFuzzer's alarm clock
  KVPUSH_CHECK(result == 0, "who is fuzzed goes on accepting");
  return {std::move(socket), std::move(text)};
}

bool Speaker::step() {
  const bool has_said = say();
  return hear() || has_said;
}

bool Speaker::say() {
  if (ended_ || has_said_all()) return false;
  const ssize_t count = ::send(socket_.get(), text_.data() + said_, text_.size() - said_, MSG_NOSIGNAL);
  if (count < 0) return false;
  said_ += static_cast<std::size_t>(count);
  return true;
}

bool Speaker::hear() {
  if (over_) return false;
  std::array<char, 4096> bytes;
  const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  over_ = count <= 0;
  if (!over_ && heard_.size() < kHeardBytesMax) heard_.append(bytes.data(), static_cast<std::size_t>(count));
  return true;
}

void Speaker::end() {
  if (!std::exchange(ended_, true)) ::shutdown(socket_.get(), SHUT_WR);
}

Listener::Listener() : socket_(open_socket()) {
  sockaddr_in address = local_address(0);
  socklen_t size = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  const bool is_open = ::bind(socket_.get(), name, size) == 0 && ::listen(socket_.get(), SOMAXCONN) == 0 &&
                       ::getsockname(socket_.get(), name, &size) == 0;
  KVPUSH_CHECK(is_open, "a port of this machine can be listened on");
  ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  port_ = ntohs(address.sin_port);
}

std::optional<File> Listener::accept() {
  File accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (accepted.get() < 0) return std::nullopt;
  return accepted;
}

bool Answerer::step() {
  bool is_active = false;
  while (auto accepted = listener_.accept()) {
    speakers_.emplace_back(std::move(*accepted), answer_);
    is_active = true;
  }
  for (auto speaker = speakers_.begin(); speaker != speakers_.end();) {
    if (speaker->heard().empty() ? speaker->hear() : speaker->step()) is_active = true;
    if (speaker->has_said_all()) speaker->end();
    speaker = speaker->is_over() ? speakers_.erase(speaker) : std::next(speaker);
  }
  return is_active;
}

void converse(Speaker& client, int quiet_turns, const std::function<bool()>& turn) {
  for (int quiet = 0; !client.is_over() && quiet < 2 * quiet_turns; ++quiet) {
    const bool is_active = client.step();
    if (turn() || is_active) quiet = client.has_ended() ? quiet_turns : 0;
    if (quiet == quiet_turns) client.end();
  }
}

std::string_view take_part(std::string_view& input) {
  const std::size_t end = std::min(input.find(kBetweenParts), input.size());
  const std::string_view part = input.substr(0, end);
  input.remove_prefix(std::min(end + kBetweenParts.size(), input.size()));
  return part;
}

}  // namespace kvpush::testing
