// The native module kvpush._native; python/kvpush/_native.pyi documents it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert.h"
#include "kvpush/agent/agent.h"
#include "kvpush/directory/server.h"
#include "kvpush/transport/choice.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvpush::python {
namespace {

// An agent that Python forgot to stop gets this long to end what runs; its memory may be gone right after.
constexpr Duration kForgottenLimit = std::chrono::seconds(1);

// An Agent that stops at its end.
//
// Job: keeps the rules of Agent whatever Python does, and its waits outside the GIL.
// Owner: its Python object.
// Thread: any (synchronised by the GIL).
class PythonAgent {
 public:
  static std::unique_ptr<PythonAgent> open(std::string engine_id, const std::string& host, std::uint16_t control_port,
                                           const std::string& transport, const nb::list& planes,
                                           const nb::list& regions, std::uint32_t rank, std::uint32_t rank_count,
                                           std::string secret_file, bool allow_unauthenticated) {
    AgentOptions options{.engine_id = std::move(engine_id),
                         .rank = rank,
                         .rank_count = rank_count,
                         .control = {host, control_port},
                         .http = {host, 0},
                         .secret_file = std::move(secret_file),
                         .allow_unauthenticated = allow_unauthenticated,
                         .transports = value_or_raise(transport_factories(transport))};
    RankLayout layout = to_layout(planes);
    std::vector<MemoryRange> memory = to_regions(regions);
    Result<std::unique_ptr<Agent>> agent = [&] {
      const nb::gil_scoped_release without_gil;
      return Agent::open(std::move(options), std::move(layout), std::move(memory));
    }();
    return std::make_unique<PythonAgent>(value_or_raise(std::move(agent)));
  }

  explicit PythonAgent(std::unique_ptr<Agent> agent) : agent_(std::move(agent)) {}
  ~PythonAgent() { static_cast<void>(agent_->stop(kForgottenLimit)); }
  PythonAgent(const PythonAgent&) = delete;
  PythonAgent& operator=(const PythonAgent&) = delete;

  const std::string& document() const { return agent_->document(); }
  int event_fd() const { return agent_->event_fd(); }

  bool submit(const nb::list& commands) {
    std::vector<Command> converted = to_commands(commands);
    const Result<void> taken = agent_->submit(converted);
    if (!taken && taken.error().code == ErrorCode::kFull) return false;
    value_or_raise(taken);
    return true;
  }

  nb::list take_events() {
    agent_->take_events(events_);
    return to_python(events_);
  }

  bool wait(double limit_s) {
    const nb::gil_scoped_release without_gil;
    return agent_->wait(to_duration(limit_s));
  }

  bool stop(double limit_s) {
    const Result<void> stopped = [&] {
      const nb::gil_scoped_release without_gil;
      return agent_->stop(to_duration(limit_s));
    }();
    if (!stopped && stopped.error().code == ErrorCode::kTimeout) return false;
    value_or_raise(stopped);
    return true;
  }

 private:
  std::unique_ptr<Agent> agent_;
  std::vector<EngineEvent> events_;  // storage of take_events()
};

// A DirectoryServer that stops at its end.
//
// Job: keeps the rules of DirectoryServer whatever Python does.
// Owner: its Python object.
// Thread: any (synchronised by the GIL).
class PythonDirectory {
 public:
  static std::unique_ptr<PythonDirectory> open(const std::string& host, std::uint16_t port) {
    return std::make_unique<PythonDirectory>(value_or_raise(DirectoryServer::open({host, port})));
  }

  explicit PythonDirectory(std::unique_ptr<DirectoryServer> server) : server_(std::move(server)) {}
  ~PythonDirectory() { stop(); }
  PythonDirectory(const PythonDirectory&) = delete;
  PythonDirectory& operator=(const PythonDirectory&) = delete;

  std::uint16_t port() const { return server_->port(); }
  void set_ranks(const std::vector<std::string>& documents) { value_or_raise(server_->set_ranks(documents)); }
  void add(nb::handle scheduled) { server_->add(to_scheduled(scheduled)); }
  void stop() {
    const nb::gil_scoped_release without_gil;
    server_->stop();
  }

 private:
  std::unique_ptr<DirectoryServer> server_;
};

}  // namespace

NB_MODULE(_native, module) {
  module.attr("version") = KVPUSH_VERSION;
  nb::class_<PythonAgent>(module, "Agent")
      .def_static("open", &PythonAgent::open, nb::kw_only(), "engine_id"_a, "host"_a, "control_port"_a, "transport"_a,
                  "planes"_a, "regions"_a, "rank"_a = 0, "rank_count"_a = 1, "secret_file"_a = "",
                  "allow_unauthenticated"_a = false)
      .def_prop_ro("document", &PythonAgent::document)
      .def_prop_ro("event_fd", &PythonAgent::event_fd)
      .def("submit", &PythonAgent::submit, "commands"_a)
      .def("take_events", &PythonAgent::take_events)
      .def("wait", &PythonAgent::wait, "limit_s"_a)
      .def("stop", &PythonAgent::stop, "limit_s"_a);
  nb::class_<PythonDirectory>(module, "DirectoryServer")
      .def_static("open", &PythonDirectory::open, "host"_a, "port"_a)
      .def_prop_ro("port", &PythonDirectory::port)
      .def("set_ranks", &PythonDirectory::set_ranks, "documents"_a)
      .def("add", &PythonDirectory::add, "scheduled"_a)
      .def("stop", &PythonDirectory::stop);
}

}  // namespace kvpush::python
