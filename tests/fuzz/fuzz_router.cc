// A client that sends any bytes to the router, and a prefill and a decode server that answer with any.
// The input has three parts with a line of "%%" between them: what the client says, and what each server answers.
#include <boost/asio/io_context.hpp>
#include <boost/json/parse.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/log.h"
#include "kvpush/router/router.h"
#include "tests/fuzz/socket.h"

namespace kvpush::testing {
namespace {

using namespace std::chrono_literals;

// Turns in which nothing happened before somebody gives up.
constexpr int kQuietTurns = 3;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Whether a status line begins the text: "HTTP/1.1 200 ".
bool begins_with_status(std::string_view text) {
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  if (!text.starts_with(kVersion) || text.size() < kVersion.size() + 4) return false;
  const std::string_view status = text.substr(kVersion.size(), 4);
  return status[0] >= '1' && status[0] <= '9' && is_digit(status[1]) && is_digit(status[2]) && status[3] == ' ';
}

// What the router itself says of an error is JSON, whatever it quotes.
void check_error(std::string_view heard) {
  constexpr std::string_view kBegin = "{\"error\":{\"message\":";
  const std::size_t begin = heard.find(std::string("\r\n\r\n") + std::string(kBegin));
  if (begin == std::string_view::npos || heard.find("HTTP/1.1 ", 1) != std::string_view::npos) return;
  boost::system::error_code error;
  boost::json::parse(heard.substr(begin + 4), error);
  KVPUSH_CHECK(!error, "an error of the router is JSON");
}

// A router with one client at a time.
class Stage {
 public:
  Stage() : router_(open()) {}

  void run(std::string_view input) {
    const std::string asked(take_part(input));
    // Servers that say what the router says cannot be told from it.
    const bool is_told = input.find("\"error\"") == std::string::npos;
    prefill_.set_answer(take_part(input));
    decode_.set_answer(take_part(input));
    {
      Speaker client = Speaker::connect(router_->port(), asked);
      converse(client, kQuietTurns, [&] { return turn(); });
      if (!client.heard().empty()) {
        KVPUSH_CHECK(begins_with_status(client.heard()), "the router answers in HTTP");
        if (is_told) check_error(client.heard());
      }
    }
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (!router_->idle() && std::chrono::steady_clock::now() < limit) turn();
    KVPUSH_CHECK(router_->idle(), "nothing is left of a client that has gone");
    for (Answerer* server : {&prefill_, &decode_}) server->reset();
    io_.poll();
  }

 private:
  std::unique_ptr<Router> open() {
    RouterOptions options{.listen = {"127.0.0.1", 0}};
    options.prefill.push_back({{"127.0.0.1", prefill_.port()}, {"127.0.0.1", 80}});
    options.decode.push_back({"127.0.0.1", decode_.port()});
    auto router = Router::open(io_, std::move(options),
                               {.now = [] { return Instant(1s); }, .entropy = [] { return std::uint64_t{7}; }});
    KVPUSH_CHECK(router.has_value(), "a router can listen");
    return std::move(*router);
  }

  bool turn() {
    bool is_active = io_.poll() > 0;
    for (Answerer* server : {&prefill_, &decode_}) is_active = server->step() || is_active;
    return is_active || io_.run_for(100us) > 0;
  }

  boost::asio::io_context io_{1};
  Answerer prefill_;
  Answerer decode_;
  std::unique_ptr<Router> router_;
};

}  // namespace
}  // namespace kvpush::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static kvpush::testing::Stage stage;
  kvpush::set_log_level(kvpush::LogLevel::kError);
  stage.run({reinterpret_cast<const char*>(data), size});
  return 0;
}
