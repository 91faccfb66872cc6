#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kvpush/control/authentication.h"

namespace kvpush {
namespace {

std::shared_ptr<const Secret> secret() {
  const std::string text(kSecretBytesMin, 's');
  return Secret::make(std::as_bytes(std::span(text)));
}

// What one side adds to a frame of so many bytes; the other side pays the same.
void mac_of_a_frame(benchmark::State& state) {
  const auto known = secret();
  FrameMac mac(known->hmac());
  const std::vector<std::byte> length(4);
  const std::vector<std::byte> body(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(mac.next(length, body));
  state.SetBytesProcessed(static_cast<std::int64_t>(body.size()) * static_cast<std::int64_t>(state.iterations()));
}
BENCHMARK(mac_of_a_frame)->Arg(64)->Arg(1 << 10)->Arg(1 << 20);

// Both sides of a handshake together, with the keys that follow from it.
void handshake(benchmark::State& state) {
  const auto known = secret();
  for (auto _ : state) {
    Handshake connector(known, Side::kConnector, Nonce{std::byte{1}});
    Handshake acceptor(known, Side::kAcceptor, Nonce{std::byte{2}});
    std::vector<std::byte> said = connector.greeting();
    for (Handshake* next = &acceptor; !said.empty(); next = next == &acceptor ? &connector : &acceptor) {
      std::vector<std::byte> answer;
      for (std::span<const std::byte> rest = said; !rest.empty();) {
        const auto part = rest.first(next->wanted_bytes());
        rest = rest.subspan(part.size());
        if (!next->on(part, answer)) return state.SkipWithError("a handshake failed");
      }
      said = std::move(answer);
    }
    benchmark::DoNotOptimize(connector.sending());
    benchmark::DoNotOptimize(connector.receiving());
    benchmark::DoNotOptimize(acceptor.sending());
    benchmark::DoNotOptimize(acceptor.receiving());
  }
}
BENCHMARK(handshake);

}  // namespace
}  // namespace kvpush
