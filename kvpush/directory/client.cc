#include "kvpush/directory/client.h"

#include <chrono>
#include <utility>

#include "kvpush/http/client.h"

namespace kvpush {
namespace {

// A name lookup and a handshake on a bad day, and an engine whose process is busy; together well below the protocol's
// session_limit, so that a second attempt fits into it.
constexpr Duration kConnectLimit = std::chrono::seconds(2);
constexpr Duration kAnswerLimit = std::chrono::seconds(4);

constexpr int kStatusOk = 200;

Result<EngineDocument> read(const Result<HttpAnswer>& answer) {
  if (!answer) return std::unexpected(answer.error());
  if (answer->status != kStatusOk) return fail(ErrorCode::kUnavailable, "the directory has no document of its engine");
  return parse_engine(answer->body);
}

}  // namespace

DirectoryClient::DirectoryClient(boost::asio::io_context& io)
    : http_(std::make_unique<HttpClient>(io, HttpClientOptions{.collected_bytes_max = kDocumentBytesMax})) {}

DirectoryClient::~DirectoryClient() = default;

void DirectoryClient::resolve(const Endpoint& directory, Resolved resolved) {
  HttpCall call{.address = {directory.host, directory.port},
                .target = "/kvpush/v1/engine",
                .headers = {},
                .body = {},
                .connect_timeout = kConnectLimit,
                .total_timeout = kAnswerLimit};
  http_->collect(std::move(call),
                 [resolved = std::move(resolved)](Result<HttpAnswer> answer) mutable { resolved(read(answer)); });
}

}  // namespace kvpush
