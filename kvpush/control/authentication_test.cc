#include "kvpush/control/authentication.h"

#include <gmock/gmock.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvpush {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

using Bytes = std::vector<std::byte>;

std::shared_ptr<const Secret> secret(char letter = 's') {
  const std::string text(kSecretBytesMin, letter);
  return Secret::make(std::as_bytes(std::span(text)));
}

Nonce nonce(int value) {
  Nonce made;
  made.fill(static_cast<std::byte>(value));
  return made;
}

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// One side, fed with whatever the other said.
struct Party {
  explicit Party(Side side, int nonce_value, std::shared_ptr<const Secret> known = secret())
      : handshake(std::move(known), side, nonce(nonce_value)) {}

  // As much of `said` as it wants; true when that was taken without an error.
  bool hear(const Bytes& said) {
    std::span<const std::byte> rest = said;
    while (!handshake.is_proven() && !error && rest.size() >= handshake.wanted_bytes()) {
      const auto part = rest.first(handshake.wanted_bytes());
      rest = rest.subspan(part.size());
      if (const auto heard = handshake.on(part, answer); !heard) error = heard.error().code;
    }
    return !error;
  }
  Bytes take_answer() { return std::exchange(answer, {}); }

  Handshake handshake;
  Bytes answer;
  std::optional<ErrorCode> error;
};

// What an untouched handshake says, part by part.
struct Conversation {
  explicit Conversation(int connector_nonce = 1, int acceptor_nonce = 2)
      : connector(Side::kConnector, connector_nonce), acceptor(Side::kAcceptor, acceptor_nonce) {
    greeting = connector.handshake.greeting();
    acceptor.hear(greeting);
    answer = acceptor.take_answer();
    connector.hear(answer);
    proof = connector.take_answer();
    acceptor.hear(proof);
  }

  Party connector;
  Party acceptor;
  Bytes greeting;
  Bytes answer;
  Bytes proof;
};

TEST(Handshake, ProvesBothSidesThatKnowTheSecret) {
  const Conversation said;
  EXPECT_TRUE(said.connector.handshake.is_proven());
  EXPECT_TRUE(said.acceptor.handshake.is_proven());
}

TEST(Handshake, GivesBothSidesTheSameKeysAndEachDirectionItsOwn) {
  const Conversation said;
  const Bytes length(4);
  const Bytes body = bytes_of("body");
  const Mac forth = said.connector.handshake.sending().next(length, body);
  const Mac back = said.acceptor.handshake.sending().next(length, body);

  EXPECT_EQ(said.acceptor.handshake.receiving().next(length, body), forth);
  EXPECT_EQ(said.connector.handshake.receiving().next(length, body), back);
  EXPECT_NE(forth, back);
}

TEST(Handshake, RefusesAnotherSecretOnBothSides) {
  Party connector(Side::kConnector, 1, secret('a'));
  Party acceptor(Side::kAcceptor, 2, secret('b'));
  acceptor.hear(connector.handshake.greeting());

  EXPECT_FALSE(connector.hear(acceptor.take_answer()));
  EXPECT_FALSE(acceptor.hear(connector.take_answer()));
  EXPECT_EQ(connector.error, ErrorCode::kUnauthenticated);
  EXPECT_EQ(acceptor.error, ErrorCode::kUnauthenticated);
}

TEST(Handshake, RefusesAConnectorWithAnotherSecretThatDoesNotSaySo) {
  Party connector(Side::kConnector, 1);
  Party acceptor(Side::kAcceptor, 2);
  acceptor.hear(connector.handshake.greeting());
  Bytes proof = Conversation(1, 3).proof;

  EXPECT_FALSE(acceptor.hear(proof)) << "it was made for another nonce";
  EXPECT_EQ(acceptor.error, ErrorCode::kUnauthenticated);
}

TEST(Handshake, FailsWithAnyBitOfTheAcceptorsAnswerChanged) {
  const Conversation said;
  for (std::size_t bit = 0; bit < 8 * said.answer.size(); ++bit) {
    Party connector(Side::kConnector, 1);
    Bytes changed = said.answer;
    changed[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(connector.hear(changed)) << "bit " << bit;
    EXPECT_FALSE(connector.handshake.is_proven());
  }
}

TEST(Handshake, FailsWithAnyBitOfTheConnectorsWordsChanged) {
  const Conversation said;
  for (std::size_t bit = 0; bit < 8 * (said.greeting.size() + said.proof.size()); ++bit) {
    Bytes greeting = said.greeting;
    Bytes proof = said.proof;
    const std::size_t byte = bit / 8;
    (byte < greeting.size() ? greeting[byte] : proof[byte - greeting.size()]) ^= std::byte(1 << bit % 8);
    Party acceptor(Side::kAcceptor, 2);
    acceptor.hear(greeting);
    acceptor.hear(proof);
    EXPECT_FALSE(acceptor.handshake.is_proven()) << "bit " << bit;
    EXPECT_TRUE(acceptor.error) << "bit " << bit;
  }
}

TEST(Handshake, WaitsForTheRestOfAPartThatIsCutShort) {
  const Conversation said;
  for (std::size_t size = 0; size < said.greeting.size(); ++size) {
    Party acceptor(Side::kAcceptor, 2);
    EXPECT_TRUE(acceptor.hear({said.greeting.begin(), said.greeting.begin() + static_cast<std::ptrdiff_t>(size)}));
    EXPECT_THAT(acceptor.answer, IsEmpty());
    EXPECT_FALSE(acceptor.handshake.is_proven());
  }
}

TEST(Handshake, RefusesAnOldConversationPlayedToANewAcceptor) {
  const Conversation old;
  Party acceptor(Side::kAcceptor, 3);
  acceptor.hear(old.greeting);
  EXPECT_FALSE(acceptor.hear(old.proof));
}

TEST(Handshake, RefusesAnOldConversationPlayedToANewConnector) {
  const Conversation old;
  Party connector(Side::kConnector, 3);
  EXPECT_FALSE(connector.hear(old.answer));
  EXPECT_EQ(connector.error, ErrorCode::kUnauthenticated);
}

TEST(Handshake, RefusesItsOwnGreetingSentBack) {
  Party connector(Side::kConnector, 1);
  Bytes back = connector.handshake.greeting();
  back.resize(back.size() + kMacBytes);
  EXPECT_FALSE(connector.hear(back));
  EXPECT_EQ(connector.error, ErrorCode::kUnauthenticated);
}

TEST(Handshake, RefusesTheAcceptorsProofSentBackAsTheConnectors) {
  Party acceptor(Side::kAcceptor, 2);
  acceptor.hear(Party(Side::kConnector, 1).handshake.greeting());
  const Bytes answer = acceptor.take_answer();
  ASSERT_THAT(answer, SizeIs(kHandshakeHeaderBytes + kNonceBytes + kMacBytes));
  Bytes reflected(answer.begin(), answer.begin() + kHandshakeHeaderBytes);
  reflected.insert(reflected.end(), answer.end() - kMacBytes, answer.end());

  EXPECT_FALSE(acceptor.hear(reflected));
  EXPECT_EQ(acceptor.error, ErrorCode::kUnauthenticated);
}

TEST(Handshake, RefusesAProofThatAnotherAcceptorOfTheSameSecretWasMadeToGive) {
  // An attacker without the secret is greeted, and passes the greeting to a second acceptor as its own.
  Party victim(Side::kAcceptor, 2);
  Party oracle(Side::kAcceptor, 3);
  const Bytes greeting = Party(Side::kConnector, 1).handshake.greeting();
  victim.hear(greeting);
  oracle.hear(greeting);
  const Bytes answer = oracle.take_answer();
  Bytes stolen(answer.begin(), answer.begin() + kHandshakeHeaderBytes);
  stolen.insert(stolen.end(), answer.end() - kMacBytes, answer.end());

  EXPECT_FALSE(victim.hear(stolen));
}

TEST(Handshake, TellsAPeerWithoutASecretThatItNeedsOne) {
  Party acceptor(Side::kAcceptor, 2);
  EXPECT_FALSE(acceptor.hear(Bytes{std::byte{64}, {}, {}, {}, {}, {}, {}, {}}));
  EXPECT_EQ(acceptor.error, ErrorCode::kUnauthenticated);
  const auto header = handshake_header(Verdict::kSecretNeeded);
  EXPECT_EQ(acceptor.answer, Bytes(header.begin(), header.end()));
}

TEST(Handshake, HearsThatThePeerHasNoSecret) {
  Party connector(Side::kConnector, 1);
  const auto header = handshake_header(Verdict::kNoSecret);
  EXPECT_FALSE(connector.hear({header.begin(), header.end()}));
  EXPECT_EQ(connector.error, ErrorCode::kUnauthenticated);
  EXPECT_THAT(connector.answer, IsEmpty()) << "it never goes on without";
}

TEST(Handshake, AnswersNothingToAnotherProtocol) {
  Party acceptor(Side::kAcceptor, 2);
  EXPECT_FALSE(acceptor.hear(bytes_of("GET / HT")));
  EXPECT_EQ(acceptor.error, ErrorCode::kBadMessage);
  EXPECT_THAT(acceptor.answer, IsEmpty());
}

// Two frames with their MACs, in a session that a reader of the same keys follows.
class Frames : public testing::Test {
 protected:
  const Conversation session;
  FrameMac sending = session.connector.handshake.sending();
  FrameMac receiving = session.acceptor.handshake.receiving();
  const Bytes length = {std::byte{4}, {}, {}, {}};
  const Bytes first = bytes_of("one!");
  const Bytes second = bytes_of("two!");
  const Mac first_mac = sending.next(length, first);
  const Mac second_mac = sending.next(length, second);
};

TEST_F(Frames, FitInTheOrderInWhichTheyWereSent) {
  EXPECT_EQ(receiving.next(length, first), first_mac);
  EXPECT_EQ(receiving.next(length, second), second_mac);
}

TEST_F(Frames, DoNotFitTwice) {
  EXPECT_EQ(receiving.next(length, first), first_mac);
  EXPECT_NE(receiving.next(length, first), first_mac);
}

TEST_F(Frames, DoNotFitSwapped) {
  EXPECT_NE(receiving.next(length, second), second_mac);
  EXPECT_NE(receiving.next(length, first), first_mac);
}

TEST_F(Frames, DoNotFitWithAnyBitChanged) {
  for (std::size_t bit = 0; bit < 8 * (length.size() + first.size()); ++bit) {
    Bytes changed_length = length;
    Bytes changed = first;
    const std::size_t byte = bit / 8;
    (byte < 4 ? changed_length[byte] : changed[byte - 4]) ^= std::byte(1 << bit % 8);
    FrameMac fresh = session.acceptor.handshake.receiving();
    EXPECT_NE(fresh.next(changed_length, changed), first_mac) << "bit " << bit;
  }
}

TEST_F(Frames, DoNotFitSentBackToTheirSender) {
  EXPECT_NE(session.connector.handshake.receiving().next(length, first), first_mac);
}

TEST_F(Frames, DoNotFitAnotherSessionOfTheSameSecret) {
  const Conversation other(1, 3);
  EXPECT_NE(other.acceptor.handshake.receiving().next(length, first), first_mac);
}

}  // namespace
}  // namespace kvpush
