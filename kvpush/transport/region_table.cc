#include "kvpush/transport/region_table.h"

#include <algorithm>
#include <limits>

#include "kvpush/transport/address.h"

namespace kvpush {

bool Region::holds(std::uint64_t first, std::uint64_t length_bytes) const {
  return first >= base && first - base <= size_bytes && length_bytes <= size_bytes - (first - base);
}

Result<RegionId> RegionTable::add(std::uint64_t base, std::uint64_t size_bytes) {
  if (size_bytes == 0) return fail(ErrorCode::kBadConfig, "a region is empty");
  if (size_bytes > std::numeric_limits<std::uint64_t>::max() - base) {
    return fail(ErrorCode::kBadConfig, "a region wraps around the address space");
  }
  if (regions_.size() >= kRegionsMax) return fail(ErrorCode::kFull, "too many regions");
  const auto after = std::ranges::upper_bound(regions_, base, {}, &Region::base);
  const bool hits_next = after != regions_.end() && after->base < base + size_bytes;
  const bool hits_previous = after != regions_.begin() && std::prev(after)->holds(base, 1);
  if (hits_next || hits_previous) return fail(ErrorCode::kBadConfig, "a region overlaps one that is registered");
  const RegionId id{next_++};
  regions_.insert(after, Region{id, base, size_bytes});
  return id;
}

void RegionTable::remove(RegionId id) {
  std::erase_if(regions_, [id](const Region& region) { return region.id == id; });
}

const Region* RegionTable::find(RegionId id) const {
  const auto found = std::ranges::find(regions_, id, &Region::id);
  return found == regions_.end() ? nullptr : &*found;
}

const Region* RegionTable::holder(std::uint64_t first, std::uint64_t length_bytes) const {
  const auto after = std::ranges::upper_bound(regions_, first, {}, &Region::base);
  if (after == regions_.begin()) return nullptr;
  const Region& candidate = *std::prev(after);
  return candidate.holds(first, length_bytes) ? &candidate : nullptr;
}

void put_regions(const RegionTable& regions, AddressWriter& address) {
  address.put_u32(static_cast<std::uint32_t>(regions.all().size()));
  for (const Region& region : regions.all()) {
    address.put_u64(region.base);
    address.put_u64(region.size_bytes);
  }
}

Result<RegionTable> read_regions(AddressReader& address) {
  RegionTable regions;
  const std::uint32_t count = address.u32();
  for (std::uint32_t i = 0; i < count && address.ok(); ++i) {
    const std::uint64_t base = address.u64();
    const std::uint64_t size_bytes = address.u64();
    if (!address.ok() || !regions.add(base, size_bytes)) break;
  }
  if (!address.ok() || regions.all().size() != count) {
    return fail(ErrorCode::kBadMessage, "a transport address holds no valid list of regions");
  }
  return regions;
}

Result<void> check_descriptors(std::span<const Descriptor> descriptors, const RegionTable& local,
                               const RegionTable& remote) {
  // Neighbours mostly share their regions.
  const Region* from = nullptr;
  const Region* to = nullptr;
  for (const Descriptor& descriptor : descriptors) {
    if (descriptor.length_bytes == 0) continue;
    if (from == nullptr || !from->holds(descriptor.local, descriptor.length_bytes)) {
      from = local.holder(descriptor.local, descriptor.length_bytes);
      if (from == nullptr) return fail(ErrorCode::kOutOfRegion, "a write reads outside the registered regions");
    }
    if (to == nullptr || !to->holds(descriptor.remote, descriptor.length_bytes)) {
      to = remote.holder(descriptor.remote, descriptor.length_bytes);
      if (to == nullptr) return fail(ErrorCode::kOutOfRegion, "a write leaves the peer's registered regions");
    }
  }
  return {};
}

bool reads_region(std::span<const Descriptor> descriptors, const Region& region) {
  return std::ranges::any_of(descriptors, [&region](const Descriptor& descriptor) {
    return descriptor.length_bytes != 0 && region.holds(descriptor.local, descriptor.length_bytes);
  });
}

}  // namespace kvpush
