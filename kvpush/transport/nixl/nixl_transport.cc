#include "kvpush/transport/nixl/nixl_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/transport/address.h"
#include "kvpush/transport/alarm.h"
#include "kvpush/transport/nixl/agent.h"
#include "kvpush/transport/region_table.h"

namespace kvpush {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::string_view kAddressMagic = "KVPNIX02";
constexpr std::string_view kHelloMagic = "KVPNIXHI";
// Every session has a peer, and while it is replaced its successor has one too.
constexpr std::size_t kPeersMax = 2 * kSessionsMax;
// Bytes that NIXL is asked to move for one peer at a time, since one look at a request moves all that it can: half a
// millisecond over 100 Gbit/s.
constexpr std::uint64_t kPostedBytesMax = kBatchBytesMax;
// Two requests fill that, so that one moves while the other's end is noticed.
constexpr std::uint64_t kRequestBytesMax = kPostedBytesMax / 2;
// Between two looks at a posted write: at first about what a small write takes, in the end a tenth of what
// kPostedBytesMax takes over 100 Gbit/s.
constexpr Duration kWritePauseMin = microseconds(10);
constexpr Duration kWritePauseMax = microseconds(80);
// Between two looks for the answer of a peer that is being connected, which is a round trip away.
constexpr Duration kConnectPause = milliseconds(1);
// NIXL says that an agent is gone only to those who send it something.
constexpr Duration kGreetPeriod = seconds(1);
// A session's two sides connect within some round trips; who has not after so many greetings never will.
constexpr int kGreetingsUnconnectedMax = 5;

void put_text(AddressWriter& writer, std::string_view text) {
  writer.put_sized(std::as_bytes(std::span(text)));
}

std::string read_text(AddressReader& reader) {
  const auto bytes = reader.sized();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The Transport contract over NIXL, with an agent of its own for each peer.
//
// NIXL's agents take writes from whoever has their keys, and neither forgetting a remote agent nor releasing a request
// stops a write. Destroying an agent does both: with its worker gone nothing arrives, and nothing of ours is read. So
// every peer has an agent that holds all regions, and disconnect() destroys it.
//
// Two agents that belong together find each other by address(): of two sides that connect, the first waits; its address
// then names the waiting agent and whom it waits for; the second, given that address, sends that agent a hello with its
// keys, and is sent one back. Until then batches wait.
//
// Job: gives each peer its agent, cuts batches into requests of NIXL's, asks for their state, finds out who is gone.
// Not here: which wire the plugin takes. NIXL's notifications carry only hellos and the greetings that show who lives.
// Owner: Agent.
// Thread: agent role. NIXL's own threads touch nothing of ours but registered memory.
// Invariant: a batch ends only when NIXL has ended its requests or the peer's agent is destroyed.
class NixlTransport final : public Transport {
 public:
  NixlTransport(const NixlApi& api, NixlOptions options, bool fences, std::unique_ptr<NixlAgent> first);
  ~NixlTransport() override;

  std::string_view name() const override { return "nixl"; }
  std::string wire() const override { return options_.plugin; }
  TransportFacts facts() const override { return {.disconnect_fences = fences_}; }

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
  // A part of a batch that becomes one request.
  struct Part {
    WriteToken token;
    std::vector<Descriptor> descriptors{};  // none is empty
    std::uint64_t bytes = 0;
    bool is_last = false;  // of its batch
    NixlRequest* request = nullptr;
  };
  struct Peer {
    std::unique_ptr<NixlAgent> agent{};  // null once lost
    TransportIdentity identity{};
    std::string remote{};  // the peer's agent; empty while ours waits for its hello
    RegionTable regions{};
    bool is_connected = false;  // both have each other's keys
    int greetings = 0;          // while not connected
    std::deque<Part> parts{};   // that have not ended
    std::size_t posted = 0;     // of these, the first ones
    std::uint64_t posted_bytes = 0;
    std::size_t in_flight = 0;  // batches not handed out
  };
  struct Ended {
    PeerId peer;
    WriteCompletion completion;
  };

  Result<std::unique_ptr<NixlAgent>> make_agent();
  std::vector<NixlAgent*> agents() const;
  std::vector<std::byte> hello(const NixlAgent& agent) const;
  Result<void> load(Peer& peer, const std::string& remote, std::span<const std::byte> metadata);
  void hear(PeerId id, Peer& peer);
  void answer(PeerId id, Peer& peer, const NixlNote& note);
  void post(PeerId id, Peer& peer);
  std::size_t take_ends(PeerId id, Peer& peer);
  void greet(PeerId id, Peer& peer);
  void lose(PeerId id, Peer& peer, Error error);
  // Nothing of the peer can land any more, and none of its batches reads local memory.
  void cut_off(PeerId id, Peer& peer, Error error);
  std::optional<Duration> pause() const;
  void wake_if_armed();

  const NixlApi api_;
  const NixlOptions options_;
  const bool fences_;
  const TransportIdentity identity_ = TransportIdentity::draw();
  const int epoll_;
  Alarm pause_alarm_;
  Alarm greet_alarm_;
  Duration write_pause_ = kWritePauseMin;
  bool paused_ = false;
  bool armed_ = false;
  RegionTable regions_;
  // Made at the start, to find out early what does not work; the first peer takes it.
  std::unique_ptr<NixlAgent> first_;
  std::map<PeerId, Peer> peers_;
  std::uint32_t next_peer_ = 0;
  std::vector<Ended> ended_;
  std::vector<PeerLost> lost_;  // not reported yet
};

NixlTransport::NixlTransport(const NixlApi& api, NixlOptions options, bool fences, std::unique_ptr<NixlAgent> first)
    : api_(api),
      options_(std::move(options)),
      fences_(fences),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      first_(std::move(first)) {
  KVPUSH_CHECK(epoll_ >= 0, "the process has no file descriptor left for an epoll");
  for (const int fd : {pause_alarm_.fd(), greet_alarm_.fd()}) {
    epoll_event event{.events = EPOLLIN, .data{.fd = fd}};
    KVPUSH_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0, "the kernel cannot watch one more descriptor");
  }
}

NixlTransport::~NixlTransport() {
  for (auto& [id, peer] : peers_) cut_off(id, peer, {ErrorCode::kPeerLost, "the transport is closed"});
  close(epoll_);
}

Result<RegionId> NixlTransport::register_region(std::span<std::byte> memory) {
  const Result<RegionId> id = regions_.add(reinterpret_cast<std::uint64_t>(memory.data()), memory.size());
  if (!id) return id;
  const Region region = *regions_.find(*id);
  std::vector<NixlAgent*> holders;
  Result<void> result;
  for (NixlAgent* agent : agents()) {
    result = agent->register_region(region);
    if (!result) break;
    holders.push_back(agent);
    if (hello(*agent).size() > kTransportAddressBytesMax) {
      result = fail(ErrorCode::kFull, "the keys of so many regions do not fit into a hello");
      break;
    }
  }
  if (result) return id;
  for (NixlAgent* agent : holders) agent->deregister_region(region);
  regions_.remove(*id);
  return std::unexpected(result.error());
}

Result<void> NixlTransport::deregister_region(RegionId region) {
  const Region* found = regions_.find(region);
  if (found == nullptr) return fail(ErrorCode::kBadConfig, "no such region");
  const auto reads = [found](const Part& part) { return reads_region(part.descriptors, *found); };
  const auto has_reader = [&reads](const auto& peer) { return std::ranges::any_of(peer.second.parts, reads); };
  if (std::ranges::any_of(peers_, has_reader)) return fail(ErrorCode::kBusy, "a posted write reads the region");
  for (NixlAgent* agent : agents()) agent->deregister_region(*found);
  regions_.remove(region);
  return {};
}

std::vector<std::byte> NixlTransport::address() const {
  AddressWriter address(kAddressMagic);
  put_text(address, options_.plugin);
  address.put_identity(identity_);
  put_regions(regions_, address);
  // The newest of those who wait, since it is for the caller's next step that it is needed.
  const auto newest = peers_.empty() ? peers_.end() : std::prev(peers_.end());
  const bool waits = newest != peers_.end() && newest->second.agent && newest->second.remote.empty();
  address.put_identity(waits ? newest->second.identity : TransportIdentity{});
  put_text(address, waits ? newest->second.agent->name() : std::string());
  address.put_sized(waits ? newest->second.agent->contact() : std::span<const std::byte>());
  return address.take();
}

Result<PeerId> NixlTransport::connect(std::span<const std::byte> address) {
  AddressReader reader(address, kAddressMagic);
  const std::string plugin = read_text(reader);
  Peer peer{.identity = reader.identity()};
  Result<RegionTable> regions = read_regions(reader);
  if (!regions) return std::unexpected(regions.error());
  peer.regions = std::move(*regions);
  const TransportIdentity awaited = reader.identity();
  const std::string remote = read_text(reader);
  const auto contact = reader.sized();
  if (!reader.ended()) return fail(ErrorCode::kBadMessage, "not a nixl address");
  if (plugin != options_.plugin) return fail(ErrorCode::kUnavailable, "the peer uses another plugin of NIXL");
  if (peers_.size() >= kPeersMax) return fail(ErrorCode::kFull, "too many peers");

  Result<std::unique_ptr<NixlAgent>> agent = make_agent();
  if (!agent) return std::unexpected(agent.error());
  peer.agent = std::move(*agent);
  if (awaited == identity_) {
    if (const Result<void> loaded = load(peer, remote, contact); !loaded) return std::unexpected(loaded.error());
    if (!peer.agent->send(remote, hello(*peer.agent))) {
      return fail(ErrorCode::kUnavailable, "NIXL does not reach the peer that waits");
    }
  }
  if (peers_.empty()) greet_alarm_.repeat(kGreetPeriod);
  const PeerId id{next_peer_++};
  peers_.emplace(id, std::move(peer));
  wake_if_armed();
  return id;
}

void NixlTransport::disconnect(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  cut_off(peer, found->second, {ErrorCode::kPeerLost, "the peer was disconnected here"});
  std::erase_if(lost_, [peer](const PeerLost& each) { return each.peer == peer; });
  peers_.erase(found);
  if (peers_.empty()) greet_alarm_.stop();
  wake_if_armed();
}

Result<void> NixlTransport::write(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) {
  KVPUSH_CHECK(descriptors.size() <= kBatchDescriptorsMax, "a batch has more descriptors than one batch may have");
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.agent) return fail(ErrorCode::kPeerLost, "the peer is gone");
  Peer& to = found->second;
  if (auto checked = check_descriptors(descriptors, regions_, to.regions); !checked) return checked;
  if (to.in_flight >= kBatchesInFlightMax) return fail(ErrorCode::kFull, "too many batches in flight to this peer");
  ++to.in_flight;
  Part part{.token = token};
  for (Descriptor rest : descriptors) {
    while (rest.length_bytes > 0) {
      if (part.bytes == kRequestBytesMax) to.parts.push_back(std::exchange(part, Part{.token = token}));
      const std::uint64_t length_bytes = std::min(rest.length_bytes, kRequestBytesMax - part.bytes);
      part.descriptors.push_back({rest.local, rest.remote, length_bytes});
      part.bytes += length_bytes;
      rest = {rest.local + length_bytes, rest.remote + length_bytes, rest.length_bytes - length_bytes};
    }
  }
  part.is_last = true;
  to.parts.push_back(std::move(part));
  write_pause_ = kWritePauseMin;
  post(peer, to);
  wake_if_armed();
  return {};
}

std::size_t NixlTransport::poll(TransportEvents& events) {
  armed_ = false;
  paused_ = false;
  pause_alarm_.rang();
  const bool greets = greet_alarm_.rang();
  std::size_t ends = 0;
  for (auto& [id, peer] : peers_) {
    if (greets) greet(id, peer);
    if (peer.agent && !peer.is_connected) hear(id, peer);
    ends += take_ends(id, peer);
    post(id, peer);
  }
  write_pause_ = ends > 0 ? kWritePauseMin : std::min(2 * write_pause_, kWritePauseMax);
  const std::size_t work = ended_.size() + lost_.size();
  events.lost.insert(events.lost.end(), lost_.begin(), lost_.end());
  lost_.clear();
  for (const Ended& ended : std::exchange(ended_, {})) {
    events.completions.push_back(ended.completion);
    if (const auto peer = peers_.find(ended.peer); peer != peers_.end()) --peer->second.in_flight;
  }
  return work;
}

bool NixlTransport::arm() {
  armed_ = ended_.empty() && lost_.empty();
  if (!armed_ || paused_) return armed_;
  if (const auto after = pause()) {
    pause_alarm_.set(*after);
    paused_ = true;
  }
  return armed_;
}

Result<std::unique_ptr<NixlAgent>> NixlTransport::make_agent() {
  if (first_) return std::move(first_);
  Result<std::unique_ptr<NixlAgent>> agent = NixlAgent::open(api_, options_);
  if (!agent) return agent;
  for (const Region& region : regions_.all()) {
    if (auto registered = (*agent)->register_region(region); !registered) return std::unexpected(registered.error());
  }
  return agent;
}

std::vector<NixlAgent*> NixlTransport::agents() const {
  std::vector<NixlAgent*> all;
  if (first_) all.push_back(first_.get());
  for (const auto& [id, peer] : peers_) {
    if (peer.agent) all.push_back(peer.agent.get());
  }
  return all;
}

std::vector<std::byte> NixlTransport::hello(const NixlAgent& agent) const {
  AddressWriter hello(kHelloMagic);
  hello.put_identity(identity_);
  hello.put_sized(agent.metadata());
  return hello.take();
}

Result<void> NixlTransport::load(Peer& peer, const std::string& remote, std::span<const std::byte> metadata) {
  const Result<void> loaded = peer.agent->load(metadata, remote);
  if (loaded) peer.remote = remote;
  return loaded;
}

void NixlTransport::hear(PeerId id, Peer& peer) {
  for (const NixlNote& note : peer.agent->take_notes()) {
    answer(id, peer, note);
    if (!peer.agent || peer.is_connected) return;
  }
}

// Only a hello of the expected transport, and of its agent if we know which, is heard.
void NixlTransport::answer(PeerId id, Peer& peer, const NixlNote& note) {
  AddressReader reader(note.bytes, kHelloMagic);
  const TransportIdentity identity = reader.identity();
  const auto metadata = reader.sized();
  if (!reader.ended() || identity != peer.identity) return;
  const bool is_first = peer.remote.empty();
  if (!is_first && note.from != peer.remote) return;
  if (!load(peer, note.from, metadata)) return lose(id, peer, {ErrorCode::kPeerLost, "NIXL refuses the peer's keys"});
  if (is_first && !peer.agent->send(peer.remote, hello(*peer.agent))) {
    return lose(id, peer, {ErrorCode::kPeerLost, "NIXL does not reach the peer"});
  }
  peer.is_connected = true;
}

void NixlTransport::post(PeerId id, Peer& peer) {
  while (peer.is_connected && peer.posted < peer.parts.size()) {
    Part& next = peer.parts[peer.posted];
    if (peer.posted_bytes + next.bytes > kPostedBytesMax) return;
    if (next.bytes > 0) {
      next.request = peer.agent->post(peer.remote, next.descriptors);
      if (next.request == nullptr) return lose(id, peer, {ErrorCode::kPeerLost, "NIXL has refused a write"});
    }
    peer.posted_bytes += next.bytes;
    ++peer.posted;
  }
}

// Requests to one peer end in order of posting, so that one look at the oldest tells of all.
std::size_t NixlTransport::take_ends(PeerId id, Peer& peer) {
  std::size_t ends = 0;
  for (; peer.posted > 0; ++ends) {
    const Part& oldest = peer.parts.front();
    if (oldest.request != nullptr) {
      const NixlWriteState state = peer.agent->state(oldest.request);
      if (state == NixlWriteState::kRunning) return ends;
      if (state == NixlWriteState::kFailed) {
        lose(id, peer, {ErrorCode::kPeerLost, "NIXL's endpoint has failed"});
        return ends + 1;
      }
      peer.agent->release(oldest.request);
    }
    if (oldest.is_last) ended_.push_back({id, {oldest.token, std::nullopt}});
    peer.posted_bytes -= oldest.bytes;
    --peer.posted;
    peer.parts.pop_front();
  }
  return ends;
}

void NixlTransport::greet(PeerId id, Peer& peer) {
  constexpr std::byte kGreeting{0};
  if (!peer.agent) return;
  if (peer.is_connected) peer.agent->take_notes();  // greetings pile up otherwise
  if (!peer.is_connected && ++peer.greetings > kGreetingsUnconnectedMax) {
    return lose(id, peer, {ErrorCode::kPeerLost, "the peer has not connected to us"});
  }
  if (!peer.remote.empty() && !peer.agent->send(peer.remote, {&kGreeting, 1})) {
    lose(id, peer, {ErrorCode::kPeerLost, "NIXL's endpoint has failed"});
  }
}

void NixlTransport::lose(PeerId id, Peer& peer, Error error) {
  cut_off(id, peer, error);
  lost_.push_back({id, error});
}

void NixlTransport::cut_off(PeerId id, Peer& peer, Error error) {
  for (const Part& part : std::exchange(peer.parts, {})) {
    if (part.request != nullptr) peer.agent->release(part.request);
    if (part.is_last) ended_.push_back({id, {part.token, error}});
  }
  peer.posted = 0;
  peer.agent.reset();
}

// Until poll() should look again; none while nothing but a greeting is to be done.
std::optional<Duration> NixlTransport::pause() const {
  std::optional<Duration> after;
  for (const auto& [id, peer] : peers_) {
    if (peer.posted > 0) return write_pause_;
    if (peer.agent && !peer.is_connected) after = kConnectPause;
  }
  return after;
}

// An owner that may be waiting already needs a push; one that is busy calls arm() first and hears it there.
void NixlTransport::wake_if_armed() {
  if (armed_) pause_alarm_.set({});
}

}  // namespace

Result<std::unique_ptr<Transport>> open_nixl_transport(const NixlApi& api, const NixlOptions& options, bool fences) {
  Result<std::unique_ptr<NixlAgent>> first = NixlAgent::open(api, options);
  if (!first) return std::unexpected(first.error());
  return std::make_unique<NixlTransport>(api, options, fences, std::move(*first));
}

}  // namespace kvpush
