#include "tests/contract/peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <sstream>

#include "tests/contract/harness.h"

extern char** environ;

namespace kvpush {

PeerProgram::PeerProgram(const std::string& backend) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  EXPECT_EQ(pipe2(in.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string program = KVPUSH_CONTRACT_PEER;
  std::string argument = backend;
  std::array<char*, 3> arguments{program.data(), argument.data(), nullptr};
  EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
  std::string address;
  std::istringstream(hear()) >> address >> memory_;
  address_ = bytes_of(address);
}

PeerProgram::~PeerProgram() {
  if (running()) kill();
  close(to_);
  close(from_);
}

void PeerProgram::connect(const std::vector<std::byte>& address) {
  say("connect " + hex_of(address));
  EXPECT_EQ(hear(), "connected");
}

void PeerProgram::stream(std::uint64_t remote) {
  say("stream " + std::to_string(remote));
}

void PeerProgram::freeze() {
  ::kill(pid_, SIGSTOP);
  int status = 0;
  waitpid(pid_, &status, WUNTRACED);
  EXPECT_TRUE(WIFSTOPPED(status));
}

void PeerProgram::thaw() {
  ::kill(pid_, SIGCONT);
}

void PeerProgram::await_rest() {
  say("rest");
  EXPECT_EQ(hear(), "resting");
}

void PeerProgram::kill() {
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void PeerProgram::say(const std::string& line) const {
  const std::string text = line + "\n";
  EXPECT_EQ(write(to_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

std::string PeerProgram::hear() {
  while (heard_.find('\n') == std::string::npos) {
    pollfd request{from_, POLLIN, 0};
    const int ready = poll(&request, 1, static_cast<int>(kPatience / std::chrono::milliseconds(1)));
    std::array<char, 4096> part;
    const ssize_t size = ready == 1 ? read(from_, part.data(), part.size()) : -1;
    if (size <= 0) {
      ADD_FAILURE() << "the peer program says nothing";
      return "";
    }
    heard_.append(part.data(), static_cast<std::size_t>(size));
  }
  const std::string line = heard_.substr(0, heard_.find('\n'));
  heard_.erase(0, line.size() + 1);
  return line;
}

}  // namespace kvpush
