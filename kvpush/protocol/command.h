// What an engine asks of its agent, and what it hears back. One Receive or Send ends with exactly one event.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/layout/block_table.h"
#include "kvpush/wire/message.h"

namespace kvpush {

// Consumer: the KV of `tokens` of this request shall come from the engine whose directory is `producer`. The agent may
// have them written into the blocks from now until the request's ReceiveEnded; until then they are not the engine's.
struct Receive {
  RequestId request;
  TransferId transfer_id;
  Endpoint producer;
  TokenRange tokens;
  BlockTables tables;
};

// Consumer: the request is no longer wanted. Its ReceiveEnded follows as soon as nothing can land any more. Unknown
// and ended requests are ignored.
struct Abandon {
  RequestId request;
};

// Consumer: nothing is needed of a transfer (all but its last token is here, or it was aborted before Receive).
struct Decline {
  TransferId transfer_id;
  Endpoint producer;
};

// Consumer: a request for the transfer is queued here; a Receive or Decline of it will follow. The producer keeps its
// KV until then. Ends with exactly one AwaitEnded.
struct Await {
  TransferId transfer_id;
  Endpoint producer;
};

// Producer: the local request of this transfer has its blocks and is about to be computed; Send or Withdraw follows.
struct Admit {
  TransferId transfer_id;
};

// Producer: the KV of tokens [0, token_count) of this request is complete in these blocks. They stay unchanged until
// the request's SendEnded.
struct Send {
  RequestId request;
  TransferId transfer_id;
  std::uint32_t token_count = 0;
  BlockTables tables;
};

// Producer: stop sending. SendEnded follows as soon as no posted write reads the blocks. Unknown and ended requests are
// ignored.
struct Cancel {
  RequestId request;
};

// Producer: the local request of this transfer ended without complete KV; whoever registered for it hears kAborted.
struct Withdraw {
  TransferId transfer_id;
};

// Whether messages can carry it: not empty, at most kTransferIdBytesMax bytes.
bool is_transfer_id(const TransferId& id);

using Command = std::variant<Receive, Abandon, Decline, Await, Admit, Send, Cancel, Withdraw>;

// When the steps of a transfer happened on this machine's clock; unset where a step did not happen.
struct ReceiveTimes {
  Instant received{};  // the engine's Receive was taken
  std::optional<Instant> registered{};
  std::optional<Instant> ended{};
  SendTimes producer{};  // of the last producer rank that delivered, before its Delivered
};
struct SendingTimes {
  Instant offered{};  // the engine's Send was taken
  std::optional<Instant> matched{};
  std::optional<Instant> first_post{};
  std::optional<Instant> last_post{};
  std::optional<Instant> completed{};
};

// Without an error every byte asked for is in the blocks. Either way the blocks are the engine's again, and nothing
// from a peer can land in them.
struct ReceiveEnded {
  RequestId request;
  TransferId transfer_id;
  std::optional<ErrorCode> error{};
  std::uint64_t bytes = 0;
  std::uint32_t tokens = 0;
  Endpoint producer;
  ReceiveTimes times;
};

// Without an error every consumer rank has its part or declined it. Either way no write reads the blocks any more.
struct SendEnded {
  RequestId request;
  TransferId transfer_id;
  std::optional<ErrorCode> error{};
  std::uint64_t bytes = 0;
  std::uint32_t tokens = 0;
  std::string consumer;  // engine id of the one that asked last; empty if nobody did
  SendingTimes times;
};

// The awaited transfer's prefill is about to run, so a destination is worth reserving; or there is nothing to wait for
// any more: it has been computed, its producer refuses or was lost, the request was received or declined meanwhile, or
// match_timeout is over.
struct AwaitEnded {
  TransferId transfer_id;
  Endpoint producer;
};

using EngineEvent = std::variant<ReceiveEnded, SendEnded, AwaitEnded>;

}  // namespace kvpush
