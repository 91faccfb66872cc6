#pragma once

namespace kvpush {

// One function object from several lambdas, for std::visit.
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

}  // namespace kvpush
