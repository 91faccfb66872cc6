#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvpush::testing {

// A file descriptor that is closed at its end.
//
// Thread: value type.
class File {
 public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File();

  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

// One side of a TCP connection on this machine that says what it was made for, whatever the other side says.
//
// Job: writes its text as far as the other side takes it, keeps what it hears, never waits.
// Thread: value type.
class Speaker {
 public:
  Speaker(File socket, std::string text);
  static Speaker connect(std::uint16_t port, std::string text);

  // Writes and reads what can be; false when nothing could.
  bool step();
  // Reads only.
  bool hear();
  // Says no more; what it has not said yet is left out.
  void end();
  bool has_said_all() const { return said_ == text_.size(); }
  bool has_ended() const { return ended_; }
  // The other side says no more.
  bool is_over() const { return over_; }
  const std::string& heard() const { return heard_; }

 private:
  bool say();

  File socket_;
  std::string text_;
  std::size_t said_ = 0;
  bool ended_ = false;
  bool over_ = false;
  std::string heard_;
};

// Where others can connect to.
//
// Thread: value type.
class Listener {
 public:
  Listener();
  std::uint16_t port() const { return port_; }
  // A connection that waits to be accepted.
  std::optional<File> accept();

 private:
  File socket_;
  std::uint16_t port_ = 0;
};

// A server that answers whatever it hears with one text, and closes the connection.
//
// Job: accepts, waits for the first bytes, answers.
// Thread: value type.
class Answerer {
 public:
  std::uint16_t port() const { return listener_.port(); }
  void set_answer(std::string_view answer) { answer_ = answer; }
  bool step();
  // Closes all connections.
  void reset() { speakers_.clear(); }

 private:
  Listener listener_;
  std::string answer_;
  std::list<Speaker> speakers_;
};

// Lets `client` say and hear what it can, and after it whoever else is part of it do so: `turn`, which returns false
// when nobody could. After so many turns in which nothing happened the client ends, and after as many more the
// conversation.
void converse(Speaker& client, int quiet_turns, const std::function<bool()>& turn);

// The parts of an input between lines of "%%".
std::string_view take_part(std::string_view& input);

}  // namespace kvpush::testing
