// From a client's request to what the prefill and the decode server are asked. Pure.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/ids.h"

namespace kvpush {

enum class Api : std::uint8_t { kCompletions, kChat };

// Why a request is refused, and which field is wrong (empty: the body as a whole).
struct BadRequest {
  std::string message;
  std::string param;
};

// Nesting of a request's JSON. Schemas of tools and answers nest; tens of levels are many.
inline constexpr std::size_t kJsonDepthMax = 200;

// The bodies of the two requests that one request of a client becomes.
//
// The prefill leg computes the prompt, samples one token that nobody reads, and keeps the KV for the transfer; the
// decode leg is the client's request, told where its prompt's KV comes from:
//
//   prefill  max_tokens 1, n 1, no stream     kv_transfer_params {do_remote_decode, transfer_id}
//   decode   as the client wrote it           kv_transfer_params {do_remote_prefill, transfer_id, remote_host/port}
struct Legs {
  std::string prefill;
  std::string decode;
};

// `directory` is the address at which the prefill engine says who it is. What no leg's server could tell the client is
// refused here: no JSON object, no prompt, fields that decide what is transferred. The rest is the servers' to judge.
std::expected<Legs, BadRequest> make_legs(Api api, std::string_view body, const TransferId& transfer,
                                          const Endpoint& directory);

// 128 bits as 32 hexadecimal digits.
TransferId make_transfer_id(std::uint64_t high, std::uint64_t low);

}  // namespace kvpush
