// A peer that sends any bytes to the control plane, to the port it listens on or from one it dialled.
#include <array>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/control/control.h"
#include "tests/fuzz/messages.h"
#include "tests/fuzz/socket.h"

namespace kvpush::testing {
namespace {

using namespace std::chrono_literals;

// Turns in which nothing happened before the peer ends, and again before it is closed.
constexpr int kQuietTurns = 3;

// A control plane with one connection at a time.
class Stage {
 public:
  Stage() : control_(open()) {}

  void run(bool dials, std::string text) {
    counts_ = {};
    std::optional<Speaker> peer = dials ? answer_dial(std::move(text)) : Speaker::connect(control_->port(), text);
    converse(*peer, kQuietTurns, [&] { return io_.run_for(100us) > 0; });
    peer.reset();
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (counts_.closed == 0 && std::chrono::steady_clock::now() < limit) io_.run_one_for(1ms);
    KVPUSH_CHECK(counts_.opened == 1 && counts_.closed == 1, "a connection begins once and ends once");
  }

 private:
  struct Counts {
    int opened = 0;
    int closed = 0;
  };

  std::unique_ptr<Control> open() {
    const auto opened = [this](ConnectionId) { ++counts_.opened; };
    const auto ended = [this](ConnectionId, const Error& error) {
      KVPUSH_CHECK(is_of_a_peer(error.code), "the peer is why it ended");
      ++counts_.closed;
    };
    auto control = Control::open(io_, {},
                                 {.accepted = opened,
                                  .connected = opened,
                                  .received =
                                      [this](ConnectionId id, const Message& message) {
                                        KVPUSH_CHECK(counts_.closed == 0, "nothing is told after the end");
                                        check_sendable(message);
                                        control_->send(id, message);
                                      },
                                  .closed = ended,
                                  .refused = ended});
    KVPUSH_CHECK(control.has_value(), "a control plane can listen");
    return std::move(*control);
  }

  static bool is_of_a_peer(ErrorCode code) {
    return code == ErrorCode::kBadMessage || code == ErrorCode::kPeerLost || code == ErrorCode::kFull ||
           code == ErrorCode::kUnauthenticated;
  }

  Speaker answer_dial(std::string text) {
    control_->connect({"127.0.0.1", listener_.port()});
    while (true) {
      io_.run_for(100us);
      if (auto accepted = listener_.accept()) return {std::move(*accepted), std::move(text)};
    }
  }

  boost::asio::io_context io_{1};
  Listener listener_;
  Counts counts_;
  std::unique_ptr<Control> control_;
};

}  // namespace
}  // namespace kvpush::testing

// The first byte says who dials. Shows E3.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static kvpush::testing::Stage stage;
  if (size == 0) return 0;
  stage.run(data[0] % 2 == 1, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
