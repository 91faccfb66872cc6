// A client that sends any bytes to an engine's directory, a rank that answers it with any, and the same answer as that
// of a directory that a consumer asks. The input has two parts with a line of "%%" between them.
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/log.h"
#include "kvpush/directory/client.h"
#include "kvpush/directory/engine.h"
#include "kvpush/directory/server.h"
#include "tests/fuzz/socket.h"

namespace kvpush::testing {
namespace {

using namespace std::chrono_literals;

// Turns of 100 us in which nothing happened before the client gives up: the directory has a thread of its own, which
// may just wait for a core.
constexpr int kQuietTurns = 10;

// A directory with one client at a time, and a client of directories.
class Stage {
 public:
  Stage() : server_(open()) {}
  ~Stage() { server_->stop(); }

  void run(std::string_view input) {
    const std::string asked(take_part(input));
    answerer_.set_answer(input);
    {
      Speaker client = Speaker::connect(server_->port(), asked);
      converse(client, kQuietTurns, [&] {
        const bool is_active = answerer_.step();
        if (!is_active) std::this_thread::sleep_for(100us);
        return is_active;
      });
      KVPUSH_CHECK(client.heard().empty() || client.heard().starts_with("HTTP/1.1 "), "a directory answers in HTTP");
    }
    answerer_.reset();
    ask();
    answerer_.reset();
    io_.poll();
  }

 private:
  std::unique_ptr<DirectoryServer> open() {
    auto server = DirectoryServer::open({"127.0.0.1", 0});
    KVPUSH_CHECK(server.has_value(), "a directory can listen");
    const RankDocument rank{.engine_id = "P",
                            .incarnation = {1},
                            .version = "1",
                            .protocol = 1,
                            .control = {"127.0.0.1", 1},
                            .http = {"127.0.0.1", answerer_.port()},
                            .planes = {}};
    KVPUSH_CHECK((*server)->set_ranks({to_json(rank)}).has_value(), "one rank is an engine");
    return std::move(*server);
  }

  void ask() {
    bool is_answered = false;
    client_.resolve({"127.0.0.1", answerer_.port()}, [&](const Result<EngineDocument>& engine) {
      KVPUSH_CHECK(!is_answered, "an answer comes once");
      KVPUSH_CHECK(!engine || !engine->ranks.empty(), "an engine has ranks");
      is_answered = true;
    });
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (!is_answered && std::chrono::steady_clock::now() < limit) {
      answerer_.step();
      io_.run_for(100us);
      io_.restart();
    }
    KVPUSH_CHECK(is_answered, "an answer comes");
  }

  boost::asio::io_context io_{1};
  Answerer answerer_;
  DirectoryClient client_{io_};
  std::unique_ptr<DirectoryServer> server_;
};

}  // namespace
}  // namespace kvpush::testing

// Shows E3.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static kvpush::testing::Stage stage;
  kvpush::set_log_level(kvpush::LogLevel::kError);
  stage.run({reinterpret_cast<const char*>(data), size});
  return 0;
}
