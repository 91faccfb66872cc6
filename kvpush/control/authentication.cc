#include "kvpush/control/authentication.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"

namespace kvpush {
namespace {

constexpr std::string_view kMagic = "kvPS";
constexpr std::byte kVersion{1};
static_assert((std::size_t{'S'} << 24) > kFrameBytesMax, "no frame can begin like a handshake");

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Texts of one length and with the version in them: no two purposes, sides or versions share a MAC.
std::string_view proof_text(Side side) {
  return side == Side::kConnector ? "kvpush 1 proof of connector" : "kvpush 1 proof of acceptor ";
}
std::string_view key_text(Side from) {
  return from == Side::kConnector ? "kvpush 1 keys of connector " : "kvpush 1 keys of acceptor  ";
}

template <class Bytes>
void append(std::vector<std::byte>& out, const Bytes& bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::uint32_t read_length(std::span<const std::byte> bytes) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < 4; ++i) length |= std::to_integer<std::uint32_t>(bytes[i]) << (8 * i);
  return length;
}

}  // namespace

std::array<std::byte, kHandshakeHeaderBytes> handshake_header(Verdict verdict) {
  std::array<std::byte, kHandshakeHeaderBytes> header{};
  std::ranges::copy(bytes_of(kMagic), header.begin());
  header[4] = kVersion;
  header[5] = static_cast<std::byte>(verdict);
  return header;
}

bool is_handshake(std::span<const std::byte, 4> length) {
  return std::ranges::equal(length, bytes_of(kMagic));
}

Mac FrameMac::next(std::span<const std::byte> length, std::span<const std::byte> body) {
  std::array<std::byte, 8> place;
  for (std::size_t i = 0; i < place.size(); ++i) place[i] = static_cast<std::byte>(frame_count_ >> (8 * i));
  ++frame_count_;
  return hmac_.of({place, length, body});
}

Handshake::Handshake(std::shared_ptr<const Secret> secret, Side side, const Nonce& nonce)
    : secret_(std::move(secret)), side_(side), own_(nonce) {}

std::vector<std::byte> Handshake::greeting() const {
  std::vector<std::byte> out;
  if (side_ == Side::kAcceptor) return out;
  append(out, handshake_header(Verdict::kGoesOn));
  append(out, own_);
  return out;
}

std::size_t Handshake::wanted_bytes() const {
  switch (state_) {
    case State::kHeader: return kHandshakeHeaderBytes;
    case State::kPart: return part_bytes();
    case State::kProven: return 0;
  }
  return 0;
}

Result<void> Handshake::on(std::span<const std::byte> bytes, std::vector<std::byte>& out) {
  KVPUSH_CHECK(!is_proven() && bytes.size() == wanted_bytes(), "a handshake is given what it asked for");
  return state_ == State::kHeader ? on_header(bytes, out) : on_part(bytes, out);
}

Result<void> Handshake::on_header(std::span<const std::byte> header, std::vector<std::byte>& out) {
  if (!is_handshake(header.first<4>())) {
    if (read_length(header) > kFrameBytesMax) return fail(ErrorCode::kBadMessage, "the peer does not speak kvpush");
    append(out, handshake_header(Verdict::kSecretNeeded));
    return fail(ErrorCode::kUnauthenticated, "the peer has no secret_file, this side has one");
  }
  if (header[4] != kVersion) return fail(ErrorCode::kVersionMismatch, "the peer proves its secret in another way");
  switch (static_cast<Verdict>(header[5])) {
    case Verdict::kGoesOn: break;
    case Verdict::kSecretNeeded:
      // Said to those who do not greet; this side did.
      return fail(ErrorCode::kBadMessage, "the peer asks for a proof that was begun");
    case Verdict::kNoSecret: return fail(ErrorCode::kUnauthenticated, "the peer has no secret_file, this side has one");
    case Verdict::kWrongSecret:
      return fail(ErrorCode::kUnauthenticated, "the peer says that its secret_file has another secret");
    default: return fail(ErrorCode::kBadMessage, "the peer's handshake has an unknown verdict");
  }
  if (header[6] != std::byte{0} || header[7] != std::byte{0}) {
    return fail(ErrorCode::kBadMessage, "the peer's handshake has bytes where none may be");
  }
  state_ = State::kPart;
  return {};
}

Result<void> Handshake::on_part(std::span<const std::byte> part, std::vector<std::byte>& out) {
  if (!peer_) {
    Nonce& nonce = peer_.emplace();
    std::ranges::copy(part.first(kNonceBytes), nonce.begin());
    part = part.subspan(kNonceBytes);
    if (nonce == own_) return fail(ErrorCode::kUnauthenticated, "the peer repeats what it was sent");
  }
  if (part.empty()) {
    append(out, handshake_header(Verdict::kGoesOn));
    append(out, own_);
    append(out, proof_of(side_));
    state_ = State::kHeader;
    return {};
  }
  if (!is_equal(proof_of(other_side()), part)) {
    append(out, handshake_header(Verdict::kWrongSecret));
    return fail(ErrorCode::kUnauthenticated, "the peer's secret_file has another secret");
  }
  if (side_ == Side::kConnector) {
    append(out, handshake_header(Verdict::kGoesOn));
    append(out, proof_of(side_));
  }
  state_ = State::kProven;
  return {};
}

std::size_t Handshake::part_bytes() const {
  if (side_ == Side::kConnector) return kNonceBytes + kMacBytes;
  return peer_ ? kMacBytes : kNonceBytes;
}

Mac Handshake::proof_of(Side side) const {
  return secret_->hmac().of({bytes_of(proof_text(side)), nonce_of(Side::kConnector), nonce_of(Side::kAcceptor)});
}

FrameMac Handshake::frame_mac(Side from) const {
  KVPUSH_CHECK(is_proven(), "frames come after the proof");
  const Mac key = secret_->hmac().of({bytes_of(key_text(from)), nonce_of(Side::kConnector), nonce_of(Side::kAcceptor)});
  return FrameMac(secret_->hmac(key));
}

}  // namespace kvpush
