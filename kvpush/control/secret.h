#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvpush/base/error.h"

// OpenSSL's, whose headers stay out of ours.
struct evp_mac_ctx_st;

namespace kvpush {

inline constexpr std::size_t kMacBytes = 32;  // SHA-256
using Mac = std::array<std::byte, kMacBytes>;

// Whoever sees one handshake can try secrets at home, so a secret must not be guessable: 32 bytes hold 128 random bits
// even as hexadecimal digits.
inline constexpr std::size_t kSecretBytesMin = 32;
// No key is longer; a file that is was named by mistake.
inline constexpr std::size_t kSecretBytesMax = 4096;

// HMAC-SHA256 under one key.
//
// Job: computes.
// Owner: whoever asked the Secret for it; lives no longer than that Secret.
// Thread: value type.
class Hmac {
 public:
  // Of the parts one after the other.
  Mac of(std::initializer_list<std::span<const std::byte>> parts);

 private:
  friend class Secret;
  struct Free {
    void operator()(evp_mac_ctx_st* context) const;
  };
  using Context = std::unique_ptr<evp_mac_ctx_st, Free>;

  explicit Hmac(Context keyed) : keyed_(std::move(keyed)) {}

  Context keyed_;
};

// In a time that says nothing of where they differ.
bool is_equal(const Mac& one, std::span<const std::byte> other);

// What all agents of one deployment know and nobody else.
//
// Job: is read from a file; keys HMACs.
// Owner: Control and its connections, shared.
// Thread: any (immutable).
class Secret {
 public:
  // The file's bytes without white space at their end. kBadConfig, naming what to mend: it cannot be read, is no
  // ordinary file, lets others read or change it, or is too short or too long.
  static Result<std::shared_ptr<const Secret>> read(const std::string& path);
  // `bytes` are as many as the limits above allow.
  static std::shared_ptr<const Secret> make(std::span<const std::byte> bytes);
  ~Secret();
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;

  // Under the secret itself.
  Hmac hmac() const;
  // Under a key derived from it.
  Hmac hmac(std::span<const std::byte> key) const;

 private:
  struct Library;

  explicit Secret(std::span<const std::byte> bytes);

  std::vector<std::byte> bytes_;
  std::unique_ptr<Library> library_;
};

}  // namespace kvpush
