#include "kvpush/agent/agent.h"

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include <poll.h>

#include "kvpush/agent/exchange.h"
#include "kvpush/agent/loop.h"
#include "kvpush/base/check.h"
#include "kvpush/base/clock.h"
#include "kvpush/base/limits.h"

namespace kvpush {

namespace {

bool is_inside(const MemoryRange& inner, const std::vector<MemoryRange>& regions) {
  return std::ranges::any_of(regions, [&](const MemoryRange& region) {
    return inner.base >= region.base && inner.base - region.base <= region.size_bytes &&
           inner.size_bytes <= region.size_bytes - (inner.base - region.base);
  });
}

// The engine's side: mailboxes, and the thread on which the loop lives from its first to its last moment.
class ThreadedAgent : public Agent {
 public:
  ~ThreadedAgent() override { KVPUSH_CHECK(!thread_.joinable(), "stop() comes before an agent's destruction"); }

  Result<void> start(AgentOptions options, const RankLayout& layout, const std::vector<MemoryRange>& regions) {
    std::promise<Result<void>> opened;
    thread_ = std::thread([&, this] { live(std::move(options), layout, regions, opened); });
    Result<void> result = opened.get_future().get();
    if (!result) thread_.join();
    return result;
  }

  const std::string& document() const override { return document_; }

  Result<void> submit(std::vector<Command>& commands) override {
    if (!is_stopped_ && exchange_.submit(commands)) return {};
    if (is_stopped_) return fail(ErrorCode::kStopped, "the agent has been stopped");
    return fail(ErrorCode::kFull, "the agent is too far behind with its commands");
  }

  void take_events(std::vector<EngineEvent>& into) override { exchange_.take_events(into, read_clock()); }
  int event_fd() const override { return exchange_.event_fd(); }

  bool wait(Duration limit) override {
    pollfd descriptor{exchange_.event_fd(), POLLIN, 0};
    const auto seconds = std::chrono::floor<std::chrono::seconds>(limit);
    const timespec timeout{seconds.count(), (limit - seconds).count()};
    return ppoll(&descriptor, 1, &timeout, nullptr) > 0;
  }

  Result<void> stop(Duration limit) override {
    is_stopped_ = true;
    if (thread_.joinable()) {
      loop_->ask_to_stop(limit);
      thread_.join();
    }
    if (failed_at_stop_ > 0) return fail(ErrorCode::kTimeout, "requests did not end in time and were failed");
    return {};
  }

 private:
  void live(AgentOptions options, const RankLayout& layout, const std::vector<MemoryRange>& regions,
            std::promise<Result<void>>& opened) {
    Result<std::unique_ptr<AgentLoop>> loop = AgentLoop::open(std::move(options), layout, regions, exchange_);
    if (!loop) return opened.set_value(std::unexpected(loop.error()));
    document_ = (*loop)->document();
    loop_ = loop->get();
    opened.set_value({});  // the last use of `opened`: start() returns
    (*loop)->run();
    failed_at_stop_ = (*loop)->failed_at_stop();
  }

  Exchange exchange_;
  std::string document_;
  AgentLoop* loop_ = nullptr;  // lives on thread_ until that ends
  std::size_t failed_at_stop_ = 0;
  std::atomic<bool> is_stopped_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Agent>> Agent::open(AgentOptions options, const RankLayout& layout,
                                           const std::vector<MemoryRange>& regions) {
  if (options.engine_id.empty() || options.engine_id.size() > kEngineIdBytesMax) {
    return fail(ErrorCode::kBadConfig, "an engine id has 1 to 128 bytes");
  }
  if (options.protocol.lease_margin >= options.protocol.lease) {
    return fail(ErrorCode::kBadConfig, "a lease must be longer than its margin");
  }
  if (const Result<void> valid = validate(layout); !valid) return std::unexpected(valid.error());
  for (const Plane& plane : layout.planes) {
    if (!is_inside(extent(plane), regions)) {
      return fail(ErrorCode::kOutOfRegion, "a plane of the layout is not inside the given regions");
    }
  }
  auto agent = std::make_unique<ThreadedAgent>();
  if (const Result<void> started = agent->start(std::move(options), layout, regions); !started) {
    return std::unexpected(started.error());
  }
  return agent;
}

}  // namespace kvpush
