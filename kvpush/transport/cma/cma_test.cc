// What cma adds to the contract (tests/contract): whom it refuses, and memory that is not there.
#include "kvpush/transport/cma/cma.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "kvpush/transport/address.h"
#include "kvpush/transport/cma/process.h"

namespace kvpush {
namespace {

// Where the fields of a cma address lie behind its magic.
constexpr std::size_t kBootId = 0;
constexpr std::size_t kNamespaceInode = 36 + 8;
constexpr std::size_t kPid = kNamespaceInode + 8;
constexpr std::size_t kStarted = kPid + 8;
constexpr std::size_t kCell = kStarted + 8;

class Cma : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_cma();
    if (!opened) GTEST_SKIP() << opened.error().what;
    transport_ = std::move(*opened);
  }

  // Our own address with another byte at `field`, and a right checksum.
  std::vector<std::byte> address_with(std::size_t field, std::byte changed) const {
    const std::vector<std::byte> good = transport_->address();
    std::vector<std::byte> body(good.begin() + kAddressMagicBytes, good.end() - sizeof(std::uint64_t));
    body[field] ^= changed;
    AddressWriter address("KVPCMA01");
    address.put_bytes(body);
    return address.take();
  }
  Error refusal(const std::vector<std::byte>& address) const {
    const auto connected = transport_->connect(address);
    return connected ? Error{ErrorCode::kBusy, "it was not refused"} : connected.error();
  }

  std::unique_ptr<Transport> transport_;
};

TEST_F(Cma, RefusesAPeerOfAnotherHostNamespaceOrTime) {
  const std::vector<std::byte> addresses[] = {address_with(kBootId, std::byte{1}),
                                              address_with(kNamespaceInode, std::byte{1}),
                                              address_with(kStarted, std::byte{1})};
  const std::string reasons[] = {"host", "namespace", "another one has its pid"};

  for (std::size_t i = 0; i < 3; ++i) {
    const Error error = refusal(addresses[i]);
    EXPECT_EQ(error.code, ErrorCode::kUnavailable);
    EXPECT_NE(std::string(error.what).find(reasons[i]), std::string::npos) << error.what;
  }
}

TEST_F(Cma, RefusesAPeerWhoseProbeCellIsNotThere) {
  EXPECT_EQ(refusal(address_with(kCell + 7, std::byte{0x10})).code, ErrorCode::kUnavailable);
  EXPECT_EQ(refusal(address_with(kCell, std::byte{8})).code, ErrorCode::kUnavailable) << "something else is there";
}

TEST_F(Cma, RefusesAPidThatCannotBe) {
  EXPECT_EQ(refusal(address_with(kPid + 7, std::byte{1})).code, ErrorCode::kBadMessage);
}

TEST_F(Cma, FailsAWriteIntoMemoryThatIsNotMappedAndWritesOnTo) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* pages =
      static_cast<std::byte*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(pages), MAP_FAILED);
  std::vector<std::byte> source(2 * page, std::byte{7});
  ASSERT_TRUE(transport_->register_region({pages, 2 * page}));
  ASSERT_TRUE(transport_->register_region(source));
  const PeerId itself = transport_->connect(transport_->address()).value();
  munmap(pages + page, page);
  const auto from = reinterpret_cast<std::uint64_t>(source.data());
  const auto to = reinterpret_cast<std::uint64_t>(pages);
  const Descriptor half_mapped{from, to, 2 * page};
  const Descriptor mapped{from, to, page};

  ASSERT_TRUE(transport_->write(itself, {&half_mapped, 1}, WriteToken{1}));
  ASSERT_TRUE(transport_->write(itself, {&mapped, 1}, WriteToken{2}));
  TransportEvents events;
  while (transport_->poll(events) > 0) {
  }

  ASSERT_EQ(events.completions.size(), 2u);
  EXPECT_EQ(events.completions[0].error->code, ErrorCode::kTransportFailed);
  EXPECT_FALSE(events.completions[1].error);
  EXPECT_TRUE(std::all_of(pages, pages + page, [](std::byte byte) { return byte == std::byte{7}; }));
  munmap(pages, page);
}

TEST(StartTicks, AreThoseOfTheVeryProcess) {
  const auto own = start_ticks(getpid());
  ASSERT_TRUE(own);

  EXPECT_EQ(start_ticks(getpid()).value(), *own);
  EXPECT_TRUE(PeerProcess::open(getpid(), *own));
  EXPECT_FALSE(PeerProcess::open(getpid(), *own + 1));
  EXPECT_FALSE(start_ticks(0));

  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto without_descriptor = PeerProcess::open(getpid(), *own);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(without_descriptor.error().code, ErrorCode::kFull) << "nothing is said of the peer";
}

}  // namespace
}  // namespace kvpush
