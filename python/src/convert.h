// Values of Python (kvpush/types.py) to those of C++ and back. Everything here needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

#include "kvpush/agent/agent.h"
#include "kvpush/base/error.h"
#include "kvpush/directory/server.h"
#include "kvpush/layout/layout.h"

namespace kvpush::python {

// Raises kvpush.Error.
[[noreturn]] void raise_error(const Error& error);

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise_error(result.error());
  return std::move(*result);
}
inline void value_or_raise(const Result<void>& result) {
  if (!result) raise_error(result.error());
}

// Raise TypeError or ValueError for what is not as kvpush/types.py says.
Duration to_duration(double seconds);
std::vector<Command> to_commands(const nanobind::list& commands);
RankLayout to_layout(const nanobind::list& planes);
std::vector<MemoryRange> to_regions(const nanobind::list& regions);

Scheduled to_scheduled(nanobind::handle scheduled);

// Tuples of the fields of kvpush.types.Event.
nanobind::list to_python(const std::vector<EngineEvent>& events);

}  // namespace kvpush::python
