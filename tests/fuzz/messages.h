#pragma once

#include <cstdint>
#include <optional>

#include "kvpush/base/error.h"
#include "kvpush/layout/block_table.h"
#include "kvpush/layout/layout.h"
#include "kvpush/wire/message.h"
#include "tests/fuzz/choices.h"

namespace kvpush::testing {

// A message of any kind with any contents, plausible or not. Those that decode() would not have made are left to the
// caller: see heard().
Message any_message(Choices& choices);

// What a machine hears when a peer says this: the message after its way over the wire, or nothing if it cannot get
// through.
std::optional<Message> heard(const Message& message);
// A message that a machine of ours says must be one that can be sent.
void check_sendable(const Message& message);

TransferId any_transfer_id(Choices& choices);  // one of few, so that they meet
ErrorCode any_code(Choices& choices);
TokenRange any_tokens(Choices& choices);
BlockTables any_tables(Choices& choices);

// A cache of two layers in 64 blocks of 4 tokens, with heads of 2 in all; every rank of an engine has its share.
RankLayout small_layout(std::uint64_t base, std::uint32_t rank, std::uint32_t rank_count);
// Of the rank whose machine is fuzzed; the only one of its engine.
const RankLayout& own_layout();

}  // namespace kvpush::testing
