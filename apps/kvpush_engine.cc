// kvpush-engine: a stand-in for an inference engine, for routers, tests and capacity work. See docs/standin.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "apps/flags.h"
#include "apps/serving.h"
#include "kvpush/base/clock.h"
#include "kvpush/base/random.h"
#include "kvpush/standin/engine.h"
#include "kvpush/transport/choice.h"

namespace {

using namespace std::chrono_literals;

// What still runs after the time for draining has this long before it is failed.
constexpr std::chrono::seconds kStopMax{2};
// What is kept back of a lease for the writes that were posted last: as much of it as the defaults keep back.
constexpr int kLeaseParts = 10;
static_assert(kvpush::ProtocolOptions{}.lease == kLeaseParts * kvpush::ProtocolOptions{}.lease_margin);

struct Flags {
  std::string role = "both";
  std::string listen = "127.0.0.1:8000";
  std::string directory = "127.0.0.1:0";
  std::string engine_id = "standin";
  std::string model = "standin";
  std::string transport = "auto";
  std::string secret_file;
  bool allow_unauthenticated = false;
  kvpush::KvShape kv;
  kvpush::SchedulerOptions scheduler;
  bool is_caching_off = false;
  std::string reserve = "auto";
  double step_ms = 0;
  double token_us = 0;
  int lease_ms = 5000;
  int hold_ms = 30000;
  int drain_ms = kvpush::kDrainMax.count();
};

void add_flags(CLI::App& app, Flags& flags) {
  app.add_option("--role", flags.role, "which legs of transfers it takes")
      ->check(CLI::IsMember({"prefill", "decode", "both"}))
      ->capture_default_str();
  app.add_option("--listen", flags.listen, "HOST:PORT of the OpenAI address; port 0 lets the kernel choose")
      ->capture_default_str();
  app.add_option("--directory", flags.directory, "HOST:PORT of the directory; HOST is what peers are told")
      ->capture_default_str();
  app.add_option("--engine-id", flags.engine_id, "its name in directory and metrics")->capture_default_str();
  app.add_option("--model", flags.model, "the model's name in answers")->capture_default_str();
  app.add_option("--transport", flags.transport, "auto, cma, nixl, ucx or loopback")->capture_default_str();
  app.add_option("--secret-file", flags.secret_file, "the secret that peers must know too; docs/authentication.md");
  app.add_flag("--allow-unauthenticated", flags.allow_unauthenticated, "listen beyond loopback without a secret");
  app.add_option("--blocks", flags.kv.block_count, "blocks of the KV cache")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--block-tokens", flags.kv.block_tokens, "tokens in a block")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--layers", flags.kv.layers, "layers of the model")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--heads", flags.kv.heads, "heads of a layer")->check(CLI::Range(1, 128))->capture_default_str();
  app.add_option("--row-bytes", flags.kv.row_bytes, "bytes of K or V of one token and head; a multiple of 8")
      ->check(CLI::Range(8, 4096))
      ->capture_default_str();
  app.add_option(
         "--reserve", flags.reserve,
         "when a request whose KV comes from elsewhere takes blocks: early: at once; admitted: when its prefill "
         "begins; auto: early while a tenth of the blocks stays free")
      ->check(CLI::IsMember({"auto", "early", "admitted"}))
      ->capture_default_str();
  app.add_flag("--no-prefix-caching", flags.is_caching_off, "compute or receive every prompt in full");
  app.add_option("--step-ms", flags.step_ms, "milliseconds that a step takes")
      ->check(CLI::Range(0.0, 60000.0))
      ->capture_default_str();
  app.add_option("--token-us", flags.token_us, "microseconds more for each token that a step computes")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--step-tokens", flags.scheduler.tokens_per_step_max, "tokens that a step computes at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--running", flags.scheduler.running_max, "requests that are part of a step at most")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--lease-ms", flags.lease_ms, "milliseconds of silence after which a peer counts as lost")
      ->check(CLI::Range(100, 600000))
      ->capture_default_str();
  app.add_option("--hold-ms", flags.hold_ms, "milliseconds for which a computed prompt waits for somebody to fetch it")
      ->check(CLI::Range(100, 600000))
      ->capture_default_str();
  app.add_option("--drain-ms", flags.drain_ms,
                 "milliseconds that answers in flight and KV that is held have to end after SIGTERM")
      ->check(CLI::Range(0, 600000))
      ->capture_default_str();
}

int refuse(std::string_view flag, std::string_view value, const kvpush::Error& error) {
  fmt::print(stderr, "kvpush-engine: {} {}: {}\n", flag, value, error.what);
  return 2;
}

int run(const kvpush::StandinOptions& options, std::chrono::milliseconds drain_max) {
  kvpush::raise_descriptor_limit();
  boost::asio::io_context io(1);
  auto engine = kvpush::StandinEngine::open(io, options, {kvpush::read_clock, kvpush::read_entropy});
  if (!engine) {
    fmt::print(stderr, "kvpush-engine: {} ({})\n", engine.error().what, error_name(engine.error().code));
    return 2;
  }
  const std::string addresses =
      fmt::format("directory on http://{}\nlistening on http://{}\n",
                  to_string(kvpush::Endpoint{options.directory.host, (*engine)->directory_port()}),
                  to_string(kvpush::Endpoint{options.listen.host, (*engine)->port()}));
  kvpush::serve(io, addresses, [&] { (*engine)->drain(); }, [&] { return (*engine)->idle(); }, drain_max);
  return (*engine)->stop(kStopMax) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("A stand-in for an inference engine: real calls, blocks, steps and transfers, invented tokens.",
               "kvpush-engine");
  add_flags(app, flags);
  if (const auto status = kvpush::parse_flags(app, argc, argv, "kvpush-engine")) return *status;

  const std::map<std::string, kvpush::EngineRole> roles{{"prefill", kvpush::EngineRole::kPrefill},
                                                        {"decode", kvpush::EngineRole::kDecode},
                                                        {"both", kvpush::EngineRole::kBoth}};
  kvpush::StandinOptions options{.engine_id = flags.engine_id,
                                 .model = flags.model,
                                 .role = roles.at(flags.role),
                                 .secret_file = flags.secret_file,
                                 .allow_unauthenticated = flags.allow_unauthenticated,
                                 .kv = flags.kv,
                                 .scheduler = flags.scheduler};
  options.scheduler.caches_prefixes = !flags.is_caching_off;
  const std::map<std::string, kvpush::Reserve> reserves{
      {"auto", kvpush::Reserve::kAuto}, {"early", kvpush::Reserve::kEarly}, {"admitted", kvpush::Reserve::kAdmitted}};
  options.scheduler.reserve = reserves.at(flags.reserve);
  options.step_time = std::chrono::duration_cast<kvpush::Duration>(flags.step_ms * 1ms);
  options.protocol.lease = std::chrono::milliseconds(flags.lease_ms);
  options.protocol.hold_timeout = std::chrono::milliseconds(flags.hold_ms);
  options.protocol.lease_margin = options.protocol.lease / kLeaseParts;
  options.token_time = std::chrono::duration_cast<kvpush::Duration>(flags.token_us * 1us);
  const auto listen = kvpush::parse_endpoint(flags.listen);
  if (!listen) return refuse("--listen", flags.listen, listen.error());
  options.listen = *listen;
  const auto directory = kvpush::parse_endpoint(flags.directory);
  if (!directory) return refuse("--directory", flags.directory, directory.error());
  options.directory = *directory;
  auto transports = kvpush::transport_factories(flags.transport);
  if (!transports) return refuse("--transport", flags.transport, transports.error());
  options.transports = *std::move(transports);
  if (options.kv.row_bytes % 8 != 0) {
    return refuse("--row-bytes", fmt::to_string(options.kv.row_bytes),
                  {kvpush::ErrorCode::kBadConfig, "a row is a multiple of 8 bytes"});
  }
  if (options.kv.size_bytes() > kvpush::kKvBytesMax) {
    return refuse("--blocks", fmt::to_string(options.kv.block_count),
                  {kvpush::ErrorCode::kBadConfig, "a KV cache of this shape is larger than 1 TiB"});
  }
  return run(options, std::chrono::milliseconds(flags.drain_ms));
}
