// Consumers that say anything to a producer, in every state of a session, while its engine, its transport and the
// network do what they may.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/base/overloaded.h"
#include "kvpush/protocol/producer.h"
#include "tests/fuzz/choices.h"
#include "tests/fuzz/machine_stage.h"
#include "tests/fuzz/messages.h"

namespace kvpush::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kConnectionsMax = 8;
// Longer than any limit of the protocol's options.
constexpr Duration kLongAfter = 1h;

const std::vector<TransportView>& transports() {
  static const std::vector<TransportView> kTransports = {
      {.name = "fencing", .address = {std::byte{1}}, .disconnect_fences = true}, {.name = "plain", .address = {}}};
  return kTransports;
}

bool is_inside(const RankLayout& layout, std::uint64_t address, std::uint64_t length) {
  return std::ranges::any_of(layout.planes, [&](const Plane& plane) {
    const MemoryRange memory = extent(plane);
    return address >= memory.base && length <= memory.size_bytes && address - memory.base <= memory.size_bytes - length;
  });
}

// A producer and all that is around it.
class Stage final : public MachineStage<Producer> {
 public:
  explicit Stage(std::span<const std::uint8_t> input)
      : MachineStage(input, Producer({"P", {1}, 0, 1}, own_layout(), transports(), {})) {}

 private:
  // What the consumer at the other end of a connection has said of itself.
  struct Connection {
    RankName from;
    RankLayout layout;
  };
  struct Write {
    WriteToken token;
    Peer peer;
  };

  void step() override {
    switch (choices_.below(16)) {
      case 0:
      case 1: return accept();
      case 2: return greet();
      case 3: return assign_shares();
      case 4:
      case 5: return hear(any_message(choices_));
      case 6: return hear(any_register());
      case 7: return hear(Renewed{now_ - Duration(choices_.number<std::uint32_t>())});
      case 8: return send();
      case 9: return tell();
      case 10:
      case 11: return pass(Duration(1ms) * (1u << choices_.below(18)));
      case 12:
      case 13: return end_write();
      case 14: return lose();
      default: return choices_.rarely(16) ? machine_.drain(now_, out_) : set_full();
    }
  }

  void accept() {
    if (connections_.size() >= kConnectionsMax) return;
    ++connection_last_.value;
    connections_.emplace(connection_last_, Connection{});
    machine_.on_accepted(connection_last_, now_);
  }

  ConnectionId any_connection() {
    if (connections_.empty()) return {};
    return std::next(connections_.begin(), choices_.below(connections_.size()))->first;
  }

  void hear(const Message& said) { hear(any_connection(), said); }

  void hear(ConnectionId id, const Message& said) {
    const auto found = connections_.find(id);
    const auto message = heard(said);
    if (found == connections_.end() || !message) return;
    if (const Hello* hello = std::get_if<Hello>(&*message)) found->second = {hello->from, hello->layout};
    machine_.on(id, *message, now_, out_);
  }

  void greet() {
    const std::uint32_t rank_count = 1 + choices_.below(2);
    const std::uint32_t rank = choices_.below(rank_count);
    hear(Hello{kProtocolVersion,
               {"C", {1u + choices_.below(3)}, rank, rank_count},
               {choices_.number<std::uint64_t>()},
               small_layout(std::uint64_t{2} << 32, rank, rank_count),
               {{"fencing", {}}, {"plain", {}}}});
  }

  void assign_shares() {
    const ConnectionId id = any_connection();
    const auto found = connections_.find(id);
    if (found == connections_.end() || !validate(found->second.layout)) return;
    auto shares = assign(found->second.layout, found->second.from.rank, std::array{own_layout()});
    if (!shares) return;
    hear(id, Assign{std::move(shares->front()), choices_.flip() ? "plain" : "fencing"});
  }

  Message any_register() {
    return Register{{++registration_last_ - choices_.below(2)},
                    any_transfer_id(choices_),
                    any_tokens(choices_),
                    any_tables(choices_)};
  }

  void send() {
    const RequestId request(1, static_cast<char>('A' + choices_.below(8)));
    // The engine's own tables are right; they may have holes.
    const std::uint32_t tokens = choices_.below(40);
    BlockTable table{{{{choices_.below(32)}, 12}}};
    if (choices_.rarely(8)) table.spans.front() = {kAbsentBlock, 12};
    if (machine_.on(Send{request, any_transfer_id(choices_), tokens, {table}}, now_, out_)) {
      KVPUSH_CHECK(requests_.insert(request).second, "a request of a name that is held is refused");
    }
  }

  void tell() {
    switch (choices_.below(3)) {
      case 0: return machine_.on(Cancel{RequestId(1, static_cast<char>('A' + choices_.below(8)))}, now_, out_);
      case 1: return machine_.on(Withdraw{any_transfer_id(choices_)}, now_, out_);
      default: return machine_.on(Admit{any_transfer_id(choices_)}, out_);
    }
  }

  void end_write() {
    if (writes_.empty()) return;
    const auto write = writes_.begin() + choices_.below(std::min<std::size_t>(writes_.size(), 256));
    const WriteToken token = write->token;
    const bool is_cut = gone_.contains(write->peer);
    writes_.erase(write);
    std::optional<Error> error;
    if (is_cut || choices_.rarely(8)) error = Error{ErrorCode::kTransportFailed, "it could not be written"};
    machine_.on_written(token, error, now_, out_);
  }

  void lose() {
    if (choices_.flip() && !peers_.empty()) {
      const Peer peer = std::next(peers_.begin(), choices_.below(std::min<std::size_t>(peers_.size(), 256)))->first;
      return machine_.on_peer_lost(peer, now_, out_);
    }
    const ConnectionId id = any_connection();
    if (connections_.erase(id) > 0) machine_.on_closed(id, now_, out_);
  }

  void set_full() { is_full_ = !is_full_; }

  // Posts what the machine gives first.
  void look() override {
    while (!is_full_ || choices_.rarely(4)) {
      const std::optional<Batch> batch = machine_.next_batch(now_);
      if (!batch) break;
      check(*batch);
      if (is_full_) {
        machine_.put_back(batch->token);
        break;
      }
      writes_.push_back({batch->token, batch->peer});
    }
    check_gauges();
  }

  void perform(const Action& action) override {
    std::visit(Overloaded{[&](const SendMessage& a) { on_said(a); },
                          [&](const CloseConnection& a) {
                            KVPUSH_CHECK(connections_.erase(a.connection) == 1, "a connection is closed once");
                          },
                          [&](const ConnectPeer& a) { connect(a); },
                          [&](const DisconnectPeer& a) {
                            KVPUSH_CHECK(peers_.contains(a.peer), "only what was connected is disconnected");
                            gone_.insert(a.peer);
                          },
                          [&](const TellEngine& a) {
                            const SendEnded& ended = std::get<SendEnded>(a.event);
                            KVPUSH_CHECK(requests_.erase(ended.request) == 1, "a request ends once");
                          },
                          [](const Note&) {},
                          [](const auto&) { KVPUSH_CHECK(false, "a producer neither resolves nor dials"); }},
               action);
  }

  void on_said(const SendMessage& said) {
    KVPUSH_CHECK(connections_.contains(said.connection), "nothing is said on a connection that is gone");
    check_sendable(said.message);
    const Refused* refused = std::get_if<Refused>(&said.message);
    if (refused == nullptr || refused->code != ErrorCode::kBadMessage) return;
    KVPUSH_CHECK(machine_.counters().bad_messages == ++bad_messages_, "each message that is refused is counted");
  }

  void connect(const ConnectPeer& action) {
    switch (choices_.below(6)) {
      case 0: return fail_to_connect(action.connection, ErrorCode::kUnavailable);
      case 1: return fail_to_connect(action.connection, ErrorCode::kTransportFailed);
      default: break;
    }
    const Peer peer{action.transport, {++peer_last_}};
    const auto connection = connections_.find(action.connection);
    peers_.emplace(peer, connection == connections_.end() ? RankLayout{} : connection->second.layout);
    machine_.on_peer(action.connection, peer, now_, out_);
  }

  void fail_to_connect(ConnectionId connection, ErrorCode code) {
    machine_.on_peer(connection, fail(code, "it cannot be connected to"), now_, out_);
  }

  void check(const Batch& batch) const {
    KVPUSH_CHECK(!gone_.contains(batch.peer), "nothing is posted to a peer that is gone");
    KVPUSH_CHECK(!batch.descriptors.empty() && batch.descriptors.size() <= kBatchDescriptorsMax, "batches are bounded");
    for (const Descriptor& piece : batch.descriptors) {
      KVPUSH_CHECK(is_inside(own_layout(), piece.local, piece.length_bytes), "only the cache is read");
      KVPUSH_CHECK(is_inside(peers_.at(batch.peer), piece.remote, piece.length_bytes),
                   "only what the consumer said is its cache is written");
    }
  }

  void check_gauges() const {
    const ProducerGauges gauges = machine_.gauges();
    KVPUSH_CHECK(gauges.sessions == connections_.size(), "a session lives as long as its connection");
    KVPUSH_CHECK(gauges.requests == requests_.size(), "a request is held until it ends");
    KVPUSH_CHECK(gauges.writes_in_flight == writes_.size(), "a write is in flight until it ends");
    KVPUSH_CHECK(writes_.size() <= peers_.size() * kBatchesInFlightMax, "writes of a peer are bounded");
    KVPUSH_CHECK(gauges.registrations <= registration_last_ + 1024, "a registration is made by a message");
  }

  // Whatever happened, when everybody has gone nothing is left of it.
  void end() override {
    is_full_ = false;
    while (!connections_.empty()) {
      const ConnectionId id = connections_.begin()->first;
      connections_.erase(id);
      machine_.on_closed(id, now_, out_);
      settle();
    }
    while (!writes_.empty()) {
      const WriteToken token = writes_.back().token;
      writes_.pop_back();
      machine_.on_written(token, Error{ErrorCode::kPeerLost, "the end"}, now_, out_);
      settle();
    }
    pass(kLongAfter);
    KVPUSH_CHECK(requests_.empty() && machine_.idle(), "every request ends");
    KVPUSH_CHECK(machine_.gauges().transfers == 0, "no transfer is kept for ever");
    KVPUSH_CHECK(machine_.gauges().expected == 0, "nobody is left who expects one");
    KVPUSH_CHECK(!machine_.deadline(), "nothing waits any more");
    KVPUSH_CHECK(std::ranges::all_of(peers_, [&](const auto& peer) { return gone_.contains(peer.first); }),
                 "every peer is disconnected");
  }

  std::map<ConnectionId, Connection> connections_;
  ConnectionId connection_last_;
  std::map<Peer, RankLayout> peers_;  // ever connected, with the cache that lies behind
  std::uint32_t peer_last_ = 0;
  std::set<Peer> gone_;  // disconnected
  std::vector<Write> writes_;
  std::set<RequestId> requests_;
  std::uint64_t registration_last_ = 0;
  std::uint64_t bad_messages_ = 0;
  bool is_full_ = false;
};

}  // namespace
}  // namespace kvpush::testing

// Shows E3.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvpush::testing::Stage(std::span(data, size)).run();
  return 0;
}
