#pragma once

#include <set>
#include <string>
#include <string_view>

namespace kvpush {

// The UCX transports that carry an endpoint's data, by UCX's names ("tcp", "rc_mlx5"), from what ucp_ep_print_info()
// writes: UCX 1.13 has no other way to tell. Empty if nothing is recognised.
std::set<std::string> wires_in(std::string_view endpoint_info);

// Whether closing our endpoint on such a wire stops everything the peer has sent over it. docs/transports.md has why.
bool close_fences(std::string_view wire);
// Whether the target's software moves the bytes.
bool target_moves(std::string_view wire);

}  // namespace kvpush
