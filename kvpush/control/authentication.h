// How two agents prove to each other that they know one secret, and to what that binds the frames after it
// (docs/authentication.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/control/secret.h"

namespace kvpush {

// Which of the two began the connection. Each proves another text, so that no proof can be sent back to its maker.
enum class Side : std::uint8_t { kConnector, kAcceptor };

// Random, new for each connection and side: an old conversation fits no new one.
inline constexpr std::size_t kNonceBytes = 32;
using Nonce = std::array<std::byte, kNonceBytes>;

// Begins every part of a handshake: four bytes that no frame's length can be, a version, a verdict, two zeros.
inline constexpr std::size_t kHandshakeHeaderBytes = 8;
// The largest part after its header: a nonce and a proof.
inline constexpr std::size_t kHandshakePartBytesMax = kNonceBytes + kMacBytes;

// What a header says beside "here is my part": why its sender ends the connection. A hint for the peer's log; nothing
// is decided on it, since anybody can send it.
enum class Verdict : std::uint8_t { kGoesOn = 0, kSecretNeeded = 1, kNoSecret = 2, kWrongSecret = 3 };

// A part that carries nothing but its sender's verdict.
std::array<std::byte, kHandshakeHeaderBytes> handshake_header(Verdict verdict);
// Whether bytes where a frame's length is expected begin a handshake.
bool is_handshake(std::span<const std::byte, 4> length);

// The MACs of the frames in one direction.
//
// Job: binds each frame to its session, its direction and its place: one that was made elsewhere, changed, repeated,
//      moved or left out fits no more, nor does any after it.
// Owner: a connection, one for each direction.
// Thread: value type.
class FrameMac {
 public:
  explicit FrameMac(Hmac hmac) : hmac_(std::move(hmac)) {}

  // Of the next frame: its length as four bytes, and its body.
  Mac next(std::span<const std::byte> length, std::span<const std::byte> body);

 private:
  Hmac hmac_;
  std::uint64_t frame_count_ = 0;
};

// One side of the proof, before any frame:
//
//   connector                          acceptor
//     header, nonce              ->
//                                <-      header, nonce, HMAC(secret, "acceptor" and both nonces)
//     header, HMAC(secret, "connector" and both nonces)   ->
//
// Job: says what to send, how much to read, and whether the peer knows the secret; derives both directions' keys.
// Not here: sockets, time limits.
// Owner: a connection, until its first frame.
// Thread: value type.
// Invariant: is_proven() only after the peer's proof over this side's own nonce was right.
class Handshake {
 public:
  // `nonce` was never used before.
  Handshake(std::shared_ptr<const Secret> secret, Side side, const Nonce& nonce);

  // What this side says before it has heard anything; of an acceptor nothing.
  std::vector<std::byte> greeting() const;
  // How many bytes on() takes next.
  std::size_t wanted_bytes() const;
  // Takes exactly wanted_bytes() and appends what is to be sent, which after an error is the last word to the peer.
  // kUnauthenticated: the peer does not know the secret, or says that this side does not. kBadMessage: it speaks
  // something else.
  Result<void> on(std::span<const std::byte> bytes, std::vector<std::byte>& out);

  bool is_proven() const { return state_ == State::kProven; }
  // Once each, when it is proven.
  FrameMac sending() const { return frame_mac(side_); }
  FrameMac receiving() const { return frame_mac(other_side()); }

 private:
  enum class State : std::uint8_t { kHeader, kPart, kProven };

  Result<void> on_header(std::span<const std::byte> header, std::vector<std::byte>& out);
  Result<void> on_part(std::span<const std::byte> part, std::vector<std::byte>& out);
  std::size_t part_bytes() const;
  Side other_side() const { return side_ == Side::kConnector ? Side::kAcceptor : Side::kConnector; }
  Mac proof_of(Side side) const;
  FrameMac frame_mac(Side from) const;
  const Nonce& nonce_of(Side side) const { return side == side_ ? own_ : *peer_; }

  std::shared_ptr<const Secret> secret_;
  Side side_;
  Nonce own_;
  std::optional<Nonce> peer_;
  State state_ = State::kHeader;
};

}  // namespace kvpush
