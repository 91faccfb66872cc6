// Every bound of the core, each with its reason. Full is an answer (kFull), never growth.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvpush {

// A 128k-token prompt in blocks of 16, every block separate, two groups: 2 x 8,192 spans of 8 bytes is 128 KiB; a
// layout of 128 layers x 2 planes is 30 KiB. Sixteen times the larger, and small enough to buffer for each session.
inline constexpr std::size_t kFrameBytesMax = 2u << 20;
// Chosen by routers; vLLM's own request ids are below 100 bytes.
inline constexpr std::size_t kTransferIdBytesMax = 128;
inline constexpr std::size_t kEngineIdBytesMax = 128;
inline constexpr std::size_t kLayerNameBytesMax = 256;
// "float8_e4m3fnuz" is among the longest; engines add how a block packs it.
inline constexpr std::size_t kDtypeBytesMax = 32;
// 256 layers with two components, twice over.
inline constexpr std::size_t kPlanesMax = 1024;
inline constexpr std::size_t kGroupsMax = 16;
inline constexpr std::size_t kBlocksPerTableMax = 1u << 17;
// Producer ranks of one engine that a consumer rank opens sessions to.
inline constexpr std::size_t kRanksMax = 64;
// Opaque bytes with which a transport's peer is reached (UCX worker address plus packed keys of a few regions).
inline constexpr std::size_t kTransportAddressBytesMax = 16u << 10;
// Requests that one engine can have in flight; vLLM's max_num_seqs is at most about 1,024.
inline constexpr std::size_t kRequestsMax = 8192;
// Registrations waiting for their request, over all consumers.
inline constexpr std::size_t kRegistrationsMax = 8192;
// Spans of blocks in the tables of registrations that wait for their request, over all consumers: 32 MiB. A prompt of
// 131,072 tokens has 8,192 of them at most, in blocks of 16 of which none adjoins another.
inline constexpr std::size_t kSpansWaitingMax = 1u << 22;
// Outcomes kept for one consumer rank. Done names all up to a number, so that one registration whose prefill never
// comes keeps those of everything after it: 200 registrations a second in the five minutes of match_timeout.
inline constexpr std::size_t kOutcomesMax = 65536;
inline constexpr std::size_t kSessionsMax = 1024;
// Sessions in which one request is registered. A link that is lost more often during one prompt is broken, and the
// engine's own policy (fail, recompute) serves the user better.
inline constexpr std::uint32_t kSessionsOfRequestMax = 3;
// Commands an engine can post before the agent has taken any: one step of kRequestsMax requests.
inline constexpr std::size_t kMailboxCommandsMax = 16384;
// Descriptors posted as one batch: large enough to amortise a completion, small enough for one turn.
inline constexpr std::size_t kBatchDescriptorsMax = 512;
// Bytes posted as one batch: about a millisecond of a 100 Gbit/s link, so one transfer cannot hold up another.
inline constexpr std::uint64_t kBatchBytesMax = 8u << 20;
// Batches in flight for each peer: keeps the link busy while the oldest completes.
inline constexpr std::size_t kBatchesInFlightMax = 8;
// Messages handled, batches posted and transport completions taken in one turn of the agent.
inline constexpr std::size_t kTurnWorkMax = 64;

}  // namespace kvpush
