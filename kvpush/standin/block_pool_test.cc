#include "kvpush/standin/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvpush {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr PrefixKey kFirst{11};
constexpr PrefixKey kSecond{22};

TEST(BlockPool, GivesOutAllItsBlocksAndNotOneMore) {
  BlockPool pool(3);

  ASSERT_TRUE(pool.take(2));

  EXPECT_FALSE(pool.take(2)) << "one is left";
  EXPECT_EQ(pool.free_blocks(), 1u) << "a refused wish takes nothing";
  EXPECT_TRUE(pool.take(1));
}

TEST(BlockPool, SharesARememberedBlockUntilItsLastHolderGivesItBack) {
  BlockPool pool(2);
  const std::vector<BlockId> own = *pool.take(1);
  pool.remember(own[0], kFirst);
  const PrefixKey wanted[] = {kFirst};

  ASSERT_EQ(pool.reuse(wanted), own);

  pool.give_back(own);
  EXPECT_EQ(pool.free_blocks(), 1u);
  pool.give_back(own);
  EXPECT_EQ(pool.free_blocks(), 2u);
}

TEST(BlockPool, FindsThePrefixOfAFreeBlockAndHoldsItAgain) {
  BlockPool pool(2);
  const std::vector<BlockId> own = *pool.take(1);
  pool.remember(own[0], kFirst);
  pool.give_back(own);
  const PrefixKey wanted[] = {kFirst, kSecond};

  EXPECT_EQ(pool.reuse(wanted), own) << "up to the first prefix that is not known";
  EXPECT_EQ(pool.free_blocks(), 1u);
}

TEST(BlockPool, ForgetsAPrefixWhenItsBlockIsGivenToAnother) {
  BlockPool pool(1);
  const std::vector<BlockId> own = *pool.take(1);
  pool.remember(own[0], kFirst);
  pool.give_back(own);

  ASSERT_TRUE(pool.take(1));

  const PrefixKey wanted[] = {kFirst};
  EXPECT_THAT(pool.reuse(wanted), IsEmpty());
  EXPECT_EQ(pool.known_prefixes(), 0u);
}

TEST(BlockPool, GivesOutWhatHasBeenFreeForLongestAndAPrefixsEndBeforeItsBeginning) {
  BlockPool pool(4);
  const std::vector<BlockId> early = *pool.take(2);
  const std::vector<BlockId> late = *pool.take(2);

  pool.give_back(early);
  pool.give_back(late);

  EXPECT_THAT(*pool.take(4), ElementsAre(early[1], early[0], late[1], late[0]));
}

TEST(BlockPool, KeepsTheFirstOfTwoBlocksWithOnePrefix) {
  BlockPool pool(2);
  const std::vector<BlockId> both = *pool.take(2);
  pool.remember(both[0], kFirst);
  pool.remember(both[1], kFirst);
  const PrefixKey wanted[] = {kFirst};

  EXPECT_THAT(pool.reuse(wanted), ElementsAre(both[0]));
}

TEST(BlockPoolDeathTest, EndsTheProcessWhenABlockIsGivenBackTwice) {
  BlockPool pool(1);
  const std::vector<BlockId> own = *pool.take(1);
  pool.give_back(own);

  EXPECT_DEATH(pool.give_back(own), "given back by one who holds it");
}

}  // namespace
}  // namespace kvpush
