// What every transport does, whatever carries the bytes. Both ends are in this process; peer_death_test.cc has the
// rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "kvpush/base/limits.h"
#include "kvpush/base/random.h"
#include "kvpush/transport/transport.h"
#include "tests/contract/backends.h"
#include "tests/contract/harness.h"

namespace kvpush {
namespace {

constexpr std::size_t kSmall = 1u << 20;
constexpr std::size_t kLarge = 64u << 20;
constexpr std::byte kFresh{0xee};  // what memory holds before anyone writes

// Two or more connected endpoints of one backend.
class TransportContract : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    const auto probe = GetParam().open();
    if (!probe) GTEST_SKIP() << GetParam().name << " is not available: " << probe.error().what;
  }

  // The fill makes every byte differ from kFresh and from its neighbours; it begins anew every 199 * 251 bytes.
  Node source(std::size_t size_bytes) {
    Node node(GetParam().open().value(), size_bytes, std::byte{0});
    constexpr std::size_t kPeriod = 199 * 251;
    for (std::size_t i = 0; i < std::min(kPeriod, size_bytes); ++i) {
      node.memory[i] = static_cast<std::byte>((i * 31 + i / 251) % 199);
    }
    for (std::size_t i = kPeriod; i < size_bytes; i += kPeriod) {
      std::copy_n(node.memory.begin(), std::min(kPeriod, size_bytes - i),
                  node.memory.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return node;
  }
  Node target(std::size_t size_bytes) { return Node(GetParam().open().value(), size_bytes, kFresh); }

  // The name that `a` has for `b`; the other one is kept in back_.
  PeerId join(Node& a, Node& b) {
    const auto to_b = a.transport->connect(b.transport->address());
    const auto to_a = b.transport->connect(a.transport->address());
    EXPECT_TRUE(to_b && to_a);
    back_ = to_a.value_or(PeerId{});
    return to_b.value_or(PeerId{});
  }

  // join(), and the two have talked to each other.
  PeerId meet(Node& a, Node& b) {
    const PeerId to_b = join(a, b);
    constexpr WriteToken kHello{1000};
    EXPECT_TRUE(a.transport->write(to_b, {}, kHello));
    EXPECT_TRUE(b.transport->write(back_, {}, kHello));
    EXPECT_FALSE(outcome(a, b, kHello));
    EXPECT_FALSE(outcome(b, a, kHello));
    a.seen.clear();
    b.seen.clear();
    return to_b;
  }

  // The completion's error; the test fails if there is none in time.
  std::optional<Error> outcome(Node& a, Node& b, WriteToken token) {
    Node* const nodes[] = {&a, &b};
    if (!pump(nodes, [&] { return a.completion(token) != nullptr; })) {
      ADD_FAILURE() << "batch " << token.value << " has not completed";
      return Error{ErrorCode::kTimeout, "no completion"};
    }
    return a.completion(token)->error;
  }

  // Until nobody has anything to do and both could sleep.
  void settle(Node& a, Node& b) {
    const Instant limit = read_clock() + kPatience;
    while (a.poll() + b.poll() > 0 || !a.transport->arm() || !b.transport->arm()) {
      ASSERT_LT(read_clock(), limit) << "the transports never come to rest";
    }
  }

  PeerId back_;
};

TEST_P(TransportContract, BytesAreThereWhenTheWriteCompletes) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = join(a, b);
  const Descriptor whole{a.at(0), b.at(0), kSmall};

  ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{1}));

  EXPECT_FALSE(outcome(a, b, WriteToken{1}));
  EXPECT_EQ(b.memory, a.memory);
}

TEST_P(TransportContract, AnyDescriptorsMoveTheirBytesAndNoOthers) {
  Random random(1);
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = join(a, b);
  std::vector<std::byte> expected = b.memory;
  for (std::uint64_t round = 0; round < 20; ++round) {
    std::vector<Descriptor> batch;
    std::size_t offset = 0;
    while (batch.size() < kBatchDescriptorsMax && offset < kSmall) {
      const std::size_t length = std::min<std::size_t>(random.below(3) == 0 ? 0 : random.below(9000), kSmall - offset);
      const std::size_t from = random.below(kSmall - length + 1);
      batch.push_back({a.at(from), b.at(offset), length});
      std::copy_n(a.memory.begin() + static_cast<std::ptrdiff_t>(from), length,
                  expected.begin() + static_cast<std::ptrdiff_t>(offset));
      offset += length + random.below(100);
    }

    ASSERT_TRUE(a.transport->write(to_b, batch, WriteToken{round}));

    EXPECT_FALSE(outcome(a, b, WriteToken{round}));
    ASSERT_TRUE(are_equal(b.memory, expected)) << "in round " << round;
  }
}

TEST_P(TransportContract, BothSidesWriteAtOnce) {
  Node a = source(2 * kSmall);
  Node b = source(2 * kSmall);
  std::ranges::reverse(b.memory);
  const PeerId to_b = join(a, b);
  const Descriptor there{a.at(0), b.at(kSmall), kSmall};
  const Descriptor back{b.at(0), a.at(kSmall), kSmall};

  ASSERT_TRUE(a.transport->write(to_b, {&there, 1}, WriteToken{1}));
  ASSERT_TRUE(b.transport->write(back_, {&back, 1}, WriteToken{1}));

  EXPECT_FALSE(outcome(a, b, WriteToken{1}));
  EXPECT_FALSE(outcome(b, a, WriteToken{1}));
  EXPECT_EQ(std::memcmp(b.memory.data() + kSmall, a.memory.data(), kSmall), 0);
  EXPECT_EQ(std::memcmp(a.memory.data() + kSmall, b.memory.data(), kSmall), 0);
}

TEST_P(TransportContract, CompletesEachBatchOnceAndOnlyInPoll) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = join(a, b);
  const Descriptor empty{0, 0, 0};
  const Descriptor some{a.at(3), b.at(5), 1001};

  ASSERT_TRUE(a.transport->write(to_b, {}, WriteToken{1}));
  ASSERT_TRUE(a.transport->write(to_b, {&empty, 1}, WriteToken{2}));
  ASSERT_TRUE(a.transport->write(to_b, {&some, 1}, WriteToken{3}));
  EXPECT_TRUE(a.seen.completions.empty());
  for (std::uint64_t token = 1; token <= 3; ++token) EXPECT_FALSE(outcome(a, b, WriteToken{token}));
  settle(a, b);

  EXPECT_EQ(a.seen.completions.size(), 3u);
}

TEST_P(TransportContract, ReportsNothingToDoAtRest) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = join(a, b);
  ASSERT_TRUE(a.transport->write(to_b, {}, WriteToken{1}));
  EXPECT_FALSE(outcome(a, b, WriteToken{1}));
  settle(a, b);

  EXPECT_EQ(a.poll(), 0u);
  EXPECT_EQ(b.poll(), 0u);
}

// Shows E4.
TEST_P(TransportContract, PostsNothingOfABatchThatLeavesTheRegions) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = meet(a, b);
  std::vector<std::byte> late(kSmall);
  ASSERT_TRUE(b.transport->register_region(late)) << "after the address was taken, so its peers do not know it";
  const Descriptor good{a.at(0), b.at(0), 100};
  const Descriptor bad[] = {{a.at(1), b.at(0), kSmall},
                            {a.at(0), b.at(1), kSmall},
                            {a.at(0) - 1, b.at(0), 1},
                            {a.at(0), b.at(0), ~std::uint64_t{0}},
                            {a.at(0), address_of(late.data()), 1}};

  for (const Descriptor& each : bad) {
    const Descriptor batch[] = {good, each};
    const auto posted = a.transport->write(to_b, batch, WriteToken{1});
    ASSERT_FALSE(posted);
    EXPECT_EQ(posted.error().code, ErrorCode::kOutOfRegion);
  }

  settle(a, b);
  EXPECT_TRUE(a.seen.completions.empty());
  EXPECT_TRUE(consists_of(b.memory, kFresh));
}

TEST_P(TransportContract, IsFullAtItsBoundAndRecovers) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = join(a, b);
  const Descriptor some{a.at(0), b.at(0), 4096};
  for (std::uint64_t i = 0; i < kBatchesInFlightMax; ++i) {
    ASSERT_TRUE(a.transport->write(to_b, {&some, 1}, WriteToken{i}));
  }

  const auto refused = a.transport->write(to_b, {&some, 1}, WriteToken{99});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFull);

  EXPECT_FALSE(outcome(a, b, WriteToken{0}));
  EXPECT_TRUE(a.transport->write(to_b, {&some, 1}, WriteToken{99}));
  EXPECT_FALSE(outcome(a, b, WriteToken{99}));
}

TEST_P(TransportContract, KeepsARegionThatAPostedWriteReads) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = join(a, b);
  std::vector<std::byte> other(4096);
  const RegionId unused = a.transport->register_region(other).value();
  const Descriptor whole{a.at(0), b.at(0), kSmall};
  ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{1}));

  const auto busy = a.transport->deregister_region(a.region);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
  EXPECT_TRUE(a.transport->deregister_region(unused));

  EXPECT_FALSE(outcome(a, b, WriteToken{1}));
  EXPECT_TRUE(a.transport->deregister_region(a.region));
  const auto refused = a.transport->write(to_b, {&whole, 1}, WriteToken{2});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfRegion);
}

TEST_P(TransportContract, RefusesARegionThatIsEmptyOrOverlaps) {
  Node a = source(kSmall);

  EXPECT_EQ(a.transport->register_region({}).error().code, ErrorCode::kBadConfig);
  EXPECT_EQ(a.transport->register_region(std::span(a.memory).subspan(10, 10)).error().code, ErrorCode::kBadConfig);
}

TEST_P(TransportContract, DisconnectEndsTheWritesUnderWay) {
  Node a = source(8 * kSmall);
  Node b = target(8 * kSmall);
  const PeerId to_b = meet(a, b);
  const Descriptor whole{a.at(0), b.at(0), 8 * kSmall};
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{i}));

  a.transport->disconnect(to_b);

  EXPECT_TRUE(a.seen.completions.empty());
  Node* const nodes[] = {&a};
  ASSERT_TRUE(pump(nodes, [&] { return a.seen.completions.size() >= 4; }));
  settle(a, b);
  EXPECT_EQ(a.seen.completions.size(), 4u);
  for (const WriteCompletion& completion : a.seen.completions) {
    ASSERT_TRUE(completion.error) << "batch " << completion.token.value;
    EXPECT_EQ(completion.error->code, ErrorCode::kPeerLost);
  }
  EXPECT_EQ(a.transport->write(to_b, {&whole, 1}, WriteToken{9}).error().code, ErrorCode::kPeerLost);
  EXPECT_TRUE(a.transport->deregister_region(a.region)) << "nothing reads it any more";
}

TEST_P(TransportContract, ReadsNothingOfADisconnectedWriteAfterItsEnd) {
  constexpr std::byte kReused{0xdd};
  Node a = source(8 * kSmall);
  Node b = target(8 * kSmall);
  const PeerId to_b = meet(a, b);
  const Descriptor whole{a.at(0), b.at(0), 8 * kSmall};
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{i}));
  a.transport->disconnect(to_b);
  Node* const nodes[] = {&a};
  ASSERT_TRUE(pump(nodes, [&] { return a.seen.completions.size() == 4; }));

  std::ranges::fill(a.memory, kReused);

  settle(a, b);
  const PeerId again = meet(a, b);
  const Descriptor last{a.at(0), b.at(0), 1};
  ASSERT_TRUE(a.transport->write(again, {&last, 1}, WriteToken{9}));
  EXPECT_FALSE(outcome(a, b, WriteToken{9})) << "what was under way before has arrived by now";
  EXPECT_FALSE(contains(std::span(b.memory).subspan(1), kReused));
}

TEST_P(TransportContract, IgnoresPeersItDoesNotKnow) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = join(a, b);

  a.transport->disconnect(PeerId{12345});
  EXPECT_EQ(a.transport->write(PeerId{12345}, {}, WriteToken{1}).error().code, ErrorCode::kPeerLost);

  ASSERT_TRUE(a.transport->write(to_b, {}, WriteToken{2}));
  EXPECT_FALSE(outcome(a, b, WriteToken{2}));
}

TEST_P(TransportContract, NothingLandsAfterTheTargetDisconnected) {
  Node a = source(8 * kSmall);
  Node b = target(8 * kSmall);
  const PeerId to_b = meet(a, b);
  if (!a.transport->facts().disconnect_fences) GTEST_SKIP() << GetParam().name << " does not promise it";
  const Descriptor whole{a.at(0), b.at(0), 8 * kSmall};
  for (std::uint64_t i = 2; i < 6; ++i) ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{i}));
  Node* const nodes[] = {&a, &b};
  ASSERT_TRUE(pump(nodes, [&] { return b.memory[0] != kFresh; })) << "no byte has arrived";

  b.transport->disconnect(back_);
  std::ranges::fill(b.memory, kFresh);

  settle(a, b);
  EXPECT_TRUE(consists_of(b.memory, kFresh));
  a.transport->disconnect(to_b);
  ASSERT_TRUE(pump(nodes, [&] { return a.seen.completions.size() == 4; }))
      << a.seen.completions.size() << " of 4 batches ended";
  EXPECT_TRUE(consists_of(b.memory, kFresh));
}

TEST_P(TransportContract, ConnectsAgainAfterADisconnect) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const Descriptor whole{a.at(0), b.at(0), kSmall};
  for (std::uint64_t round = 0; round < 5; ++round) {
    const PeerId to_b = join(a, b);
    const PeerId to_a = back_;
    std::ranges::fill(b.memory, kFresh);

    ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{round}));

    EXPECT_FALSE(outcome(a, b, WriteToken{round})) << "in round " << round;
    EXPECT_TRUE(are_equal(b.memory, a.memory)) << "in round " << round;
    a.transport->disconnect(to_b);
    b.transport->disconnect(to_a);
    settle(a, b);
  }
}

TEST_P(TransportContract, WritesToTwoPeersAtOnce) {
  Node a = source(2 * kSmall);
  Node b = target(kSmall);
  Node c = target(kSmall);
  const PeerId to_b = join(a, b);
  const PeerId to_c = join(a, c);
  const Descriptor first_half{a.at(0), b.at(0), kSmall};
  const Descriptor second_half{a.at(kSmall), c.at(0), kSmall};

  ASSERT_TRUE(a.transport->write(to_b, {&first_half, 1}, WriteToken{1}));
  ASSERT_TRUE(a.transport->write(to_c, {&second_half, 1}, WriteToken{2}));

  Node* const nodes[] = {&a, &b, &c};
  ASSERT_TRUE(pump(nodes, [&] { return a.seen.completions.size() == 2; }));
  EXPECT_EQ(std::memcmp(b.memory.data(), a.memory.data(), kSmall), 0);
  EXPECT_EQ(std::memcmp(c.memory.data(), a.memory.data() + kSmall, kSmall), 0);
}

TEST_P(TransportContract, OnePeersDisconnectLeavesTheOtherAlone) {
  Node a = source(8 * kSmall);
  Node b = target(8 * kSmall);
  Node c = target(8 * kSmall);
  const PeerId to_b = meet(a, b);
  const PeerId to_c = meet(a, c);
  const Descriptor there{a.at(0), b.at(0), 8 * kSmall};
  const Descriptor elsewhere{a.at(0), c.at(0), 8 * kSmall};
  ASSERT_TRUE(a.transport->write(to_b, {&there, 1}, WriteToken{1}));
  ASSERT_TRUE(a.transport->write(to_c, {&elsewhere, 1}, WriteToken{2}));

  a.transport->disconnect(to_b);

  Node* const nodes[] = {&a, &b, &c};
  ASSERT_TRUE(pump(nodes, [&] { return a.seen.completions.size() == 2; }));
  EXPECT_TRUE(a.completion(WriteToken{1})->error);
  EXPECT_FALSE(a.completion(WriteToken{2})->error);
  EXPECT_TRUE(are_equal(c.memory, a.memory));
}

TEST_P(TransportContract, MovesBetweenManyRegions) {
  constexpr std::size_t kRegions = 200;
  constexpr std::size_t kBytes = 4096;
  Node a = source(kRegions * kBytes);
  Node b = target(kRegions * kBytes);
  ASSERT_TRUE(a.transport->deregister_region(a.region));
  ASSERT_TRUE(b.transport->deregister_region(b.region));
  std::vector<Descriptor> batch;
  for (std::size_t i = 0; i < kRegions; ++i) {
    ASSERT_TRUE(a.transport->register_region(std::span(a.memory).subspan(i * kBytes, kBytes)));
    ASSERT_TRUE(b.transport->register_region(std::span(b.memory).subspan((kRegions - 1 - i) * kBytes, kBytes)));
    batch.push_back({a.at(i * kBytes), b.at(i * kBytes), kBytes});
  }
  const PeerId to_b = join(a, b);

  ASSERT_TRUE(a.transport->write(to_b, batch, WriteToken{1}));

  EXPECT_FALSE(outcome(a, b, WriteToken{1}));
  EXPECT_TRUE(are_equal(b.memory, a.memory));
}

TEST_P(TransportContract, MovesALargeWriteInBoundedTurns) {
  Node a = source(kLarge);
  Node b = target(kLarge);
  const PeerId to_b = join(a, b);
  const Descriptor whole{a.at(0), b.at(0), kLarge};
  ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{1}));

  std::size_t turns = 0;
  Node* const nodes[] = {&a, &b};
  ASSERT_TRUE(pump(nodes, [&] { return ++turns, a.completion(WriteToken{1}) != nullptr; }));

  EXPECT_TRUE(are_equal(b.memory, a.memory));
  EXPECT_GE(turns, kLarge / kBatchBytesMax) << "one poll() has moved more than a batch may hold";
}

TEST_P(TransportContract, AWritePostedWhileArmedWakesTheWaiter) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = join(a, b);
  if (a.transport->event_fd() < 0) GTEST_SKIP() << GetParam().name << " has no event fd";
  for (std::uint64_t round = 0; round < 10; ++round) {
    settle(a, b);

    ASSERT_TRUE(a.transport->write(to_b, {}, WriteToken{round}));

    ASSERT_TRUE(wakes(*a.transport)) << "in round " << round;
    EXPECT_FALSE(outcome(a, b, WriteToken{round}));
  }
}

TEST_P(TransportContract, ADisconnectWhileArmedWakesTheWaiter) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = meet(a, b);
  if (a.transport->event_fd() < 0) GTEST_SKIP() << GetParam().name << " has no event fd";
  settle(a, b);

  a.transport->disconnect(to_b);

  EXPECT_TRUE(wakes(*a.transport));
}

TEST_P(TransportContract, IsNotArmedWhileACompletionWaits) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = meet(a, b);
  settle(a, b);
  const Descriptor whole{a.at(0), b.at(0), kSmall};
  ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{1}));

  a.transport->disconnect(to_b);

  EXPECT_FALSE(a.transport->arm());
}

TEST_P(TransportContract, ATargetThatMustProgressIsWokenByTheWriter) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  const PeerId to_b = meet(a, b);
  if (!b.transport->facts().target_must_progress) GTEST_SKIP() << GetParam().name << " needs no progress there";
  const Descriptor whole{a.at(0), b.at(0), kSmall};
  ASSERT_TRUE(a.transport->write(to_b, {&whole, 1}, WriteToken{2}));

  const Instant limit = read_clock() + kPatience;
  while (a.completion(WriteToken{2}) == nullptr) {
    ASSERT_LT(read_clock(), limit) << "the write has not completed";
    a.poll();
    pollfd request{b.transport->event_fd(), POLLIN, 0};
    if (b.transport->arm() && ::poll(&request, 1, 0) == 0) continue;
    b.poll();
  }

  EXPECT_TRUE(are_equal(b.memory, a.memory));
}

TEST_P(TransportContract, RefusesAnAddressThatIsNoneOfItsOwn) {
  Random random(7);
  Node a = source(kSmall);
  Node b = target(kSmall);
  const std::vector<std::byte> good = b.transport->address();
  std::vector<std::vector<std::byte>> bad = {{}, std::vector<std::byte>(100), std::vector<std::byte>(1u << 20)};
  for (const Backend& other : contract_backends()) {
    const auto stranger = other.open();
    if (other.name != GetParam().name && stranger) bad.push_back((*stranger)->address());
  }
  for (int i = 0; i < 200; ++i) {
    bad.push_back(good);
    bad.back()[random.below(good.size())] ^= static_cast<std::byte>(1 + random.below(255));
    bad.emplace_back(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(random.below(good.size())));
    bad.push_back(good);
    bad.back().push_back(std::byte{0});
  }

  for (const auto& address : bad) {
    const auto connected = a.transport->connect(address);
    ASSERT_FALSE(connected);
    EXPECT_EQ(connected.error().code, ErrorCode::kBadMessage) << connected.error().what;
  }
  const PeerId to_b = join(a, b);
  ASSERT_TRUE(a.transport->write(to_b, {}, WriteToken{1}));
  EXPECT_FALSE(outcome(a, b, WriteToken{1})) << "and still works";
}

TEST_P(TransportContract, NamesItselfAndItsWire) {
  Node a = source(kSmall);
  Node b = target(kSmall);
  meet(a, b);

  EXPECT_TRUE(GetParam().name.starts_with(a.transport->name()));
  EXPECT_FALSE(a.transport->wire().empty());
  EXPECT_EQ(a.transport->wire().find("unknown"), std::string_view::npos) << a.transport->wire();
}

INSTANTIATE_TEST_SUITE_P(Backends, TransportContract, testing::ValuesIn(contract_backends()),
                         [](const auto& backend) { return backend.param.name; });

}  // namespace
}  // namespace kvpush
