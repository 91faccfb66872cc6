#include "kvpush/base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace kvpush {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("kvpush", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %l kvpush: %v");
    if (const char* wanted = std::getenv("KVPUSH_LOG_LEVEL")) {
      made->set_level(spdlog::level::from_str(wanted));
    }
    return made;
  }();
  return *instance;
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

std::string without_controls(std::string_view text) {
  std::string line;
  for (const char c : text) is_control(c) ? line += fmt::format("\\x{:02x}", c) : line += c;
  return line;
}

}  // namespace

void log(LogLevel level, std::string_view text) {
  if (!logger().should_log(to_spdlog(level))) return;
  const std::string line = without_controls(text);
  logger().log(to_spdlog(level), spdlog::string_view_t{line.data(), line.size()});
}

void set_log_level(LogLevel level) {
  logger().set_level(to_spdlog(level));
}

}  // namespace kvpush
