// Strided families of copies: what planning builds runs from. Private to plan.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvpush/plan/plan.h"

namespace kvpush {

// One direction in which a copy repeats: `count` times, with a step on each side.
struct Axis {
  std::uint64_t count = 1;
  std::int64_t local_stride_bytes = 0;
  std::int64_t remote_stride_bytes = 0;
  auto operator<=>(const Axis&) const = default;
};

// Copies of `length_bytes` that repeat along several axes at once, in every combination.
//
// Job: merges what adjoins on both sides and gives out the rest as runs. Allocates nothing.
// Thread: value type.
class StridedCopy {
 public:
  // Token, fine block, coarse block, head, component and layer.
  static constexpr std::size_t kAxesMax = 6;

  StridedCopy(std::uint64_t local, std::uint64_t remote, std::uint64_t length_bytes)
      : local_(local), remote_(remote), length_bytes_(length_bytes) {}

  // At most kAxesMax of them; one along which nothing repeats is left out.
  void add(const Axis& axis);
  // Grows the length and the axes by those that continue them on both sides.
  void merge();
  // Appends the copies to `runs`, as few of them as one axis a run allows.
  void append_to(std::vector<Run>& runs) const;

 private:
  std::uint64_t local_ = 0;
  std::uint64_t remote_ = 0;
  std::uint64_t length_bytes_ = 0;
  std::array<Axis, kAxesMax> axes_{};
  std::size_t axis_count_ = 0;
};

}  // namespace kvpush
