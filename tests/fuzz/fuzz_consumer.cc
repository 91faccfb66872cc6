// Producers that say anything to a consumer, in every state of a session, while its engine, its transports, the
// directories and the network do what they may.
#include <algorithm>
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
#include "kvpush/protocol/consumer.h"
#include "tests/fuzz/choices.h"
#include "tests/fuzz/machine_stage.h"
#include "tests/fuzz/messages.h"

namespace kvpush::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kDirectories = 3;
// Longer than any limit of the protocol's options.
constexpr Duration kLongAfter = 1h;

const std::vector<TransportView>& transports() {
  static const std::vector<TransportView> kTransports = {
      {.name = "fencing", .address = {std::byte{1}}, .disconnect_fences = true},
      {.name = "plain", .address = {}, .writes_die_with_writer = true}};
  return kTransports;
}

// What all producer ranks together deliver for a request with these tokens.
std::uint64_t bytes_of(TokenRange tokens) {
  std::uint64_t token_bytes = 0;
  for (const Plane& plane : own_layout().planes) token_bytes += plane.heads.count * plane.inner_bytes;
  return std::uint64_t{tokens.end - tokens.first} * token_bytes;
}

// A consumer and all that is around it.
class Stage final : public MachineStage<Consumer> {
 public:
  explicit Stage(std::span<const std::uint8_t> input)
      : MachineStage(input, Consumer({"C", {7}, 0, 1}, own_layout(), transports(), {}, Random(1))) {}

 private:
  struct Connection {
    Endpoint directory;
    std::uint32_t rank = 0;
    bool is_connected = false;
    std::vector<Register> registered{};
  };

  void step() override {
    switch (choices_.below(16)) {
      case 0:
      case 1: return receive();
      case 2: return machine_.on(Abandon{any_request()}, now_, out_);
      case 3: return choices_.flip() ? await() : decline();
      case 4: return resolve();
      case 5: return connect_control();
      case 6: return welcome();
      case 7: return hear(choices_.rarely(8) ? Message{Goodbye{}} : Message{Assigned{}});
      case 8:
      case 9: return hear(any_message(choices_));
      case 10:
      case 11: return answer();
      case 12:
      case 13: return pass(Duration(1ms) * (1u << choices_.below(18)));
      case 14: return lose();
      default:
        if (choices_.rarely(64)) machine_.drain(now_, out_);
    }
  }

  Endpoint any_directory() { return {"p", static_cast<std::uint16_t>(1 + choices_.below(kDirectories))}; }
  RequestId any_request() { return RequestId(1, static_cast<char>('A' + choices_.below(8))); }

  ConnectionId any_connection() {
    if (connections_.empty()) return {};
    return std::next(connections_.begin(), choices_.below(std::min<std::size_t>(connections_.size(), 256)))->first;
  }

  void receive() {
    const RequestId request = any_request();
    TokenRange tokens = any_tokens(choices_);
    BlockTables tables = {BlockTable{{{{choices_.below(32)}, 12}}}};
    if (choices_.rarely(8)) tables = any_tables(choices_);
    if (machine_.on(Receive{request, any_transfer_id(choices_), any_directory(), tokens, tables}, now_, out_)) {
      KVPUSH_CHECK(requests_.insert(request).second, "a request of a name that waits is refused");
    }
  }

  void decline() {
    const TransferId transfer_id = any_transfer_id(choices_);
    machine_.on(Decline{transfer_id, any_directory()}, now_, out_);
  }

  void await() {
    const TransferId transfer_id = any_transfer_id(choices_);
    const Endpoint directory = any_directory();
    ++awaits_;
    awaited_.emplace(directory, transfer_id);
    machine_.on(Await{transfer_id, directory}, now_, out_);
  }

  void resolve() {
    if (resolving_.empty()) return;
    const Endpoint directory = resolving_.front();
    resolving_.erase(resolving_.begin());
    if (choices_.rarely(8)) {
      return machine_.on_resolved(directory, fail(any_code(choices_), "no answer"), now_, out_);
    }
    ProducerEngine engine{"P", {directory.port + 16u * choices_.below(2)}, {}};
    if (choices_.rarely(16)) engine.incarnation = {1};
    const std::size_t ranks = choices_.rarely(16) ? choices_.byte() : 1 + choices_.below(2);
    for (std::size_t rank = 0; rank < ranks; ++rank) engine.ranks.push_back({"p", 80});
    engines_[directory] = engine;
    machine_.on_resolved(directory, engine, now_, out_);
  }

  void connect_control() {
    const ConnectionId id = any_connection();
    const auto found = connections_.find(id);
    if (found == connections_.end() || std::exchange(found->second.is_connected, true)) return;
    machine_.on_connected(id, now_, out_);
  }

  void hear(const Message& said) { hear(any_connection(), said); }

  void hear(ConnectionId id, const Message& said) {
    const auto found = connections_.find(id);
    const auto message = heard(said);
    if (found == connections_.end() || !found->second.is_connected || !message) return;
    machine_.on(id, *message, now_, out_);
  }

  void welcome() {
    const ConnectionId id = any_connection();
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    const ProducerEngine& engine = engines_.at(found->second.directory);
    const auto ranks = static_cast<std::uint32_t>(engine.ranks.size());
    const std::uint32_t rank = found->second.rank;
    std::vector<TransportOffer> offers;
    if (!choices_.rarely(8)) offers.push_back({"fencing", {}});
    if (!choices_.rarely(8)) offers.push_back({"plain", {}});
    hear(id, Welcome{kProtocolVersion,
                     {"P", engine.incarnation, rank, ranks},
                     ranks == 2 ? small_layout(std::uint64_t{2} << 32, rank, 2) : small_layout(0, 0, 1),
                     offers});
  }

  // About one of the last registrations.
  void answer() {
    const ConnectionId id = any_connection();
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second.registered.empty()) return;
    const std::vector<Register>& all = found->second.registered;
    const Register& one = all[all.size() - 1 - choices_.below(std::min<std::size_t>(all.size(), 4))];
    const auto ranks = engines_.at(found->second.directory).ranks.size();
    const RegistrationNumber number = one.registration;
    switch (choices_.below(8)) {
      case 0: return hear(id, Writing{number});
      case 1: return hear(id, Failed{number, any_code(choices_), false});
      case 2: return hear(id, Failed{number, any_code(choices_), true});
      case 3: return hear(id, Quiet{number});
      case 4: return hear(id, Revoked{number});
      case 5: return hear(id, Delivered{number, choices_.number<std::uint64_t>(), {}});
      default: return hear(id, Delivered{number, bytes_of(one.tokens) / ranks, {}});
    }
  }

  void lose() {
    if (choices_.flip() && !peers_.empty()) {
      const Peer peer = *std::next(peers_.begin(), choices_.below(std::min<std::size_t>(peers_.size(), 256)));
      return machine_.on_peer_lost(peer, peer.transport == 1 && choices_.flip(), now_, out_);
    }
    const ConnectionId id = any_connection();
    if (connections_.erase(id) > 0) machine_.on_closed(id, now_, out_);
  }

  void look() override {
    const ConsumerGauges gauges = machine_.gauges();
    KVPUSH_CHECK(gauges.requests == requests_.size(), "a request waits until it ends");
    KVPUSH_CHECK(gauges.engines <= kDirectories, "links are to engines that were asked for");
    KVPUSH_CHECK(gauges.quarantined <= gauges.requests, "what is in quarantine waits");
    KVPUSH_CHECK(gauges.sessions_ready <= connections_.size(), "a session lives as long as its connection");
  }

  void perform(const Action& action) override {
    std::visit(Overloaded{[&](const SendMessage& a) { on_said(a); },
                          [&](const CloseConnection& a) {
                            KVPUSH_CHECK(connections_.erase(a.connection) == 1, "a connection is closed once");
                          },
                          [&](const ResolveEngine& a) { resolving_.push_back(a.directory); },
                          [&](const Dial& a) {
                            connections_.emplace(ConnectionId{++connection_last_}, Connection{a.directory, a.rank});
                            machine_.on_dialled(a.directory, a.rank, ConnectionId{connection_last_});
                          },
                          [&](const ConnectPeer& a) { connect_peer(a); },
                          [&](const DisconnectPeer& a) {
                            KVPUSH_CHECK(peers_.erase(a.peer) == 1, "a peer is disconnected once");
                          },
                          [&](const TellEngine& a) { on_told(a.event); }, [](const Note&) {}},
               action);
  }

  void on_told(const EngineEvent& event) {
    if (std::holds_alternative<AwaitEnded>(event)) {
      KVPUSH_CHECK(awaits_ > 0, "what is awaited ends once");
      --awaits_;
    } else {
      KVPUSH_CHECK(requests_.erase(std::get<ReceiveEnded>(event).request) == 1, "a request ends once");
    }
  }

  void on_said(const SendMessage& said) {
    const auto found = connections_.find(said.connection);
    KVPUSH_CHECK(found != connections_.end(), "nothing is said on a connection that is gone");
    check_sendable(said.message);
    if (const Register* message = std::get_if<Register>(&said.message)) found->second.registered.push_back(*message);
    const Refused* refused = std::get_if<Refused>(&said.message);
    if (refused == nullptr || refused->code != ErrorCode::kBadMessage) return;
    // Several ranks may be told of one.
    KVPUSH_CHECK(machine_.counters().bad_messages > 0, "messages that are refused are counted");
  }

  void connect_peer(const ConnectPeer& action) {
    if (choices_.rarely(6)) {
      return machine_.on_peer(action.connection, fail(ErrorCode::kUnavailable, "it cannot be connected to"), now_,
                              out_);
    }
    const Peer peer{action.transport, {++peer_last_}};
    peers_.insert(peer);
    machine_.on_peer(action.connection, peer, now_, out_);
  }

  // Whatever happened, when everybody has gone nothing is left of it.
  void end() override {
    for (const auto& [directory, transfer_id] : awaited_) machine_.on(Decline{transfer_id, directory}, now_, out_);
    settle();
    while (!connections_.empty()) {
      const ConnectionId id = connections_.begin()->first;
      connections_.erase(id);
      machine_.on_closed(id, now_, out_);
      settle();
    }
    const std::set<Peer> left = peers_;
    for (const Peer peer : left) {
      machine_.on_peer_lost(peer, true, now_, out_);
      settle();
    }
    pass(kLongAfter);
    KVPUSH_CHECK(requests_.empty() && machine_.idle(), "every request ends");
    KVPUSH_CHECK(awaits_ == 0 && machine_.gauges().awaited == 0, "nothing is awaited for ever");
    KVPUSH_CHECK(!machine_.expects_writes(), "no registration is left");
    KVPUSH_CHECK(machine_.gauges().engines == 0, "no link is kept for ever");
    KVPUSH_CHECK(!machine_.deadline(), "nothing waits any more");
    KVPUSH_CHECK(peers_.empty(), "every peer is disconnected");
  }

  std::vector<Endpoint> resolving_;
  std::map<Endpoint, ProducerEngine> engines_;
  std::map<ConnectionId, Connection> connections_;
  std::uint64_t connection_last_ = 0;
  std::set<Peer> peers_;  // connected
  std::uint32_t peer_last_ = 0;
  std::set<RequestId> requests_;
  std::set<std::pair<Endpoint, TransferId>> awaited_;  // ever
  std::size_t awaits_ = 0;                             // that have not ended
};

}  // namespace
}  // namespace kvpush::testing

// Shows E3.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvpush::testing::Stage(std::span(data, size)).run();
  return 0;
}
