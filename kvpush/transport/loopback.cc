#include "kvpush/transport/loopback.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "kvpush/base/limits.h"
#include "kvpush/base/mailbox.h"
#include "kvpush/transport/address.h"
#include "kvpush/transport/copy_queue.h"
#include "kvpush/transport/region_table.h"

namespace kvpush {
namespace {

constexpr std::string_view kMagic = "KVPLOOP1";

// One transport as its peers see it.
struct LoopbackEndpoint {
  std::string name;
  std::uint64_t number = 0;
  bool alive = true;
  bool held = false;
  std::optional<Error> next_write_error;
  WakeFd wake;
};

// Two endpoints that have connected, or are about to connect, to each other. Writes pass while both are connected.
struct Link {
  std::array<std::shared_ptr<LoopbackEndpoint>, 2> ends;
  std::array<bool, 2> connected{};
  bool closed = false;
};

}  // namespace

// Everything that the endpoints share; `mutex` guards all of it, links and endpoints included.
struct LoopbackNetwork::State {
  std::mutex mutex;
  std::vector<std::shared_ptr<LoopbackEndpoint>> endpoints;  // open ones, oldest first
  std::vector<std::shared_ptr<Link>> links;                  // not closed
  std::uint64_t next_number = 0;

  LoopbackEndpoint* newest(std::string_view name);
  void wake_all();
  void close(Link& link);
};

namespace {

// One endpoint of a LoopbackNetwork.
//
// Job: the Transport contract by memcpy within the process.
// Owner: Agent.
// Thread: agent role; what it shares with other endpoints is guarded by the network's mutex.
class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackNetwork::State> network, std::shared_ptr<LoopbackEndpoint> self)
      : network_(std::move(network)), self_(std::move(self)) {}
  ~LoopbackTransport() override;

  std::string_view name() const override { return "loopback"; }
  std::string wire() const override { return "memcpy"; }
  TransportFacts facts() const override { return {.disconnect_fences = true, .writes_die_with_writer = true}; }

  Result<RegionId> register_region(std::span<std::byte> memory) override;
  Result<void> deregister_region(RegionId region) override;
  std::vector<std::byte> address() const override;
  Result<PeerId> connect(std::span<const std::byte> address) override;
  void disconnect(PeerId peer) override;
  Result<void> write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) override;
  std::size_t poll(TransportEvents& events) override;
  int event_fd() const override { return self_->wake.fd(); }
  bool arm() override;

 private:
  struct Peer {
    RegionTable regions;
    std::shared_ptr<Link> link{};
    std::size_t side = 0;  // ours
    bool lost = false;     // and reported
  };

  // These need the network's mutex.
  std::shared_ptr<Link> link_to(const std::shared_ptr<LoopbackEndpoint>& target, std::size_t& side);
  bool gone(const Peer& peer) const;
  std::size_t report_losses(TransportEvents& events);
  std::size_t copy_turn();

  const std::shared_ptr<LoopbackNetwork::State> network_;
  const std::shared_ptr<LoopbackEndpoint> self_;
  RegionTable regions_;
  std::map<PeerId, Peer> peers_;
  std::uint32_t next_peer_ = 0;
  CopyQueue queue_;
};

}  // namespace

LoopbackNetwork::LoopbackNetwork() : state_(std::make_shared<State>()) {}

std::unique_ptr<Transport> LoopbackNetwork::open(std::string name) {
  auto endpoint = std::make_shared<LoopbackEndpoint>();
  endpoint->name = std::move(name);
  const std::lock_guard lock(state_->mutex);
  endpoint->number = state_->next_number++;
  state_->endpoints.push_back(endpoint);
  return std::make_unique<LoopbackTransport>(state_, std::move(endpoint));
}

void LoopbackNetwork::hold(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  if (LoopbackEndpoint* endpoint = state_->newest(name)) endpoint->held = true;
}

void LoopbackNetwork::release(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  if (LoopbackEndpoint* endpoint = state_->newest(name)) {
    endpoint->held = false;
    endpoint->wake.raise();
  }
}

void LoopbackNetwork::fail_next_write(std::string_view name, Error error) {
  const std::lock_guard lock(state_->mutex);
  if (LoopbackEndpoint* endpoint = state_->newest(name)) endpoint->next_write_error = error;
}

void LoopbackNetwork::kill(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  if (LoopbackEndpoint* endpoint = state_->newest(name)) {
    endpoint->alive = false;
    state_->wake_all();
  }
}

LoopbackEndpoint* LoopbackNetwork::State::newest(std::string_view name) {
  const auto found = std::find_if(endpoints.rbegin(), endpoints.rend(),
                                  [name](const auto& endpoint) { return endpoint->name == name; });
  return found == endpoints.rend() ? nullptr : found->get();
}

void LoopbackNetwork::State::wake_all() {
  for (const auto& endpoint : endpoints) endpoint->wake.raise();
}

void LoopbackNetwork::State::close(Link& link) {
  link.closed = true;
  for (const auto& end : link.ends) end->wake.raise();
  std::erase_if(links, [&link](const auto& other) { return other.get() == &link; });
}

LoopbackTransport::~LoopbackTransport() {
  const std::lock_guard lock(network_->mutex);
  self_->alive = false;
  std::erase(network_->endpoints, self_);
  std::erase_if(network_->links, [this](const auto& link) { return link->ends[0] == self_ || link->ends[1] == self_; });
  network_->wake_all();
}

Result<RegionId> LoopbackTransport::register_region(std::span<std::byte> memory) {
  return regions_.add(reinterpret_cast<std::uint64_t>(memory.data()), memory.size());
}

Result<void> LoopbackTransport::deregister_region(RegionId region) {
  return queue_.remove(region, regions_);
}

std::vector<std::byte> LoopbackTransport::address() const {
  AddressWriter address(kMagic);
  address.put_u64(static_cast<std::uint64_t>(getpid()));
  address.put_u64(reinterpret_cast<std::uint64_t>(network_.get()));
  address.put_u64(self_->number);
  put_regions(regions_, address);
  return address.take();
}

Result<PeerId> LoopbackTransport::connect(std::span<const std::byte> address) {
  AddressReader reader(address, kMagic);
  const bool our_process = reader.u64() == static_cast<std::uint64_t>(getpid());
  const bool our_network = reader.u64() == reinterpret_cast<std::uint64_t>(network_.get());
  const std::uint64_t number = reader.u64();
  Result<RegionTable> regions = read_regions(reader);
  if (!regions) return std::unexpected(regions.error());
  if (!reader.ended()) return fail(ErrorCode::kBadMessage, "a loopback address is too long");
  if (!our_process || !our_network) return fail(ErrorCode::kUnavailable, "the peer is not in this loopback network");

  const std::lock_guard lock(network_->mutex);
  const auto target = std::ranges::find(network_->endpoints, number, &LoopbackEndpoint::number);
  if (target == network_->endpoints.end() || !(*target)->alive) {
    return fail(ErrorCode::kUnavailable, "the peer is gone");
  }
  Peer peer{std::move(*regions)};
  peer.link = link_to(*target, peer.side);
  peer.link->connected[peer.side] = true;
  const PeerId id{next_peer_++};
  peers_.emplace(id, std::move(peer));
  return id;
}

void LoopbackTransport::disconnect(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  const std::lock_guard lock(network_->mutex);
  network_->close(*found->second.link);
  queue_.fail_all(peer, {ErrorCode::kPeerLost, "the endpoint was closed here"});
  peers_.erase(found);
  self_->wake.raise();
}

Result<void> LoopbackTransport::write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return fail(ErrorCode::kPeerLost, "no such peer");
  const std::lock_guard lock(network_->mutex);
  if (gone(found->second)) return fail(ErrorCode::kPeerLost, "the peer is gone");
  if (auto checked = check_descriptors(descriptors, regions_, found->second.regions); !checked) return checked;
  self_->wake.raise();
  if (self_->next_write_error) return queue_.post_failed(peer, token, *std::exchange(self_->next_write_error, {}));
  const Link& link = *found->second.link;
  if (!link.connected[0] || !link.connected[1]) {
    return queue_.post_failed(peer, token, {ErrorCode::kTransportFailed, "written before the peer had connected"});
  }
  return queue_.post(peer, descriptors, token);
}

std::size_t LoopbackTransport::poll(TransportEvents& events) {
  const std::lock_guard lock(network_->mutex);
  self_->wake.clear();
  std::size_t work = report_losses(events);
  work += copy_turn();
  return work + queue_.hand_out(events.completions);
}

bool LoopbackTransport::arm() {
  const std::lock_guard lock(network_->mutex);
  const bool copies_wait = queue_.has_copies() && !self_->held;
  const bool losses_wait =
      std::ranges::any_of(peers_, [this](const auto& peer) { return !peer.second.lost && gone(peer.second); });
  return !copies_wait && !losses_wait && !queue_.has_ends();
}

// The oldest open link on which we have a free side towards `target`; otherwise a new one.
std::shared_ptr<Link> LoopbackTransport::link_to(const std::shared_ptr<LoopbackEndpoint>& target, std::size_t& side) {
  for (const auto& link : network_->links) {
    for (side = 0; side < 2; ++side) {
      if (link->ends[side] == self_ && link->ends[1 - side] == target && !link->connected[side]) return link;
    }
  }
  side = 0;
  auto link = std::make_shared<Link>();
  link->ends = {self_, target};
  network_->links.push_back(link);
  return link;
}

bool LoopbackTransport::gone(const Peer& peer) const {
  return peer.link->closed || !self_->alive || !peer.link->ends[1 - peer.side]->alive;
}

std::size_t LoopbackTransport::report_losses(TransportEvents& events) {
  std::size_t count = 0;
  for (auto& [id, peer] : peers_) {
    if (peer.lost || !gone(peer)) continue;
    peer.lost = true;
    ++count;
    const Error error{ErrorCode::kPeerLost, "the peer has closed its endpoint or is gone"};
    queue_.fail_all(id, error);
    events.lost.push_back({id, error, !peer.link->ends[1 - peer.side]->alive});
  }
  return count;
}

std::size_t LoopbackTransport::copy_turn() {
  if (self_->held) return 0;
  std::size_t slices = 0;
  for (std::uint64_t turn_bytes = 0; turn_bytes < kTurnBytesMax; ++slices) {
    const std::optional<Slice> slice = queue_.next();
    if (!slice) break;
    std::uint64_t moved_bytes = 0;
    for (const Descriptor& piece : slice->pieces) {
      // Source and destination may be the same memory when an endpoint is its own peer.
      std::memmove(reinterpret_cast<void*>(piece.remote), reinterpret_cast<const void*>(piece.local),
                   piece.length_bytes);
      moved_bytes += piece.length_bytes;
    }
    queue_.advance(slice->peer, moved_bytes);
    turn_bytes += moved_bytes;
  }
  return slices;
}

}  // namespace kvpush
