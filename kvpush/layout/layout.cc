#include "kvpush/layout/layout.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "kvpush/base/limits.h"

namespace kvpush {
namespace {

// Wide enough for any sum of three products of a 32-bit count and a 64-bit stride.
using Wide = unsigned __int128;

// Addresses and byte counts stay below it, so that differences of addresses fit signed 64 bits.
constexpr Wide kAddressMax = Wide{1} << 63;
// With at most 2^32 tokens, the bytes of any token range of all planes then stay below 2^63.
constexpr Wide kTokenBytesMax = Wide{1} << 31;

struct Axis {
  std::uint64_t count = 0;
  std::uint64_t stride_bytes = 0;
};

std::array<Axis, 3> axes(const Plane& plane) {
  return {{{plane.block_count, plane.block_stride_bytes},
           {plane.heads.count, plane.head_stride_bytes},
           {plane.block_tokens, plane.token_stride_bytes}}};
}

Wide extent_bytes(const Plane& plane) {
  Wide bytes = plane.inner_bytes;
  for (const Axis& axis : axes(plane)) bytes += Wide{axis.count - 1} * axis.stride_bytes;
  return bytes;
}

// Whether each axis steps over all that the axes with smaller strides span. Layouts that interleave axes without
// touching are refused too: no engine has them, and telling them from real overlaps needs more than three steps.
bool axes_nest(const Plane& plane) {
  std::array<Axis, 3> sorted = axes(plane);
  std::ranges::sort(sorted, {}, &Axis::stride_bytes);
  Wide spanned_bytes = plane.inner_bytes;
  for (const Axis& axis : sorted) {
    if (axis.count == 1) continue;
    if (axis.stride_bytes < spanned_bytes) return false;
    spanned_bytes += Wide{axis.count - 1} * axis.stride_bytes;
  }
  return true;
}

bool is_component(Component component) {
  return !component_name(component).empty();
}

Result<void> validate(const Plane& plane) {
  const auto refuse = [](const char* what) { return fail(ErrorCode::kLayoutMismatch, what); };
  if (!is_component(plane.component)) return refuse("a plane has an unknown component");
  if (plane.layer.empty() || plane.layer.size() > kLayerNameBytesMax) {
    return refuse("a layer's name has 1 to 256 bytes");
  }
  if (plane.dtype.size() > kDtypeBytesMax) return refuse("the name of a dtype has at most 32 bytes");
  if (plane.group >= kGroupsMax) return refuse("a plane's group is beyond the most groups a layout may have");
  if (plane.element_bytes == 0 || plane.inner_bytes == 0) return refuse("a plane's element or inner size is zero");
  if (plane.block_tokens == 0 || plane.block_count == 0) return refuse("a plane has no blocks or blocks of no tokens");
  if (plane.heads.count == 0) return refuse("a plane has no heads");
  if (std::uint64_t{plane.heads.first} + plane.heads.count > plane.heads.total) {
    return refuse("a plane's heads are outside the model's");
  }
  if (plane.inner_bytes % plane.element_bytes != 0) return refuse("a plane's inner bytes are not whole elements");
  if (plane.base + extent_bytes(plane) > kAddressMax) return refuse("a plane reaches past the largest address");
  if (!axes_nest(plane)) return refuse("a plane's elements overlap");
  return {};
}

bool layer_and_component_are_unique(std::span<const Plane> planes) {
  std::vector<std::pair<std::string_view, Component>> names;
  names.reserve(planes.size());
  for (const Plane& plane : planes) names.emplace_back(plane.layer, plane.component);
  std::ranges::sort(names);
  return std::ranges::adjacent_find(names) == names.end();
}

bool groups_agree_on_block_size(std::span<const Plane> planes) {
  std::array<std::uint32_t, kGroupsMax> block_tokens{};
  return std::ranges::all_of(planes, [&](const Plane& plane) {
    std::uint32_t& known = block_tokens[plane.group];
    if (known == 0) known = plane.block_tokens;
    return known == plane.block_tokens;
  });
}

Wide token_bytes(std::span<const Plane> planes) {
  Wide bytes = 0;
  for (const Plane& plane : planes) bytes += Wide{plane.heads.count} * plane.inner_bytes;
  return bytes;
}

}  // namespace

std::string_view component_name(Component component) {
  switch (component) {
    case Component::kKey: return "key";
    case Component::kValue: return "value";
    case Component::kLatent: return "latent";
    case Component::kState: return "state";
  }
  return "";
}

Result<void> validate(const RankLayout& layout) {
  const std::span<const Plane> planes = layout.planes;
  if (planes.empty()) return fail(ErrorCode::kLayoutMismatch, "a layout has no planes");
  if (planes.size() > kPlanesMax) return fail(ErrorCode::kLayoutMismatch, "a layout has too many planes");
  for (const Plane& plane : planes) {
    if (const Result<void> valid = validate(plane); !valid) return valid;
  }
  if (!layer_and_component_are_unique(planes)) {
    return fail(ErrorCode::kLayoutMismatch, "a layout has one component of a layer twice");
  }
  if (!groups_agree_on_block_size(planes)) {
    return fail(ErrorCode::kLayoutMismatch, "planes of one group have different block sizes");
  }
  if (token_bytes(planes) > kTokenBytesMax) {
    return fail(ErrorCode::kLayoutMismatch, "a layout has more than 2 GiB for each token");
  }
  return {};
}

MemoryRange extent(const Plane& plane) {
  return {.base = plane.base, .size_bytes = static_cast<std::uint64_t>(extent_bytes(plane))};
}

}  // namespace kvpush
