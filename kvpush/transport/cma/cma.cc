#include "kvpush/transport/cma/cma.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/mailbox.h"
#include "kvpush/transport/address.h"
#include "kvpush/transport/cma/process.h"
#include "kvpush/transport/copy_queue.h"
#include "kvpush/transport/region_table.h"

namespace kvpush {
namespace {

constexpr std::string_view kMagic = "KVPCMA01";
constexpr std::size_t kBootIdBytes = 36;
// Every session has a peer, and while it is replaced its successor has one too.
constexpr std::size_t kPeersMax = 2 * kSessionsMax;
// Exits taken in one turn; the rest stay readable.
constexpr int kExitsPerTurn = 16;
// No peer has this number.
constexpr std::uint64_t kWakeKey = ~std::uint64_t{0};

// What a peer reads, and writes back unchanged, to learn whether the kernel lets it and whether we are who we said.
struct ProbeCell {
  std::uint64_t magic = 0;
  std::uint64_t pid = 0;
  std::uint64_t started_ticks = 0;
  bool operator==(const ProbeCell&) const = default;
};

constexpr std::uint64_t kProbeMagic = 0x6b76707573682121;

// One epoll descriptor.
//
// Job: owns it.
// Thread: agent role.
class Epoll {
 public:
  Epoll() : fd_(epoll_create1(EPOLL_CLOEXEC)) {
    KVPUSH_CHECK(fd_ >= 0, "the process has no file descriptor left for an epoll");
  }
  ~Epoll() { close(fd_); }
  Epoll(const Epoll&) = delete;
  Epoll& operator=(const Epoll&) = delete;

  int fd() const { return fd_; }
  void watch(int fd, std::uint64_t key);
  void forget(int fd);

 private:
  int fd_;
};

// The Transport contract over process_vm_writev.
//
// Job: copies posted batches in poll(), slice by slice, into the address space of live peers.
// Not here: fencing. A target cannot stop a live writer; it can only see that one is gone.
// Owner: Agent.
// Thread: agent role.
// Invariant: a slice is copied only to a process that was just seen to be the one connected to.
class CmaTransport final : public Transport {
 public:
  CmaTransport(PidSpace space, const ProbeCell& self);

  std::string_view name() const override { return "cma"; }
  std::string wire() const override { return "process_vm_writev"; }
  TransportFacts facts() const override { return {.writes_die_with_writer = true}; }

  Result<RegionId> register_region(std::span<std::byte> memory) override;
  Result<void> deregister_region(RegionId region) override;
  std::vector<std::byte> address() const override;
  Result<PeerId> connect(std::span<const std::byte> address) override;
  void disconnect(PeerId peer) override;
  Result<void> write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) override;
  std::size_t poll(TransportEvents& events) override;
  int event_fd() const override { return epoll_.fd(); }
  bool arm() override;

 private:
  struct Peer {
    PeerProcess process;
    RegionTable regions;
    bool lost = false;
  };

  void wake_if_armed();
  std::size_t take_exits(TransportEvents& events);
  std::size_t copy_turn();
  void copy(const Slice& slice, std::uint64_t& turn_bytes);

  const PidSpace space_;
  ProbeCell cell_;  // peers read and write it through the kernel
  Epoll epoll_;
  WakeFd wake_;
  bool armed_ = false;
  RegionTable regions_;
  std::map<PeerId, Peer> peers_;
  std::uint32_t next_peer_ = 0;
  CopyQueue queue_;
  std::array<iovec, kSlicePiecesMax> local_;
  std::array<iovec, kSlicePiecesMax> remote_;
};

Result<void> allow_peers();
Result<void> probe(pid_t pid, std::uint64_t cell_address, const ProbeCell& expected);
Error error_of_copy(int error);

}  // namespace

Result<std::unique_ptr<Transport>> open_cma() {
  Result<PidSpace> space = own_pid_space();
  if (!space) return std::unexpected(space.error());
  const auto ticks = start_ticks(getpid());
  if (!ticks) return std::unexpected(ticks.error());
  if (auto allowed = allow_peers(); !allowed) return std::unexpected(allowed.error());
  const ProbeCell self{kProbeMagic, static_cast<std::uint64_t>(getpid()), *ticks};
  auto transport = std::make_unique<CmaTransport>(std::move(*space), self);
  // To itself, so that a kernel or a container without the calls is found here and not at the first session.
  const auto address = transport->address();
  const auto itself = transport->connect(address);
  if (!itself) return std::unexpected(itself.error());
  transport->disconnect(*itself);
  return transport;
}

namespace {

void Epoll::watch(int fd, std::uint64_t key) {
  epoll_event event{.events = EPOLLIN, .data{.u64 = key}};
  KVPUSH_CHECK(epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &event) == 0, "the kernel cannot watch one more descriptor");
}

void Epoll::forget(int fd) {
  epoll_ctl(fd_, EPOLL_CTL_DEL, fd, nullptr);
}

CmaTransport::CmaTransport(PidSpace space, const ProbeCell& self) : space_(std::move(space)), cell_(self) {
  epoll_.watch(wake_.fd(), kWakeKey);
}

Result<RegionId> CmaTransport::register_region(std::span<std::byte> memory) {
  return regions_.add(reinterpret_cast<std::uint64_t>(memory.data()), memory.size());
}

Result<void> CmaTransport::deregister_region(RegionId region) {
  return queue_.remove(region, regions_);
}

std::vector<std::byte> CmaTransport::address() const {
  AddressWriter address(kMagic);
  address.put_bytes(std::as_bytes(std::span(space_.boot_id)));
  address.put_u64(space_.namespace_device);
  address.put_u64(space_.namespace_inode);
  address.put_u64(cell_.pid);
  address.put_u64(cell_.started_ticks);
  address.put_u64(reinterpret_cast<std::uint64_t>(&cell_));
  put_regions(regions_, address);
  return address.take();
}

Result<PeerId> CmaTransport::connect(std::span<const std::byte> address) {
  AddressReader reader(address, kMagic);
  const auto boot_id = reader.bytes(kBootIdBytes);
  PidSpace space{.boot_id{reinterpret_cast<const char*>(boot_id.data()), boot_id.size()}};
  space.namespace_device = reader.u64();
  space.namespace_inode = reader.u64();
  const ProbeCell expected{kProbeMagic, reader.u64(), reader.u64()};
  const std::uint64_t cell_address = reader.u64();
  Result<RegionTable> regions = read_regions(reader);
  if (!regions) return std::unexpected(regions.error());
  if (!reader.ended() || !std::in_range<pid_t>(expected.pid) || expected.pid == 0) {
    return fail(ErrorCode::kBadMessage, "not a cma address");
  }
  if (space.boot_id != space_.boot_id) return fail(ErrorCode::kUnavailable, "the peer runs on another host");
  if (space != space_) {
    return fail(ErrorCode::kUnavailable, "the peer runs in another pid namespace (containers must share one)");
  }
  if (peers_.size() >= kPeersMax) return fail(ErrorCode::kFull, "too many peers");

  const pid_t pid = static_cast<pid_t>(expected.pid);
  Result<PeerProcess> process = PeerProcess::open(pid, expected.started_ticks);
  if (!process) return std::unexpected(process.error());
  if (auto probed = probe(pid, cell_address, expected); !probed) return std::unexpected(probed.error());
  const PeerId id{next_peer_++};
  const auto& peer = peers_.emplace(id, Peer{std::move(*process), std::move(*regions)}).first->second;
  epoll_.watch(peer.process.fd(), id.value);
  return id;
}

void CmaTransport::disconnect(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  if (!found->second.lost) epoll_.forget(found->second.process.fd());
  queue_.fail_all(peer, {ErrorCode::kPeerLost, "the endpoint was closed here"});
  peers_.erase(found);
  wake_if_armed();
}

Result<void> CmaTransport::write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.lost) return fail(ErrorCode::kPeerLost, "the peer is gone");
  if (auto checked = check_descriptors(descriptors, regions_, found->second.regions); !checked) return checked;
  if (auto posted = queue_.post(peer, descriptors, token); !posted) return posted;
  wake_if_armed();
  return {};
}

std::size_t CmaTransport::poll(TransportEvents& events) {
  armed_ = false;
  std::size_t work = take_exits(events);
  work += copy_turn();
  return work + queue_.hand_out(events.completions);
}

bool CmaTransport::arm() {
  armed_ = !queue_.has_copies() && !queue_.has_ends();
  return armed_;
}

// An owner that may be waiting already needs a push; one that is busy calls arm() first and hears it there.
void CmaTransport::wake_if_armed() {
  if (armed_) wake_.raise();
}

std::size_t CmaTransport::take_exits(TransportEvents& events) {
  std::array<epoll_event, kExitsPerTurn> ready;
  const int count = epoll_wait(epoll_.fd(), ready.data(), kExitsPerTurn, 0);
  std::size_t exits = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = ready[static_cast<std::size_t>(i)].data.u64;
    if (key == kWakeKey) {
      wake_.clear();
      continue;
    }
    const PeerId id{static_cast<std::uint32_t>(key)};
    Peer& peer = peers_.at(id);
    peer.lost = true;
    epoll_.forget(peer.process.fd());
    const Error error{ErrorCode::kPeerLost, "the peer process is gone"};
    queue_.fail_all(id, error);
    events.lost.push_back({id, error, true});
    ++exits;
  }
  return exits;
}

std::size_t CmaTransport::copy_turn() {
  std::size_t slices = 0;
  for (std::uint64_t turn_bytes = 0; turn_bytes < kTurnBytesMax; ++slices) {
    const std::optional<Slice> slice = queue_.next();
    if (!slice) break;
    copy(*slice, turn_bytes);
  }
  return slices;
}

void CmaTransport::copy(const Slice& slice, std::uint64_t& turn_bytes) {
  const PeerProcess& process = peers_.at(slice.peer).process;
  for (std::size_t i = 0; i < slice.pieces.size(); ++i) {
    const Descriptor& piece = slice.pieces[i];
    local_[i] = {reinterpret_cast<void*>(piece.local), piece.length_bytes};
    remote_[i] = {reinterpret_cast<void*>(piece.remote), piece.length_bytes};
  }
  // The event with writer_gone follows when the pidfd is taken from epoll.
  if (process.gone()) return queue_.fail_all(slice.peer, {ErrorCode::kPeerLost, "the peer process is gone"});
  const ssize_t moved_bytes =
      process_vm_writev(process.pid(), local_.data(), slice.pieces.size(), remote_.data(), slice.pieces.size(), 0);
  if (moved_bytes < 0) return queue_.fail_oldest(slice.peer, error_of_copy(errno));
  // Fewer than asked for when the kernel met a page that is not mapped: the next slice begins there and fails.
  turn_bytes += static_cast<std::uint64_t>(moved_bytes);
  queue_.advance(slice.peer, static_cast<std::uint64_t>(moved_bytes));
}

Result<void> allow_peers() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (!(file >> scope) || scope != 1) return {};  // no yama, or a scope that the probe finds out about
  if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) != 0) {
    return fail(ErrorCode::kUnavailable, "yama does not let this process allow its peers (PR_SET_PTRACER)");
  }
  return {};
}

Result<void> probe(pid_t pid, std::uint64_t cell_address, const ProbeCell& expected) {
  ProbeCell found;
  const iovec local{&found, sizeof found};
  const iovec remote{reinterpret_cast<void*>(cell_address), sizeof found};
  const auto size = static_cast<ssize_t>(sizeof found);
  const bool was_read = process_vm_readv(pid, &local, 1, &remote, 1, 0) == size;
  if (was_read && found != expected) return fail(ErrorCode::kUnavailable, "the peer is not the process it says");
  if (was_read && process_vm_writev(pid, &local, 1, &remote, 1, 0) == size) return {};
  switch (errno) {
    case EPERM:
      return fail(ErrorCode::kUnavailable,
                  "the kernel forbids access to the peer: another user, yama ptrace_scope, or a container without "
                  "CAP_SYS_PTRACE");
    case ENOSYS: return fail(ErrorCode::kUnavailable, "the kernel has no process_vm_writev");
    case ESRCH: return fail(ErrorCode::kUnavailable, "the peer process is gone");
    default: return fail(ErrorCode::kUnavailable, "the peer's probe cell cannot be read and written");
  }
}

Error error_of_copy(int error) {
  switch (error) {
    case ESRCH: return {ErrorCode::kPeerLost, "the peer process is exiting"};
    case EPERM: return {ErrorCode::kTransportFailed, "the kernel no longer allows access to the peer"};
    case EFAULT: return {ErrorCode::kTransportFailed, "memory of the write is not mapped here or at the peer"};
    case ENOMEM: return {ErrorCode::kTransportFailed, "the kernel has no memory for the copy"};
    default: return {ErrorCode::kTransportFailed, "process_vm_writev failed"};
  }
}

}  // namespace
}  // namespace kvpush
