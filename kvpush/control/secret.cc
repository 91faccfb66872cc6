#include "kvpush/control/secret.h"

#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "kvpush/base/check.h"

namespace kvpush {
namespace {

std::unexpected<Error> refuse(const char* what) {
  return fail(ErrorCode::kBadConfig, what);
}

// Closes what it opened.
//
// Job: owns a file descriptor for the length of a function.
// Thread: value type.
class File {
 public:
  // O_NONBLOCK: a pipe of that name must not hold up the start.
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }

 private:
  int fd_;
};

// Bytes that are overwritten when they are no longer needed.
//
// Job: keeps a secret out of freed memory.
// Thread: value type.
class Wiped {
 public:
  explicit Wiped(std::size_t size) : bytes_(size) {}
  ~Wiped() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }
  Wiped(const Wiped&) = delete;
  Wiped& operator=(const Wiped&) = delete;

  std::span<std::byte> bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

bool is_space(std::byte byte) {
  return std::string_view(" \t\r\n").contains(static_cast<char>(byte));
}

}  // namespace

// A library context of our own: OpenSSL's default one reads the machine's configuration, which may load modules built
// against another libcrypto into the engine's process.
struct Secret::Library {
  Library() { KVPUSH_CHECK(mac != nullptr, "OpenSSL has HMAC"); }
  ~Library() {
    EVP_MAC_free(mac);
    OSSL_LIB_CTX_free(context);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  OSSL_LIB_CTX* context = OSSL_LIB_CTX_new();
  EVP_MAC* mac = EVP_MAC_fetch(context, "HMAC", nullptr);
};

void Hmac::Free::operator()(evp_mac_ctx_st* context) const {
  EVP_MAC_CTX_free(context);
}

Mac Hmac::of(std::initializer_list<std::span<const std::byte>> parts) {
  Mac mac;
  std::size_t size = 0;
  // Without a key it begins again under the one it has.
  bool is_done = EVP_MAC_init(keyed_.get(), nullptr, 0, nullptr) == 1;
  for (const auto part : parts) {
    is_done =
        is_done && EVP_MAC_update(keyed_.get(), reinterpret_cast<const unsigned char*>(part.data()), part.size()) == 1;
  }
  is_done =
      is_done && EVP_MAC_final(keyed_.get(), reinterpret_cast<unsigned char*>(mac.data()), &size, mac.size()) == 1;
  KVPUSH_CHECK(is_done && size == mac.size(), "HMAC-SHA256 of bytes in memory cannot fail");
  return mac;
}

bool is_equal(const Mac& one, std::span<const std::byte> other) {
  return other.size() == one.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Result<std::shared_ptr<const Secret>> Secret::read(const std::string& path) {
  const File file(path);
  struct stat status{};
  if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) {
    return refuse("secret_file: there is no such file, or this process may not read it");
  }
  if (!S_ISREG(status.st_mode)) return refuse("secret_file: this is no ordinary file");
  // A group may read it: orchestrators hand out secrets that way.
  if ((status.st_mode & (S_IRWXO | S_IWGRP)) != 0) {
    return refuse("secret_file: others can read or change the file; chmod 600 (or 640) it");
  }
  Wiped content(kSecretBytesMax + 1);
  std::size_t size = 0;
  for (ssize_t count = 1; count > 0 && size < content.bytes().size(); size += static_cast<std::size_t>(count)) {
    count = ::read(file.fd(), content.bytes().data() + size, content.bytes().size() - size);
    if (count < 0) return refuse("secret_file: the file cannot be read");
  }
  std::span<const std::byte> bytes = content.bytes().first(size);
  while (!bytes.empty() && is_space(bytes.back())) bytes = bytes.first(bytes.size() - 1);
  if (bytes.empty()) return refuse("secret_file: the file is empty; `openssl rand -hex 32` makes a secret");
  if (bytes.size() < kSecretBytesMin) {
    return refuse("secret_file: fewer than 32 bytes can be guessed; `openssl rand -hex 32` makes a secret");
  }
  if (bytes.size() > kSecretBytesMax) return refuse("secret_file: more than 4096 bytes; this is no secret");
  return make(bytes);
}

std::shared_ptr<const Secret> Secret::make(std::span<const std::byte> bytes) {
  KVPUSH_CHECK(bytes.size() >= kSecretBytesMin && bytes.size() <= kSecretBytesMax, "a secret keeps its limits");
  return std::shared_ptr<const Secret>(new Secret(bytes));
}

Secret::Secret(std::span<const std::byte> bytes)
    : bytes_(bytes.begin(), bytes.end()), library_(std::make_unique<Library>()) {}

Secret::~Secret() {
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

Hmac Secret::hmac() const {
  return hmac(bytes_);
}

Hmac Secret::hmac(std::span<const std::byte> key) const {
  Hmac::Context keyed(EVP_MAC_CTX_new(library_->mac));
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                               OSSL_PARAM_construct_end()};
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
  KVPUSH_CHECK(keyed != nullptr && EVP_MAC_init(keyed.get(), bytes, key.size(), params) == 1, "OpenSSL has SHA-256");
  return Hmac(std::move(keyed));
}

}  // namespace kvpush
