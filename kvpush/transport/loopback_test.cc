// What LoopbackNetwork adds to the contract (tests/contract): its verbs, and use from two threads.
#include "kvpush/transport/loopback.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace kvpush {
namespace {

constexpr std::size_t kBytes = 1u << 16;

std::uint64_t address_of(const std::vector<std::byte>& memory) {
  return reinterpret_cast<std::uint64_t>(memory.data());
}

class Loopback : public testing::Test {
 protected:
  Loopback() {
    EXPECT_TRUE(writer_->register_region(source_));
    EXPECT_TRUE(target_->register_region(sink_));
    to_target_ = writer_->connect(target_->address()).value();
    to_writer_ = target_->connect(writer_->address()).value();
  }

  Result<void> write(std::uint64_t token) {
    const Descriptor whole{address_of(source_), address_of(sink_), kBytes};
    return writer_->write(to_target_, {&whole, 1}, WriteToken{token});
  }
  bool landed() const { return sink_ == source_; }

  LoopbackNetwork network_;
  std::unique_ptr<Transport> writer_ = network_.open("writer");
  std::unique_ptr<Transport> target_ = network_.open("target");
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes, std::byte{7});
  std::vector<std::byte> sink_ = std::vector<std::byte>(kBytes);
  PeerId to_target_;
  PeerId to_writer_;
  TransportEvents events_;
};

TEST_F(Loopback, HeldWritesStayPostedUntilReleased) {
  network_.hold("writer");
  ASSERT_TRUE(write(1));

  EXPECT_EQ(writer_->poll(events_), 0u);
  EXPECT_TRUE(writer_->arm()) << "it may sleep meanwhile";
  EXPECT_FALSE(landed());

  network_.release("writer");
  pollfd request{writer_->event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&request, 1, 0), 1);
  writer_->poll(events_);
  EXPECT_TRUE(landed());
  EXPECT_EQ(events_.completions.size(), 1u);
}

TEST_F(Loopback, FailsOneWriteAndNotTheNext) {
  network_.fail_next_write("writer", {ErrorCode::kTransportFailed, "as the test asked"});
  ASSERT_TRUE(write(1));

  writer_->poll(events_);

  ASSERT_EQ(events_.completions.size(), 1u);
  EXPECT_EQ(events_.completions[0].error->code, ErrorCode::kTransportFailed);
  EXPECT_FALSE(landed());
  ASSERT_TRUE(write(2));
  writer_->poll(events_);
  EXPECT_FALSE(events_.completions[1].error);
  EXPECT_TRUE(landed());
}

TEST_F(Loopback, AKilledWritersWritesNeverLand) {
  network_.hold("writer");
  ASSERT_TRUE(write(1));
  network_.kill("writer");
  network_.release("writer");

  writer_->poll(events_);

  EXPECT_FALSE(landed());
  ASSERT_EQ(events_.completions.size(), 1u);
  EXPECT_EQ(events_.completions[0].error->code, ErrorCode::kPeerLost);
  TransportEvents seen_by_target;
  target_->poll(seen_by_target);
  ASSERT_EQ(seen_by_target.lost.size(), 1u);
  EXPECT_TRUE(seen_by_target.lost[0].writer_gone);
}

TEST_F(Loopback, ATargetThatIsDestroyedIsLost) {
  ASSERT_TRUE(write(1));
  target_.reset();

  writer_->poll(events_);

  EXPECT_FALSE(landed());
  ASSERT_EQ(events_.lost.size(), 1u);
  EXPECT_TRUE(events_.lost[0].writer_gone);
  EXPECT_EQ(write(2).error().code, ErrorCode::kPeerLost);
}

TEST_F(Loopback, TellsTheWriterWhenTheTargetDisconnects) {
  EXPECT_TRUE(writer_->arm());

  target_->disconnect(to_writer_);

  EXPECT_FALSE(writer_->arm());
  writer_->poll(events_);
  ASSERT_EQ(events_.lost.size(), 1u);
  EXPECT_FALSE(events_.lost[0].writer_gone);
}

TEST_F(Loopback, FailsAWriteToAPeerThatHasNotConnected) {
  const PeerId again = writer_->connect(target_->address()).value();

  ASSERT_TRUE(writer_->write(again, {}, WriteToken{1}));

  writer_->poll(events_);
  EXPECT_EQ(events_.completions.at(0).error->code, ErrorCode::kTransportFailed);
}

TEST_F(Loopback, IsNotReachedFromAnotherNetwork) {
  LoopbackNetwork elsewhere;
  EXPECT_EQ(elsewhere.open("")->connect(target_->address()).error().code, ErrorCode::kUnavailable);
}

TEST_F(Loopback, DisconnectFencesAWriterOnAnotherThread) {
  std::atomic<int> completed = 0;
  std::jthread writing([&] {
    // Until the write after the disconnect is refused.
    for (std::uint64_t token = 0; write(token); ++token) {
      writer_->poll(events_);
      completed += static_cast<int>(events_.completions.size());
      events_.clear();
    }
  });
  while (completed < 3) std::this_thread::yield();

  target_->disconnect(to_writer_);
  std::ranges::fill(sink_, std::byte{0});
  writing.join();

  EXPECT_TRUE(std::ranges::all_of(sink_, [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace
}  // namespace kvpush
