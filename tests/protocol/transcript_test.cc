// Runs the conversations of tests/protocol/*.txt (README.md beside them says how to read one). With KVPUSH_UPDATE=1 in
// the environment it writes what happened into the files instead of comparing.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kvpush/sim/world.h"
#include "tests/protocol/text.h"

namespace kvpush::sim {
namespace {

using Words = std::vector<std::string>;

Words split(const std::string& line) {
  std::istringstream stream(line);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::uint32_t to_number(std::string_view text) {
  std::uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Duration to_duration(const std::string& text) {
  if (text.ends_with("ms")) return std::chrono::milliseconds{to_number(text)};
  return std::chrono::seconds{to_number(text)};
}

// "8" is tokens 0-8.
TokenRange to_tokens(const std::string& text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) return {0, to_number(text)};
  return {to_number(text.substr(0, dash)), to_number(text.substr(dash + 1))};
}

// One transcript's world, driven by its command lines.
//
// Job: turns a line into a verb of World.
// Not here: what is expected.
class Stage {
 public:
  // False when the line is not understood.
  bool run(const Words& words);
  std::vector<std::string> take_lines() { return world_ ? world_->take_lines() : std::vector<std::string>{}; }
  std::vector<std::string> faults() const { return world_ ? world_->faults() : std::vector<std::string>{}; }

 private:
  bool run_world(const Words& words);
  bool run_rank(Rank& rank, const Words& words);
  void set_up(const Words& words);
  void write(const Words& words);
  void each_connection(const std::string& left, const std::string& right,
                       const std::function<void(Connection&, Side)>& visit);
  std::string state(const Rank& rank) const;

  std::unique_ptr<World> world_;
  std::vector<std::string> lines_;
};

// "world P:2 C D fencing plain": engines with their rank counts, then transports in order of preference. "C:1:float16"
// has another dtype. Engines whose name begins with P produce.
void Stage::set_up(const Words& words) {
  WorldOptions options;
  options.transports.clear();
  options.renews_quietly = true;
  std::vector<World::Engine> engines;
  for (const std::string& word : Words(words.begin() + 1, words.end())) {
    if (word == kFencing || word == kPlain) {
      options.transports.push_back(word);
      continue;
    }
    std::string spaced = word;
    std::ranges::replace(spaced, ':', ' ');
    const Words parts = split(spaced);
    World::Engine engine{.name = parts[0]};
    engine.role = engine.name.starts_with('P') ? World::Role::kProducer : World::Role::kConsumer;
    if (parts.size() > 1) engine.rank_count = to_number(parts[1]);
    if (parts.size() > 2) engine.dtype = parts[2];
    engines.push_back(engine);
  }
  if (options.transports.empty()) options.transports = {kFencing};
  world_ = std::make_unique<World>(options);
  for (const World::Engine& engine : engines) world_->add(engine);
}

bool Stage::run(const Words& words) {
  if (words[0] == "world") {
    set_up(words);
    return true;
  }
  if (!world_) return false;
  if (run_world(words)) return true;
  const std::vector<Rank*> ranks = world_->ranks_of(words[0]);
  if (ranks.empty() || words.size() < 2) return false;
  const Words rest(words.begin() + 1, words.end());
  return std::ranges::all_of(ranks, [&](Rank* rank) { return run_rank(*rank, rest); });
}

bool Stage::run_world(const Words& words) {
  World& world = *world_;
  const std::string& verb = words[0];
  const std::string first = words.size() > 1 ? words[1] : "";
  const std::string second = words.size() > 2 ? words[2] : "";
  if (verb == "deliver") {
    world.deliver_all(first);
  } else if (verb == "write") {
    write(words);
  } else if (verb == "run") {  // messages and writes, until there are none
    do {
      world.deliver_all();
      if (!world.writes().empty()) world.complete(world.writes().front());
    } while (!world.writes().empty() || !world.arrivals().empty() || world.resolves() > 0);
  } else if (verb == "wait") {
    world.advance_to(world.now() + to_duration(first));
  } else if (verb == "cut") {  // with all that is under way
    each_connection(first, second, [&](Connection& connection, Side) { world.cut(connection, true); });
  } else if (verb == "open") {  // a connection from the first to the second that the first knows nothing of
    world.open(*world.ranks_of(first).front(), *world.ranks_of(second).front());
  } else if (verb == "lose") {  // the first one's data endpoint to the second
    each_connection(first, second, [&](Connection& connection, Side side) { world.lose_peer(connection, side); });
  } else if (verb == "kill") {
    world.kill(first);
  } else if (verb == "restart") {
    world.restart(first);
  } else if (verb == "notice") {
    while (!world.gone().empty()) world.notice_gone(0);
  } else if (verb == "directory") {
    world.set_directory(first, second == "up");
  } else if (verb == "unreachable") {
    world.set_reachable(first, second, false);
  } else {
    return false;
  }
  return true;
}

// "write": all; "write 3": batch 3; "write 3 fails".
void Stage::write(const Words& words) {
  std::vector<Write*> chosen;
  for (Write& write : world_->writes()) {
    if (words.size() == 1 || write.number == to_number(words[1])) chosen.push_back(&write);
  }
  for (Write* write : chosen) {
    if (words.size() > 2) {
      world_->fail(*write);
    } else {
      world_->complete(*write);
    }
  }
}

bool Stage::run_rank(Rank& rank, const Words& words) {
  World& world = *world_;
  const std::string& verb = words[0];
  const std::string first = words.size() > 1 ? words[1] : "";
  const std::string second = words.size() > 2 ? words[2] : "";
  if (verb == "receive" || verb == "send") {
    if (words.size() < 4) return false;
    const Choice choice = words.back() == "scattered" ? Choice::kScattered : Choice::kConsecutive;
    const World::Ask ask{.request = first, .transfer_id = second, .tokens = to_tokens(words[3]), .choice = choice};
    if (verb == "send") {
      world.send(rank, ask);
    } else {
      world.receive(rank, ask, words[words.size() - 2] == "at" ? words.back() : "P");
    }
    return true;
  }
  if (verb == "says") {
    std::string said;
    for (const std::string& word : Words(words.begin() + 2, words.end())) said += word + " ";
    world.say(rank.name, first, parse_message(said));
    return true;
  }
  if (verb == "abandon") {
    world.abandon(rank, first);
  } else if (verb == "decline") {
    world.decline(rank, first, "P");
  } else if (verb == "await") {
    world.await(rank, first, "P");
  } else if (verb == "admit") {
    world.admit(rank, first);
  } else if (verb == "cancel") {
    world.cancel(rank, first);
  } else if (verb == "withdraw") {
    world.withdraw(rank, first);
  } else if (verb == "drain") {
    world.drain(rank);
  } else if (verb == "full") {
    world.set_full(rank, true);
  } else if (verb == "room") {
    world.set_full(rank, false);
  } else if (verb == "state") {
    world.note(state(rank));
  } else {
    return false;
  }
  return true;
}

void Stage::each_connection(const std::string& left, const std::string& right,
                            const std::function<void(Connection&, Side)>& visit) {
  for (Connection& connection : world_->connections()) {
    for (const Side side : {Side::kConsumer, Side::kProducer}) {
      const Rank& near = *connection.end(side).rank;
      const Rank& far = *connection.other(side).rank;
      const bool is_meant = (near.name == left || near.engine == left) && (far.name == right || far.engine == right);
      if (is_meant && !connection.end(side).is_closed) visit(connection, side);
    }
  }
}

std::string Stage::state(const Rank& rank) const {
  if (rank.producer) {
    const ProducerGauges gauges = rank.producer->gauges();
    return fmt::format("{}: {} sessions, {} registrations, {} requests, {} transfers, {} writes in flight{}{}",
                       rank.name, gauges.sessions, gauges.registrations, gauges.requests, gauges.transfers,
                       gauges.writes_in_flight,
                       gauges.expected > 0 ? fmt::format(", {} expected", gauges.expected) : "",
                       rank.producer->deadline() ? "" : ", no deadline");
  }
  const ConsumerGauges gauges = rank.consumer->gauges();
  return fmt::format("{}: {} sessions ready, {} requests, {} quarantined{}", rank.name, gauges.sessions_ready,
                     gauges.requests, gauges.quarantined, rank.consumer->deadline() ? "" : ", no deadline");
}

// What the commands lead to, and what the file says that they lead to.
struct Scene {
  std::string actual;
  std::vector<std::string> faults;
};

// Runs a transcript: each paragraph is commands, "----", and the lines that must follow. Comments (#) are kept.
Scene play(const std::string& script) {
  Stage stage;
  Scene scene;
  std::istringstream stream(script);
  bool is_expecting = false;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty()) {
      is_expecting = false;
      scene.actual += "\n";
    } else if (is_expecting) {
      continue;  // expected lines are replaced by the actual ones
    } else if (line == "----") {
      is_expecting = true;
      scene.actual += "----\n";
      for (const std::string& happened : stage.take_lines()) scene.actual += happened + "\n";
    } else {
      scene.actual += line + "\n";
      if (line.starts_with('#')) continue;
      if (!stage.run(split(line))) scene.faults.push_back("not understood: " + line);
    }
  }
  for (const std::string& fault : stage.faults()) scene.faults.push_back(fault);
  return scene;
}

const std::filesystem::path kFolder = "tests/protocol";

std::vector<std::filesystem::path> transcripts() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt") {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

// The first lines that differ, as a reader wants to see them.
std::string difference(const std::string& expected, const std::string& actual) {
  std::istringstream left(expected);
  std::istringstream right(actual);
  std::string context;
  for (std::size_t number = 1;; ++number) {
    std::string wanted;
    std::string got;
    const bool more_left = static_cast<bool>(std::getline(left, wanted));
    const bool more_right = static_cast<bool>(std::getline(right, got));
    if (!more_left && !more_right) return "";
    if (wanted != got) {
      return fmt::format("line {}, after \"{}\":\n  expected: {}\n  happened: {}\n(KVPUSH_UPDATE=1 rewrites the file)",
                         number, context, wanted, got);
    }
    context = wanted;
  }
}

class Transcript : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(Transcript, HappensAsWritten) {
  std::ifstream file(GetParam());
  const std::string script{std::istreambuf_iterator<char>(file), {}};

  const Scene scene = play(script);

  for (const std::string& fault : scene.faults) ADD_FAILURE() << fault;
  if (std::getenv("KVPUSH_UPDATE") != nullptr) {
    std::ofstream(GetParam()) << scene.actual;
  } else if (const std::string differs = difference(script, scene.actual); !differs.empty()) {
    ADD_FAILURE() << GetParam().string() << ", " << differs;
  }
}

INSTANTIATE_TEST_SUITE_P(Protocol, Transcript, ::testing::ValuesIn(transcripts()),
                         [](const auto& test) { return test.param.stem().string(); });

}  // namespace
}  // namespace kvpush::sim
