// What every transport between processes does when one of them dies, or stops and goes on.
#include <gtest/gtest.h>

#include <algorithm>

#include "kvpush/base/limits.h"
#include "kvpush/transport/transport.h"
#include "tests/contract/backends.h"
#include "tests/contract/harness.h"
#include "tests/contract/peer.h"

namespace kvpush {
namespace {

// No round of a stream has it.
constexpr std::byte kReused{0xff};

std::vector<Backend> process_backends() {
  std::vector<Backend> backends = contract_backends();
  std::erase_if(backends, [](const Backend& backend) { return !backend.across_processes; });
  return backends;
}

class PeerDeath : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    auto opened = GetParam().open();
    if (!opened) GTEST_SKIP() << GetParam().name << " is not available: " << opened.error().what;
    here_ = std::make_unique<Node>(std::move(*opened), kPeerMemoryBytes, std::byte{0});
    there_ = std::make_unique<PeerProgram>(GetParam().name);
    ASSERT_TRUE(there_->running());
    const auto peer = here_->transport->connect(there_->address());
    ASSERT_TRUE(peer) << peer.error().what;
    peer_ = *peer;
    there_->connect(here_->transport->address());
    ASSERT_TRUE(write(WriteToken{0}));
    ASSERT_TRUE(pump_until([&] { return completed(WriteToken{0}); })) << "the first write never completed";
    ASSERT_FALSE(here_->completion(WriteToken{0})->error);
  }

  bool write(WriteToken token) {
    const Descriptor whole{here_->at(0), there_->memory(), kPeerMemoryBytes};
    return here_->transport->write(peer_, {&whole, 1}, token).has_value();
  }
  bool completed(WriteToken token) const { return here_->completion(token) != nullptr; }
  // Until there is nothing to do here and it may sleep.
  void settle() {
    const Instant limit = read_clock() + kPatience;
    while (here_->poll() > 0 || !here_->transport->arm()) ASSERT_LT(read_clock(), limit);
  }
  template <class Done>
  bool pump_until(Done done) {
    Node* const nodes[] = {here_.get()};
    return pump(nodes, done);
  }

  std::unique_ptr<Node> here_;
  std::unique_ptr<PeerProgram> there_;
  PeerId peer_;
};

TEST_P(PeerDeath, OfTheTargetEndsTheWritesAndIsReportedOnce) {
  there_->freeze();
  for (std::uint64_t i = 1; i < kBatchesInFlightMax; ++i) ASSERT_TRUE(write(WriteToken{i}));
  there_->kill();

  ASSERT_TRUE(pump_until([&] { return here_->seen.completions.size() == kBatchesInFlightMax && here_->lost(peer_); }))
      << here_->seen.completions.size() << " of " << kBatchesInFlightMax << " batches ended";
  for (std::uint64_t i = 1; i < kBatchesInFlightMax; ++i) {
    const auto& error = here_->completion(WriteToken{i})->error;
    ASSERT_TRUE(error) << "batch " << i;
    EXPECT_EQ(error->code, ErrorCode::kPeerLost) << "batch " << i;
  }
  while (here_->poll() > 0) {
  }
  EXPECT_EQ(here_->seen.lost.size(), 1u);
  EXPECT_FALSE(write(WriteToken{99}));
  EXPECT_TRUE(here_->transport->deregister_region(here_->region));
}

TEST_P(PeerDeath, WakesAWaiterThatHasNothingInFlight) {
  settle();

  there_->kill();

  ASSERT_TRUE(wakes(*here_->transport));
  EXPECT_TRUE(pump_until([&] { return here_->lost(peer_); })) << "the loss is never reported";
}

// Shows B2.
TEST_P(PeerDeath, OfTheWriterIsReportedAndNothingLandsAfterIt) {
  there_->stream(here_->at(0));
  ASSERT_TRUE(pump_until([&] { return here_->memory.back() != std::byte{0}; })) << "nothing is streamed";

  there_->kill();

  ASSERT_TRUE(pump_until([&] { return here_->lost(peer_); })) << "the loss is never reported";
  if (here_->transport->facts().writes_die_with_writer) {
    EXPECT_TRUE(here_->seen.lost.front().writer_gone);
  } else {
    ASSERT_TRUE(here_->transport->facts().disconnect_fences) << "a transport must have one of the two proofs";
    here_->transport->disconnect(peer_);
  }
  std::ranges::fill(here_->memory, kReused);
  settle();
  EXPECT_TRUE(consists_of(here_->memory, kReused));
}

// Shows B2.
TEST_P(PeerDeath, LeavesOtherPeersAlone) {
  PeerProgram other(GetParam().name);
  const auto to_other = here_->transport->connect(other.address());
  ASSERT_TRUE(to_other);
  other.connect(here_->transport->address());
  const Descriptor whole{here_->at(0), other.memory(), kPeerMemoryBytes};
  ASSERT_TRUE(here_->transport->write(*to_other, {&whole, 1}, WriteToken{1}));
  ASSERT_TRUE(write(WriteToken{2}));

  there_->kill();

  ASSERT_TRUE(pump_until([&] { return completed(WriteToken{1}) && here_->lost(peer_); }));
  EXPECT_FALSE(here_->completion(WriteToken{1})->error);
  EXPECT_FALSE(here_->lost(*to_other));
  ASSERT_TRUE(here_->transport->write(*to_other, {&whole, 1}, WriteToken{3}));
  ASSERT_TRUE(pump_until([&] { return completed(WriteToken{3}); }));
  EXPECT_FALSE(here_->completion(WriteToken{3})->error);
}

// Shows A7.
TEST_P(PeerDeath, OfAStoppedWriterOrAFenceEndsItsWritesAlsoWhenItGoesOn) {
  there_->stream(here_->at(0));
  ASSERT_TRUE(pump_until([&] { return here_->memory.back() != std::byte{0}; })) << "nothing is streamed";

  there_->freeze();

  settle();
  EXPECT_FALSE(here_->lost(peer_)) << "a process that has stopped may write again";
  if (here_->transport->facts().disconnect_fences) {
    here_->transport->disconnect(peer_);
    std::ranges::fill(here_->memory, kReused);
    there_->thaw();
    there_->await_rest();
  } else {
    there_->kill();
    ASSERT_TRUE(pump_until([&] { return here_->lost(peer_); })) << "the loss is never reported";
    ASSERT_TRUE(here_->seen.lost.front().writer_gone) << "a transport must have one of the two proofs";
    std::ranges::fill(here_->memory, kReused);
  }
  settle();
  EXPECT_TRUE(consists_of(here_->memory, kReused));
}

// Shows A7.
TEST_P(PeerDeath, IsTheOnlyProofWhereADisconnectDoesNotFence) {
  if (here_->transport->facts().disconnect_fences) GTEST_SKIP() << GetParam().name << " fences";
  there_->stream(here_->at(0));
  ASSERT_TRUE(pump_until([&] { return here_->memory.back() != std::byte{0}; })) << "nothing is streamed";
  there_->freeze();
  here_->transport->disconnect(peer_);
  std::ranges::fill(here_->memory, kReused);

  there_->thaw();

  EXPECT_TRUE(pump_until([&] { return here_->memory.back() != kReused; })) << "then it fences, and should say so";
}

TEST_P(PeerDeath, BeforeItIsConnectedToIsAnError) {
  PeerProgram other(GetParam().name);
  const std::vector<std::byte> address = other.address();
  other.kill();

  const auto connected = here_->transport->connect(address);

  // A network transport may find out later.
  if (connected) {
    EXPECT_TRUE(pump_until([&] { return here_->lost(*connected); })) << "the loss is never reported";
  } else {
    EXPECT_EQ(connected.error().code, ErrorCode::kUnavailable) << connected.error().what;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PeerDeath, testing::ValuesIn(process_backends()),
                         [](const auto& backend) { return backend.param.name; });

}  // namespace
}  // namespace kvpush
