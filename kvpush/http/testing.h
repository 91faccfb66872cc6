// A loop and two bare TCP peers for tests of what speaks HTTP: one thread, ports from the kernel, bounded waits.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvpush {

// An io_context that runs in the test's own thread, one handler at a time.
class TestLoop {
 public:
  boost::asio::io_context io;

  // Runs handlers until `done` says true; throws, which fails the test, after ten seconds.
  template <class Done>
  void until(std::string_view what, Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline)
        throw std::runtime_error("gave up waiting: " + std::string(what));
      io.restart();
      io.run_one_for(std::chrono::milliseconds(5));
    }
  }

  // Runs every handler that is ready, and those that they make ready.
  void settle() {
    io.restart();
    while (io.poll_one() > 0) {
    }
  }
};

// One TCP connection whose test decides every byte, and reads only when told to.
class TestPeer {
 public:
  explicit TestPeer(boost::asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  static TestPeer connected_to(TestLoop& loop, std::uint16_t port) {
    boost::asio::ip::tcp::socket socket(loop.io);
    socket.connect({boost::asio::ip::address_v4::loopback(), port});
    return TestPeer(std::move(socket));
  }

  void send(std::string_view bytes) { boost::asio::write(socket_, boost::asio::buffer(bytes)); }
  void close() { socket_.close(); }

  // What has arrived and not been taken; reads what is there.
  const std::string& received() {
    std::array<char, 16384> piece;
    pollfd ready{socket_.native_handle(), POLLIN, 0};
    while (!closed_ && poll(&ready, 1, 0) == 1) {
      boost::system::error_code error;
      const std::size_t count = socket_.read_some(boost::asio::buffer(piece), error);
      received_.append(piece.data(), count);
      closed_ = static_cast<bool>(error);
      reset_ = error == boost::asio::error::connection_reset;
    }
    return received_;
  }
  // Runs the loop until `text` has arrived; takes everything up to its end.
  std::string take_until(TestLoop& loop, std::string_view text) {
    loop.until("a peer receives " + std::string(text), [&] { return received().find(text) != std::string::npos; });
    std::string taken = received_.substr(0, received_.find(text) + text.size());
    received_.erase(0, taken.size());
    return taken;
  }
  // The other side has closed or broken the connection, and everything before that has been read.
  bool closed() { return received(), closed_; }
  std::uint16_t port() const { return socket_.local_endpoint().port(); }
  // It was broken.
  bool reset() { return received(), reset_; }

 private:
  boost::asio::ip::tcp::socket socket_;
  std::string received_;
  bool closed_ = false;
  bool reset_ = false;
};

// Listens, and gives out connections in the order in which they came.
class TestListener {
 public:
  explicit TestListener(TestLoop& loop)
      : loop_(loop), acceptor_(loop.io, {boost::asio::ip::address_v4::loopback(), 0}) {
    accept();
  }

  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  std::size_t accepted() const { return accepted_; }
  TestPeer next() {
    loop_.until("a connection arrives", [&] { return !waiting_.empty(); });
    TestPeer peer(std::move(waiting_.front()));
    waiting_.pop_front();
    return peer;
  }

 private:
  void accept() {
    acceptor_.async_accept([this](boost::system::error_code error, boost::asio::ip::tcp::socket socket) {
      if (error) return;
      ++accepted_;
      waiting_.push_back(std::move(socket));
      accept();
    });
  }

  TestLoop& loop_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::deque<boost::asio::ip::tcp::socket> waiting_;
  std::size_t accepted_ = 0;
};

}  // namespace kvpush
