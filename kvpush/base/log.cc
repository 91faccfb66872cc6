#include "kvpush/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

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

}  // namespace

void log(LogLevel level, std::string_view text) {
  logger().log(to_spdlog(level), spdlog::string_view_t{text.data(), text.size()});
}

void set_log_level(LogLevel level) {
  logger().set_level(to_spdlog(level));
}

}  // namespace kvpush
