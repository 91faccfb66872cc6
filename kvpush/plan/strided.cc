#include "kvpush/plan/strided.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kvpush/base/check.h"

namespace kvpush {
namespace {

// Whether `next` steps just past `count` steps of `stride`.
bool reaches(std::int64_t stride, std::uint64_t count, std::int64_t next) {
  std::int64_t past = 0;
  return !__builtin_mul_overflow(stride, count, &past) && past == next;
}

bool continues(const Axis& axis, const Axis& outer) {
  return reaches(axis.local_stride_bytes, axis.count, outer.local_stride_bytes) &&
         reaches(axis.remote_stride_bytes, axis.count, outer.remote_stride_bytes);
}

// One run for each combination of steps along `axes`. Calls itself once an axis.
void append_each(std::span<const Axis> axes, Run run, std::vector<Run>& runs) {
  if (axes.empty()) {
    runs.push_back(run);
    return;
  }
  const Axis& axis = axes.front();
  for (std::uint64_t i = 0; i < axis.count; ++i) {
    append_each(axes.subspan(1), run, runs);
    run.local += static_cast<std::uint64_t>(axis.local_stride_bytes);
    run.remote += static_cast<std::uint64_t>(axis.remote_stride_bytes);
  }
}

}  // namespace

void StridedCopy::add(const Axis& axis) {
  if (axis.count == 1) return;
  KVPUSH_DCHECK(axis_count_ < kAxesMax, "a copy repeats along more axes than planning knows");
  axes_[axis_count_++] = axis;
}

void StridedCopy::merge() {
  const std::span<Axis> axes(axes_.data(), axis_count_);
  std::ranges::sort(axes, {}, &Axis::local_stride_bytes);  // what continues something now comes right after it
  std::size_t kept = 0;
  Axis whole{.count = length_bytes_, .local_stride_bytes = 1, .remote_stride_bytes = 1};  // the copy, byte by byte
  for (const Axis axis : axes) {
    Axis& inner = kept == 0 ? whole : axes[kept - 1];
    if (continues(inner, axis)) {
      inner.count *= axis.count;
    } else {
      axes[kept++] = axis;
    }
  }
  length_bytes_ = whole.count;
  axis_count_ = kept;
}

void StridedCopy::append_to(std::vector<Run>& runs) const {
  Run run{.local = local_, .remote = remote_, .count = 1, .length_bytes = length_bytes_};
  std::array<Axis, kAxesMax> axes = axes_;
  std::span<Axis> outer(axes.data(), axis_count_);
  if (!outer.empty()) {
    std::swap(*std::ranges::max_element(outer, {}, &Axis::count), outer.back());
    run.count = outer.back().count;
    run.local_stride_bytes = outer.back().local_stride_bytes;
    run.remote_stride_bytes = outer.back().remote_stride_bytes;
    outer = outer.first(outer.size() - 1);
  }
  append_each(outer, run, runs);
}

}  // namespace kvpush
