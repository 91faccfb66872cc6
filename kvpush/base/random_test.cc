#include "kvpush/base/random.h"

#include <gtest/gtest.h>

namespace kvpush {
namespace {

TEST(Random, GivesTheSameSequenceForTheSameSeed) {
  Random first(42);
  Random second(42);

  for (int i = 0; i < 100; ++i) EXPECT_EQ(first.next(), second.next());
  EXPECT_NE(Random(1).next(), Random(2).next());
}

TEST(Random, StaysBelowItsBound) {
  Random random(7);

  for (int i = 0; i < 1000; ++i) EXPECT_LT(random.below(3), 3u);
}

}  // namespace
}  // namespace kvpush
