// kvpush-router: one OpenAI address in front of prefill and decode servers. See docs/router.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "apps/serving.h"
#include "kvpush/base/clock.h"
#include "kvpush/base/random.h"
#include "kvpush/router/router.h"

namespace {

struct Flags {
  std::string listen = "127.0.0.1:8000";
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::size_t requests_max = kvpush::RouterOptions{}.requests_max;
};

kvpush::Result<kvpush::Endpoint> parse_server(std::string_view text) {
  auto endpoint = kvpush::parse_endpoint(text);
  if (endpoint && endpoint->port == 0) {
    return kvpush::fail(kvpush::ErrorCode::kBadConfig, "a server's port is a number from 1 to 65535");
  }
  return endpoint;
}

// "HOST:PORT=DIRECTORY_HOST:PORT", or "HOST:PORT=PORT" when both are on one host.
kvpush::Result<kvpush::PrefillServer> parse_prefill(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    return kvpush::fail(kvpush::ErrorCode::kBadConfig, "a prefill server is written HOST:PORT=[DIRECTORY_HOST:]PORT");
  }
  const auto http = parse_server(text.substr(0, equals));
  if (!http) return std::unexpected(http.error());
  const std::string directory_text = text.substr(equals + 1);
  const bool port_alone = directory_text.find(':') == std::string::npos;
  auto directory = parse_server(port_alone ? "same-host:" + directory_text : directory_text);
  if (!directory) return std::unexpected(directory.error());
  if (port_alone) directory->host = http->host;
  return kvpush::PrefillServer{*http, *directory};
}

int refuse(std::string_view flag, std::string_view value, const char* what) {
  fmt::print(stderr, "kvpush-router: {} {}: {}\n", flag, value, what);
  return 2;
}

int run(const kvpush::RouterOptions& options) {
  kvpush::raise_descriptor_limit();
  boost::asio::io_context io(1);
  auto router = kvpush::Router::open(io, options, {kvpush::read_clock, kvpush::read_entropy});
  if (!router) return refuse("--listen", to_string(options.listen), router.error().what);

  const std::string address =
      fmt::format("listening on http://{}\n", to_string(kvpush::Endpoint{options.listen.host, (*router)->port()}));
  kvpush::serve(io, address, [&] { (*router)->drain(); }, [&] { return (*router)->idle(); });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("One OpenAI address in front of vLLM prefill and decode servers with KvPushConnector.", "kvpush-router");
  app.add_option("--listen", flags.listen, "HOST:PORT to serve on; port 0 lets the kernel choose")
      ->capture_default_str();
  app.add_option("--prefill", flags.prefill,
                 "HOST:PORT=[DIRECTORY_HOST:]PORT of a prefill server and its engine's kvpush directory; repeatable")
      ->required();
  app.add_option("--decode", flags.decode, "HOST:PORT of a decode server; repeatable")->required();
  app.add_option("--requests-max", flags.requests_max, "requests in flight; one more is answered 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  if (const auto status = kvpush::parse_flags(app, argc, argv, "kvpush-router")) return *status;

  kvpush::RouterOptions options;
  options.requests_max = flags.requests_max;
  const auto listen = kvpush::parse_endpoint(flags.listen);
  if (!listen) return refuse("--listen", flags.listen, listen.error().what);
  options.listen = *listen;
  for (const std::string& text : flags.prefill) {
    const auto server = parse_prefill(text);
    if (!server) return refuse("--prefill", text, server.error().what);
    options.prefill.push_back(*server);
  }
  for (const std::string& text : flags.decode) {
    const auto server = parse_server(text);
    if (!server) return refuse("--decode", text, server.error().what);
    options.decode.push_back(*server);
  }
  return run(options);
}
