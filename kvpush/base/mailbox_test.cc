#include "kvpush/base/mailbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <thread>

namespace kvpush {
namespace {

bool readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

TEST(Mailbox, RefusesAPostWhenFullAndLeavesTheValue) {
  Mailbox<std::unique_ptr<int>> mailbox(1);
  EXPECT_TRUE(mailbox.try_post(std::make_unique<int>(1)));

  auto second = std::make_unique<int>(2);

  EXPECT_FALSE(mailbox.try_post(second));
  EXPECT_NE(second, nullptr);
}

TEST(Mailbox, IsReadableExactlyWhileAValueIsInside) {
  Mailbox<int> mailbox(4);
  EXPECT_FALSE(readable(mailbox.fd()));

  EXPECT_TRUE(mailbox.try_post(7));
  EXPECT_TRUE(readable(mailbox.fd()));

  std::vector<int> taken;
  mailbox.take(taken);
  EXPECT_EQ(taken, std::vector{7});
  EXPECT_FALSE(readable(mailbox.fd()));
}

TEST(Mailbox, TakesNothingNewWhenClosedAndKeepsWhatIsInside) {
  Mailbox<int> mailbox(4);
  ASSERT_TRUE(mailbox.try_post(1));

  mailbox.close();

  std::vector<int> more{2};
  EXPECT_FALSE(mailbox.try_post(3));
  EXPECT_FALSE(mailbox.try_post_all(more));
  EXPECT_EQ(more, std::vector{2});
  std::vector<int> inside;
  mailbox.take(inside);
  EXPECT_EQ(inside, std::vector{1});
}

TEST(Mailbox, TakesAllOfABatchOrNoneOfIt) {
  Mailbox<int> mailbox(3);
  std::vector<int> two{1, 2};
  EXPECT_TRUE(mailbox.try_post_all(two));

  std::vector<int> more{3, 4};

  EXPECT_FALSE(mailbox.try_post_all(more));
  EXPECT_EQ(more.size(), 2u);
  std::vector<int> taken;
  mailbox.take(taken);
  EXPECT_EQ(taken, (std::vector{1, 2}));
}

TEST(Mailbox, LosesNothingBetweenThreads) {
  constexpr int kCount = 10'000;
  Mailbox<int> mailbox(16);
  std::jthread poster([&] {
    for (int i = 0; i < kCount;) {
      if (mailbox.try_post(i)) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });

  std::vector<int> all;
  std::vector<int> taken;
  while (all.size() < kCount) {
    pollfd waiting{mailbox.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, 10'000), 1) << "no value within 10 s after " << all.size();
    mailbox.take(taken);
    all.insert(all.end(), taken.begin(), taken.end());
  }

  for (int i = 0; i < kCount; ++i) ASSERT_EQ(all[static_cast<std::size_t>(i)], i);
}

}  // namespace
}  // namespace kvpush
