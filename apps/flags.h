// How programs read their flags.
#pragma once

#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace kvpush {

// Once parsed, nothing; else the status to end with: 0 after --help, 2 when the flags are not understood.
inline std::optional<int> parse_flags(CLI::App& app, int argc, char** argv, const char* program) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "{}: {} (--help lists the options)\n", program, error.what());
    return 2;
  }
  return std::nullopt;
}

}  // namespace kvpush
