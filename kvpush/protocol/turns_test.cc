#include "kvpush/protocol/turns.h"

#include <string>

#include <gtest/gtest.h>

#include "kvpush/base/limits.h"

namespace kvpush {
namespace {

constexpr Peer kLeft{0, {1}};
constexpr Peer kRight{0, {2}};

RegistrationKey registration(std::uint64_t number) {
  return {{Incarnation{7}, 0}, {number}};
}

// The numbers of the registrations whose turns are next, as "1 2 3"; each is over at once and not added again.
std::string next_turns(Turns& turns, std::size_t count) {
  std::string numbers;
  for (std::size_t i = 0; i < count; ++i) {
    const std::optional<Turn> turn = turns.take();
    if (!turn) return numbers + "none ";
    turns.ended(turn->peer);
    numbers += std::to_string(turn->registration.number.value) + " ";
  }
  return numbers;
}

// Takes as many turns as there are without one of them ending.
std::size_t take_all(Turns& turns) {
  std::size_t count = 0;
  while (turns.take()) ++count;
  return count;
}

TEST(Turns, GoRoundThePeersWhateverEachHasToPost) {
  Turns turns;
  turns.open(kLeft);
  turns.open(kRight);
  for (const std::uint64_t number : {1u, 2u, 3u}) turns.add(kLeft, registration(number));
  turns.add(kRight, registration(10));

  EXPECT_EQ(next_turns(turns, 4), "1 10 2 3 ");
}

TEST(Turns, GoRoundTheRegistrationsOfAPeer) {
  Turns turns;
  turns.open(kLeft);
  turns.add(kLeft, registration(1));
  turns.add(kLeft, registration(2));

  const std::optional<Turn> first = turns.take();
  turns.add(kLeft, first->registration);

  EXPECT_EQ(next_turns(turns, 3), "2 1 none ");
}

TEST(Turns, StopForAPeerWithAsMuchInFlightAsAllowed) {
  Turns turns;
  turns.open(kLeft);
  turns.open(kRight);
  for (std::uint64_t number = 0; number < 2 * kBatchesInFlightMax; ++number) turns.add(kLeft, registration(number));
  turns.add(kRight, registration(100));

  EXPECT_EQ(take_all(turns), kBatchesInFlightMax + 1);

  EXPECT_EQ(turns.in_flight(), kBatchesInFlightMax + 1);
}

TEST(Turns, GoOnWhenABatchOfAFullPeerEnds) {
  Turns turns;
  turns.open(kLeft);
  for (std::uint64_t number = 0; number < 2 * kBatchesInFlightMax; ++number) turns.add(kLeft, registration(number));
  take_all(turns);

  turns.ended(kLeft);

  EXPECT_EQ(take_all(turns), 1u);
}

TEST(Turns, EndForAClosedPeerAndItsRegistrations) {
  Turns turns;
  turns.open(kLeft);
  turns.open(kRight);
  turns.add(kLeft, registration(1));
  turns.add(kRight, registration(2));

  turns.close(kLeft);
  turns.add(kLeft, registration(3));

  EXPECT_EQ(next_turns(turns, 2), "2 none ");
}

TEST(Turns, ForgetAClosedPeerAtOnceWhenNothingIsInFlight) {
  Turns turns;
  turns.open(kLeft);

  turns.close(kLeft);

  EXPECT_FALSE(turns.knows(kLeft));
}

TEST(Turns, KnowAClosedPeerUntilItsLastBatchHasEnded) {
  Turns turns;
  turns.open(kLeft);
  turns.add(kLeft, registration(1));
  turns.add(kLeft, registration(2));
  take_all(turns);

  turns.close(kLeft);
  turns.ended(kLeft);
  EXPECT_TRUE(turns.knows(kLeft));
  turns.ended(kLeft);

  EXPECT_FALSE(turns.knows(kLeft));
  EXPECT_EQ(turns.in_flight(), 0u);
}

TEST(Turns, IgnoreRegistrationsOfPeersTheyDoNotKnow) {
  Turns turns;

  turns.add(kLeft, registration(1));

  EXPECT_EQ(turns.take(), std::nullopt);
}

}  // namespace
}  // namespace kvpush
