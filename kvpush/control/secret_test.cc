#include "kvpush/control/secret.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace kvpush {
namespace {

using testing::HasSubstr;

std::span<const std::byte> view_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class SecretFile : public testing::Test {
 protected:
  void write(const std::string& content, mode_t mode = 0600) {
    std::ofstream(path) << content;
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  }
  void expect_refused(const std::string& what) {
    const auto secret = Secret::read(path);
    ASSERT_FALSE(secret.has_value());
    EXPECT_EQ(secret.error().code, ErrorCode::kBadConfig);
    EXPECT_THAT(secret.error().what, HasSubstr("secret_file"));
    EXPECT_THAT(secret.error().what, HasSubstr(what));
  }
  Mac mac_of(const std::string& content) {
    write(content);
    return Secret::read(path).value()->hmac().of({view_of("text")});
  }

  const std::string path = testing::TempDir() + "kvpush_secret_" + std::to_string(getpid());
  const std::string good = std::string(kSecretBytesMin, 's');

  ~SecretFile() override { std::remove(path.c_str()); }
};

TEST_F(SecretFile, IsReadWithoutTheWhiteSpaceAtItsEnd) {
  EXPECT_EQ(mac_of(good), mac_of(good + "\n"));
  EXPECT_EQ(mac_of(good), mac_of(good + " \r\n\n"));
  EXPECT_NE(mac_of(good), mac_of(" " + good));
}

TEST_F(SecretFile, MayBeReadByItsGroup) {
  write(good, 0640);
  EXPECT_TRUE(Secret::read(path).has_value());
}

TEST_F(SecretFile, IsRefusedWhenItIsNotThere) {
  expect_refused("no such file");
}

TEST_F(SecretFile, IsRefusedWhenItIsEmpty) {
  write("\n");
  expect_refused("empty");
}

TEST_F(SecretFile, IsRefusedFromOneByteBelowTheLeastLength) {
  write(good.substr(1) + "\n");
  expect_refused("fewer than 32 bytes");
}

TEST_F(SecretFile, IsRefusedFromOneByteAboveTheGreatestLength) {
  write(std::string(kSecretBytesMax, 's'));
  EXPECT_TRUE(Secret::read(path).has_value());
  write(std::string(kSecretBytesMax + 1, 's'));
  expect_refused("more than 4096 bytes");
}

TEST_F(SecretFile, IsRefusedWhenOthersCanReadOrChangeIt) {
  for (const mode_t mode : {0604u, 0602u, 0620u, 0644u, 0666u}) {
    write(good, mode);
    expect_refused("chmod");
  }
}

TEST_F(SecretFile, IsRefusedWithoutWaitingWhenItIsAPipe) {
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_refused("no ordinary file");
}

// The second test case of RFC 4231, its key filled up with zeros to the least length, as HMAC itself does.
TEST(Hmac, IsHmacSha256) {
  std::string key = "Jefe";
  key.resize(kSecretBytesMin);
  const Mac mac = Secret::make(view_of(key))->hmac().of({view_of("what do ya "), view_of("want for nothing?")});
  std::string digits;
  for (const std::byte byte : mac) {
    for (const int half : {std::to_integer<int>(byte) >> 4, std::to_integer<int>(byte) & 15}) {
      digits += "0123456789abcdef"[half];
    }
  }
  EXPECT_EQ(digits, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hmac, BeginsAgainWithEachMac) {
  const auto secret = Secret::make(view_of(std::string(kSecretBytesMin, 's')));
  Hmac hmac = secret->hmac();
  EXPECT_EQ(hmac.of({view_of("one")}), hmac.of({view_of("one")}));
}

}  // namespace
}  // namespace kvpush
