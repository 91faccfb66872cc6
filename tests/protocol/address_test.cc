// By which address the two sides of a session connect their peers.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kvpush/sim/blocks.h"
#include "kvpush/sim/world.h"
#include "tests/protocol/text.h"

namespace kvpush::sim {
namespace {

constexpr ConnectionId kSession{1};

std::vector<std::byte> bytes(const std::string& letters) {
  const auto all = std::as_bytes(std::span(letters));
  return {all.begin(), all.end()};
}

// What is said first of that kind; the test fails where there is none.
template <class T>
T said(const Actions& actions) {
  for (const Action& action : actions) {
    const auto* send = std::get_if<SendMessage>(&action);
    if (send != nullptr && std::holds_alternative<T>(send->message)) return std::get<T>(send->message);
  }
  ADD_FAILURE() << "no such message among " << actions.size() << " actions";
  return {};
}

std::vector<std::byte> connects_to(const Actions& actions) {
  for (const Action& action : actions) {
    if (const auto* connect = std::get_if<ConnectPeer>(&action)) return connect->address;
  }
  ADD_FAILURE() << "nobody is connected to";
  return {};
}

// A consumer whose transport has the address "C" at the start, and the producer it talks to.
class Addresses : public ::testing::Test {
 protected:
  Addresses() {
    const Endpoint directory{"p", 1};
    const auto held = *blocks_of_consumer_.hold(8, Choice::kConsecutive, 0);
    Actions out;
    EXPECT_TRUE(consumer_.on(Receive{"r", "x", directory, {0, 8}, held.tables}, {}, out));
    consumer_.on_resolved(directory, ProducerEngine{"P", {1}, {directory}}, {}, out);
    consumer_.on_dialled(directory, 0, kSession);
    out.clear();
    consumer_.on_connected(kSession, {}, out);
    hello_ = said<Hello>(out);
  }

  // Where the producer connects to, if the consumer's address is this after it has connected.
  std::vector<std::byte> producer_connects(std::vector<std::byte> address_of_consumer) {
    Actions out;
    producer_.on_accepted(kSession, {});
    producer_.on(kSession, hello_, {}, out);
    const Welcome welcome = said<Welcome>(out);
    out.clear();
    consumer_.on(kSession, welcome, {}, out);
    EXPECT_EQ(connects_to(out), bytes("P"));
    out.clear();
    consumer_.on_peer(kSession, Peer{0, {1}}, {}, out, std::move(address_of_consumer));
    assign_ = said<Assign>(out);
    out.clear();
    producer_.on(kSession, assign_, {}, out);
    return connects_to(out);
  }

  Blocks blocks_of_consumer_{2, 0, 1, "bfloat16", {}};
  const Blocks blocks_of_producer_{1, 0, 1, "bfloat16", {}};
  Consumer consumer_{{"C", {7}, 0, 1},
                     blocks_of_consumer_.layout(),
                     {{.name = kFencing, .address = bytes("C"), .disconnect_fences = true}},
                     {},
                     Random(1)};
  Producer producer_{{"P", {1}, 0, 1},
                     blocks_of_producer_.layout(),
                     {{.name = kFencing, .address = bytes("P"), .disconnect_fences = true}},
                     {}};
  Hello hello_;
  Assign assign_;
};

TEST_F(Addresses, AreThoseOfHelloAndWelcome) {
  EXPECT_EQ(producer_connects(bytes("C")), bytes("C"));
  EXPECT_TRUE(assign_.address.empty()) << "the producer has it already";
}

TEST_F(Addresses, AreTheConsumersNewOneWhereConnectingHasChangedIt) {
  EXPECT_EQ(producer_connects(bytes("C, waiting")), bytes("C, waiting"));
}

}  // namespace
}  // namespace kvpush::sim
