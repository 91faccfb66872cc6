// Writes the corpus: fuzz_seeds tests/fuzz/corpus. Valid samples, and as found_... what fuzzers found, which is fixed.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/base/check.h"
#include "kvpush/wire/codec.h"
#include "tests/fuzz/messages.h"

namespace kvpush::testing {
namespace {

constexpr std::size_t kLengthBytes = 4;

std::string frame(const Message& message) {
  std::vector<std::byte> bytes;
  KVPUSH_CHECK(encode(message, bytes).has_value(), "a sample can be sent");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

using Step = std::vector<std::uint8_t>;

std::string steps(std::initializer_list<Step> each) {
  std::string bytes;
  for (const Step& step : each) bytes.append(step.begin(), step.end());
  return bytes;
}

// Of each kind one.
std::vector<Message> messages() {
  const RankLayout& layout = own_layout();
  const std::vector<TransportOffer> offers = {{"fencing", {std::byte{1}}}, {"plain", {}}};
  return {Hello{kProtocolVersion, {"C", {7}, 0, 1}, {1}, layout, offers},
          Welcome{kProtocolVersion, {"P", {1}, 0, 1}, layout, offers},
          Assign{{{0, 0, 0, 0, 2}, {1, 1, 0, 0, 2}}, "fencing", {std::byte{2}}},
          Assigned{},
          Refused{ErrorCode::kFull, "too many"},
          Register{{1}, "transfer", {0, 9}, {BlockTable{{{{3}, 2}, {kAbsentBlock, 1}}}}},
          Writing{{1}},
          Delivered{{1}, 64, {}},
          Failed{{1}, ErrorCode::kAborted, false},
          Quiet{{1}},
          Revoke{{1}},
          Revoked{{1}},
          Unwanted{"transfer"},
          Done{{1}},
          Goodbye{},
          Renew{Instant(std::chrono::seconds(1))},
          Renewed{Instant(std::chrono::seconds(1))},
          Expect{"transfer"},
          Admitted{"transfer"}};
}

constexpr const char* kEngine = R"({
"engine_id": "P", "version": "0.1.0", "protocol": 2, "rank_count": 1, "incarnation": "0000000000000001",
"ranks": [{"rank": 0, "incarnation": "0000000000000001",
  "control": {"host": "127.0.0.1", "port": 1}, "http": {"host": "127.0.0.1", "port": 2},
  "planes": [{"component": "key", "group": 0, "dtype": "bfloat16", "element_bytes": 2, "block_tokens": 16,
    "block_count": 64, "heads": {"first": 0, "count": 2, "total": 2}, "inner_bytes": 128, "layers": ["layer.0"]}]}]}
)";
constexpr const char* kRank = R"({
"engine_id": "P", "version": "0.1.0", "protocol": 2, "rank_count": 1, "rank": 0, "incarnation": "00000000000000ff",
"control": {"host": "127.0.0.1", "port": 1}, "http": {"host": "::1", "port": 2}, "planes": []}
)";
constexpr const char* kMetrics = "# HELP kvpush_x Things.\n# TYPE kvpush_x gauge\nkvpush_x 1\nkvpush_y{a=\"b\"} 2\n";
constexpr const char* kChat = R"({"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 2, "stream": true,
"stream_options": {"include_usage": true}, "max_completion_tokens": 9, "kv_transfer_params": null})";
constexpr const char* kCompletion =
    R"({"model": "m", "prompt": [[1, 2], [3]], "max_tokens": 9, "temperature": 0.5, "best_of": 1, "echo": false})";

std::string post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: r\r\nX-Request-Id: q\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

std::string get(std::string_view path) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n";
}

std::string ok(std::string_view body) {
  return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body);
}

std::string parts(std::initializer_list<std::string> each) {
  std::string all;
  for (const std::string& part : each) all += (&part == each.begin() ? "" : "\n%%\n") + part;
  return all;
}

constexpr const char* kStream =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    "9\r\ndata: 1\n\n\r\nf\r\ndata: [DONE]\n\n \r\n0\r\n\r\n";

// Job: writes files into one folder for each target.
// Thread: value type.
class Corpus {
 public:
  explicit Corpus(std::filesystem::path root) : root_(std::move(root)) {}

  void add(const char* target, std::string_view name, std::string_view bytes) const {
    std::filesystem::create_directories(root_ / target);
    std::ofstream(root_ / target / name, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }

  void add_wire() const {
    for (const Message& message : messages()) {
      const std::string bytes = frame(message);
      add("wire", message_name(message), bytes.substr(kLengthBytes));
      add("control", "from_dialler_" + std::string(message_name(message)), '\0' + bytes);
    }
    add("control", "from_dialled_two", '\1' + frame(Assigned{}) + frame(Goodbye{}));
    add("control", "huge_length", std::string("\0\xff\xff\xff\xff", 5));
  }

  void add_machines() const {
    const Step accept = {0};
    const Step hello = {2, 0, 0, 0, 1, 0};
    const Step assign = {3, 0, 0, 2};
    const Step renewed = {7, 0, 0};
    const Step send = {8, 0, 8, 0, 0, 0, 0};
    const Step registers = {6, 0, 0, 0, 0, 0, 8, 1, 1, 0, 0, 0, 7, 0};
    const Step written = {12, 0, 0};
    const Step second = {10, 10};
    add("producer", "registered_first", steps({accept, hello, assign, renewed, registers, send, written, second}));
    add("producer", "sent_first", steps({accept, hello, assign, renewed, send, registers, written, second}));
    const Step expect = {4, 17, 0, 0, 0};
    const Step admit = {9, 2, 0, 0};
    add("producer", "expected",
        steps({accept, hello, assign, expect, admit, renewed, send, registers, written, second}));
    add("producer", "no_consumer", steps({send, {10, 16}}));
    const Step least_stamp = {4, 16, 0xff, 0, 0, 0, 0, 0, 0, 0, 0x80, 0};
    add("producer", "found_renewed_with_the_least_stamp", steps({accept, hello, assign, send, registers, least_stamp}));

    const Step receive = {0, 0, 0, 0, 8, 0, 0, 0, 0, 0};
    const Step resolved = {4, 0, 0, 0, 0, 0};
    const Step connected = {5, 0};
    const Step welcome = {6, 0, 0, 0, 0};
    const Step assigned = {7, 0, 0};
    const Step delivered = {10, 0, 0, 7};
    const Step await = {3, 1, 0, 0, 0};
    const Step admitted = {8, 0, 18, 0, 0};
    add("consumer", "awaited", steps({await, resolved, connected, welcome, assigned, admitted, receive, delivered}));
    add("consumer", "delivered", steps({receive, resolved, connected, welcome, assigned, delivered}));
    add("consumer", "abandoned", steps({receive, resolved, connected, welcome, assigned, {2, 0}, {10, 0, 0, 4}}));
    const Step empty_span = {0, 1, 0, 8, 0, 0, 7, 1, 1, 7, 0, 0, 0, 0};
    add("consumer", "found_table_that_cannot_be_sent",
        steps({receive, resolved, connected, welcome, assigned, empty_span}));
    add("consumer", "session_lost", steps({receive, resolved, connected, welcome, assigned, {14, 0, 0}, {12, 8}}));
  }

  void add_texts() const {
    add("document", "engine", kEngine);
    add("document", "rank", kRank);
    add("document", "metrics", kMetrics);
    add("document", "transfers", R"({"live": [], "ended": [{"transfer_id": "t"}]})");
    add("legs", "chat", kChat);
    add("legs", "completion", kCompletion);
    add("legs", "found_number_that_changes",
        R"({"model": "m", "prompt": "x", "seed": 100000100000000000000000000000000000})");
    add("legs", "found_number_that_no_double_is", R"({"model": "m", "prompt": "x", "y": [{"z": -1e400}]})");
    add("directory", "engine", parts({get("/kvpush/v1/engine"), ok(kEngine)}));
    add("directory", "transfers", parts({get("/kvpush/v1/transfers?a=b"), ok(R"({"live": []})")}));
    add("directory", "metrics", parts({get("/metrics"), ok(kMetrics)}));
    add("directory", "health_twice", parts({"GET /health HTTP/1.1\r\n\r\n" + get("/health"), "garbage"}));
  }

  void add_router() const {
    const std::string prefilled = ok(R"({"choices": []})");
    add("router", "chat", parts({post("/v1/chat/completions", kChat), prefilled, kStream}));
    add("router", "completion", parts({post("/v1/completions", kCompletion), prefilled, ok(R"({"text": "y"})")}));
    add("router", "prefill_fails",
        parts({post("/v1/completions", kCompletion), "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", kStream}));
    add("router", "decode_refuses",
        parts({post("/v1/completions", kCompletion), prefilled, "HTTP/1.0 400 No\r\n\r\nbad prompt"}));
    const auto found = [&](std::string_view name, std::string_view decoded) {
      add("router", "found_" + std::string(name),
          parts({post("/v1/completions", kCompletion), prefilled, std::string(decoded)}));
    };
    found("error_that_is_no_utf8", "HTTP/1.1 500 No\r\n\r\nno \xff");
    found("status_that_is_none", "HTTP/1.1 007 X\r\nContent-Length: 0\r\n\r\n");
    found("switching_protocols", "HTTP/1.1 101 X\r\n\r\n");
    found("interim_answer", "HTTP/1.1 103 X\r\n\r\n" + ok(R"({"text": "y"})"));
    add("router", "models", parts({get("/v1/models"), "", ok(R"({"data": []})")}));
    add("router", "health", parts({get("/health"), ok("{}"), ok("{}")}));
    add("router", "transfers", get("/kvpush/v1/transfers"));
    add("router", "pipelined",
        parts({"GET /metrics HTTP/1.1\r\n\r\nHEAD /health HTTP/1.1\r\n\r\nPOST /v1/completions HTTP/1.0\r\n"
               "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
               prefilled, kStream}));
  }

 private:
  const std::filesystem::path root_;
};

}  // namespace
}  // namespace kvpush::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "fuzz_seeds FOLDER: writes samples into FOLDER/<target>/\n");
    return 2;
  }
  const kvpush::testing::Corpus corpus(argv[1]);
  corpus.add_wire();
  corpus.add_machines();
  corpus.add_texts();
  corpus.add_router();
  return 0;
}
