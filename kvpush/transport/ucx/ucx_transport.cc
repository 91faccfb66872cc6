#include "kvpush/transport/ucx/ucx_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/transport/address.h"
#include "kvpush/transport/alarm.h"
#include "kvpush/transport/ucx/memory.h"
#include "kvpush/transport/ucx/peer.h"
#include "kvpush/transport/ucx/worker.h"

namespace kvpush {
namespace {

constexpr std::string_view kMagic = "KVPUCX02";
// Shared memory and self refuse peer-error mode; nobody has seen whether destroying a worker fences dc, which is named
// only where it can be there, as UCX warns of names that mean nothing to it.
constexpr const char* kFenceableTransports = "^sm,self";
constexpr const char* kFenceableTransportsOfRdma = "^sm,self,dc";
constexpr const char* kRdmaDevices = "/sys/class/infiniband";
// Every session has a peer, and while it is replaced its successor has one too.
constexpr std::size_t kPeersMax = 2 * kSessionsMax;
// A session's two sides connect within some round trips; those that have not met after so many periods never will.
constexpr Duration kMeetingPeriod = std::chrono::seconds(1);
constexpr int kMeetingPeriodsMax = 5;
// Descriptors looked at in one turn; those beyond stay readable for the next.
constexpr std::size_t kReadyMax = 64;
// In place of a peer's number.
constexpr std::uint64_t kPeriodMark = ~std::uint64_t{0};
constexpr std::uint64_t kPushMark = kPeriodMark - 1;

// The Transport contract over UCX, with a worker of its own for each peer.
//
// Two workers that belong together find each other by address(): of two sides that connect, the first waits; its
// address then names the waiting worker and whom it waits for; the second, given that address, connects to that worker
// and sends it a hello with its own, and is sent one back. Until then batches wait.
//
// Job: gives each peer its worker, polls those that have something to do, gives up peers that never come.
// Not here: what is done with a peer (UcxPeer).
// Owner: Agent.
// Thread: agent role.
// Invariant: a peer that is not awake is armed: its worker's descriptor tells when it has something to do.
class UcxTransport final : public Transport {
 public:
  UcxTransport(std::unique_ptr<UcxContext> context, std::unique_ptr<UcxWorker> first);
  ~UcxTransport() override;

  std::string_view name() const override { return "ucx"; }
  std::string wire() const override;
  TransportFacts facts() const override;

  Result<RegionId> register_region(std::span<std::byte> memory) override;
  Result<void> deregister_region(RegionId region) override;
  std::vector<std::byte> address() const override;
  Result<PeerId> connect(std::span<const std::byte> address) override;
  void disconnect(PeerId peer) override;
  Result<void> write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) override;
  std::size_t poll(TransportEvents& events) override;
  int event_fd() const override { return epoll_; }
  bool arm() override;

 private:
  struct Peer {
    std::unique_ptr<UcxPeer> way;
    TransportIdentity identity;  // of the peer's transport
    bool is_awake = true;
    int periods = 0;  // that it has not been met
  };

  std::vector<std::byte> address(const TransportIdentity& awaited, std::span<const std::byte> waiting) const;
  void watch(int descriptor, std::uint64_t mark);
  // Wakes the peers whose workers have something to do. True when a period has passed.
  bool wake_ready();
  std::size_t give_up_strangers(TransportEvents& events);
  void lose(PeerId id, Peer& peer, const Error& error, TransportEvents& events);
  void close(Peer& peer, const Error& error);
  void wake_if_armed();

  const std::unique_ptr<UcxContext> context_;
  const TransportIdentity identity_ = TransportIdentity::draw();
  const int epoll_;
  Alarm period_;  // rings while somebody has not been met
  bool period_on_ = false;
  Alarm push_;  // wakes an owner that waits
  bool armed_ = false;
  UcxMemory memory_;
  // Made at the start, to find out early what does not work; the first peer takes it.
  std::unique_ptr<UcxWorker> first_;
  const std::vector<std::byte> sample_address_;  // those of other workers are as long
  std::map<PeerId, Peer> peers_;
  std::uint32_t next_peer_ = 0;
  std::vector<WriteCompletion> ended_;  // of peers that were disconnected
};

UcxTransport::UcxTransport(std::unique_ptr<UcxContext> context, std::unique_ptr<UcxWorker> first)
    : context_(std::move(context)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      memory_(*context_),
      first_(std::move(first)),
      sample_address_(first_->address().begin(), first_->address().end()) {
  KVPUSH_CHECK(epoll_ >= 0, "the process has no file descriptor left for an epoll");
  watch(period_.fd(), kPeriodMark);
  watch(push_.fd(), kPushMark);
}

UcxTransport::~UcxTransport() {
  ::close(epoll_);
}

std::string UcxTransport::wire() const {
  std::set<std::string> wires;
  for (const auto& [id, peer] : peers_) wires.insert(peer.way->wires().begin(), peer.way->wires().end());
  std::string text;
  for (const std::string& wire : wires) text += (text.empty() ? "" : ",") + wire;
  return text.empty() ? "not connected" : text;
}

// They hold for every wire that a peer is greeted over, so that they may be asked for before the first.
TransportFacts UcxTransport::facts() const {
  return {.disconnect_fences = true, .writes_die_with_writer = false, .target_must_progress = true};
}

Result<RegionId> UcxTransport::register_region(std::span<std::byte> memory) {
  const Result<RegionId> id = memory_.add(memory);
  if (!id || address(identity_, sample_address_).size() <= kTransportAddressBytesMax) return id;
  memory_.remove(*id);
  return fail(ErrorCode::kFull, "the keys of so many regions do not fit into an address");
}

Result<void> UcxTransport::deregister_region(RegionId region) {
  const Region* found = memory_.regions().find(region);
  if (found == nullptr) return fail(ErrorCode::kBadConfig, "no such region");
  const auto reads = [found](const auto& peer) { return peer.second.way->reads(*found); };
  if (std::ranges::any_of(peers_, reads)) return fail(ErrorCode::kBusy, "a posted write reads the region");
  memory_.remove(region);
  return {};
}

std::vector<std::byte> UcxTransport::address() const {
  // The newest of those who wait, since it is for the caller's next step that it is needed.
  if (peers_.empty()) return address({}, {});
  const Peer& newest = std::prev(peers_.end())->second;
  return newest.way->waits() ? address(newest.identity, newest.way->worker_address()) : address({}, {});
}

std::vector<std::byte> UcxTransport::address(const TransportIdentity& awaited,
                                             std::span<const std::byte> waiting) const {
  AddressWriter address(kMagic);
  address.put_identity(identity_);
  memory_.put(address);
  address.put_identity(awaited);
  address.put_sized(waiting);
  return address.take();
}

Result<PeerId> UcxTransport::connect(std::span<const std::byte> address) {
  AddressReader reader(address, kMagic);
  const TransportIdentity identity = reader.identity();
  Result<RegionTable> regions = read_regions(reader);
  if (!regions) return std::unexpected(regions.error());
  std::vector<std::vector<std::byte>> keys;
  while (keys.size() < regions->all().size()) {
    const auto key = reader.sized();
    keys.emplace_back(key.begin(), key.end());
  }
  const TransportIdentity awaited = reader.identity();
  const auto waiting = reader.sized();
  if (!reader.ended()) return fail(ErrorCode::kBadMessage, "not a ucx address");
  if (peers_.size() >= kPeersMax) return fail(ErrorCode::kFull, "too many peers");

  Result<std::unique_ptr<UcxWorker>> worker = first_ ? std::move(first_) : UcxWorker::open(*context_);
  if (!worker) return std::unexpected(worker.error());
  Peer peer{std::make_unique<UcxPeer>(memory_, std::move(*worker), std::move(*regions), std::move(keys)), identity};
  if (awaited == identity_) {
    if (auto greeted = peer.way->greet(waiting); !greeted) return std::unexpected(greeted.error());
  }
  const PeerId id{next_peer_++};
  watch(peer.way->event_fd(), id.value);
  peers_.emplace(id, std::move(peer));
  if (!std::exchange(period_on_, true)) period_.repeat(kMeetingPeriod);
  wake_if_armed();
  return id;
}

void UcxTransport::disconnect(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  close(found->second, {ErrorCode::kPeerLost, "the peer was disconnected here"});
  found->second.way->take_ends(ended_);
  peers_.erase(found);
  wake_if_armed();
}

Result<void> UcxTransport::write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) {
  KVPUSH_CHECK(descriptors.size() <= kBatchDescriptorsMax, "a batch has more descriptors than one batch may have");
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return fail(ErrorCode::kPeerLost, "the peer is gone");
  if (auto written = found->second.way->write(descriptors, token); !written) return written;
  found->second.is_awake = true;
  wake_if_armed();
  return {};
}

std::size_t UcxTransport::poll(TransportEvents& events) {
  armed_ = false;
  const bool period_ended = wake_ready();
  std::size_t awake = 0;
  for (const auto& [id, peer] : peers_) awake += peer.is_awake ? 1 : 0;
  const std::size_t share = std::max<std::size_t>(1, kTurnWorkMax / std::max<std::size_t>(1, awake));
  std::size_t work = ended_.size();
  events.completions.insert(events.completions.end(), ended_.begin(), ended_.end());
  ended_.clear();
  for (auto& [id, peer] : peers_) {
    if (!peer.is_awake) continue;
    std::size_t moved = peer.way->is_open() ? peer.way->progress(share) : 0;
    if (peer.way->is_open() && peer.way->failure()) {
      lose(id, peer, *peer.way->failure(), events);
      ++moved;
    }
    moved += peer.way->take_ends(events.completions);
    peer.is_awake = moved > 0 || !peer.way->arm();
    work += moved;
  }
  if (period_ended) work += give_up_strangers(events);
  return work;
}

bool UcxTransport::arm() {
  armed_ = ended_.empty() && std::ranges::none_of(peers_, [](const auto& peer) { return peer.second.is_awake; });
  return armed_;
}

void UcxTransport::watch(int descriptor, std::uint64_t mark) {
  epoll_event event{.events = EPOLLIN, .data{.u64 = mark}};
  KVPUSH_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0,
               "the kernel cannot watch one more descriptor");
}

bool UcxTransport::wake_ready() {
  std::array<epoll_event, kReadyMax> ready{};
  const int count = epoll_wait(epoll_, ready.data(), ready.size(), 0);
  bool period_ended = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t mark = ready[static_cast<std::size_t>(i)].data.u64;
    if (mark == kPushMark) {
      push_.rang();
    } else if (mark == kPeriodMark) {
      period_ended = period_.rang();
    } else {
      peers_.at(PeerId{static_cast<std::uint32_t>(mark)}).is_awake = true;
    }
  }
  return period_ended;
}

// After a turn, which hears most of those who came while this process did not run.
std::size_t UcxTransport::give_up_strangers(TransportEvents& events) {
  std::size_t given_up = 0;
  bool is_any_left = false;
  for (auto& [id, peer] : peers_) {
    if (!peer.way->is_open() || peer.way->has_met()) continue;
    if (++peer.periods <= kMeetingPeriodsMax) {
      is_any_left = true;
      continue;
    }
    lose(id, peer, {ErrorCode::kPeerLost, "the peer has not connected to us"}, events);
    peer.way->take_ends(events.completions);
    ++given_up;
  }
  if (!is_any_left) period_.stop();
  period_on_ = is_any_left;
  return given_up;
}

void UcxTransport::lose(PeerId id, Peer& peer, const Error& error, TransportEvents& events) {
  close(peer, error);
  events.lost.push_back({id, error, false});
}

void UcxTransport::close(Peer& peer, const Error& error) {
  if (!peer.way->is_open()) return;
  // Told to, since a child of this process may hold the descriptor open.
  epoll_ctl(epoll_, EPOLL_CTL_DEL, peer.way->event_fd(), nullptr);
  peer.way->close(error);
}

// An owner that may be waiting already needs a push; one that is busy calls arm() first and hears it there.
void UcxTransport::wake_if_armed() {
  if (armed_) push_.set({});
}

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options) {
  const bool rdma = access(kRdmaDevices, F_OK) == 0;
  const char* fenceable = rdma ? kFenceableTransportsOfRdma : kFenceableTransports;
  auto context = UcxContext::open(options.transports.empty() ? fenceable : options.transports.c_str());
  if (!context) return std::unexpected(context.error());
  auto first = UcxWorker::open(**context);
  if (!first) return std::unexpected(first.error());
  return std::make_unique<UcxTransport>(std::move(*context), std::move(*first));
}

}  // namespace kvpush
