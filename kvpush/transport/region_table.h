#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/transport/transport.h"

namespace kvpush {

class AddressReader;
class AddressWriter;

// One tensor for each of 256 layers with two components; as 16 bytes each they fit twice into an address.
inline constexpr std::size_t kRegionsMax = 512;

struct Region {
  RegionId id;
  std::uint64_t base = 0;
  std::uint64_t size_bytes = 0;
  // Whether all of [first, first + length_bytes) lies inside; safe for any two numbers.
  bool holds(std::uint64_t first, std::uint64_t length_bytes) const;
};

// The registered regions of one address space, ours or a peer's.
//
// Job: answers which region holds given bytes.
// Thread: value type.
// Invariant: no two regions overlap, none is empty or wraps around.
class RegionTable {
 public:
  // kBadConfig: empty, wrapping or overlapping. kFull: kRegionsMax are there. Ids count up from 0.
  Result<RegionId> add(std::uint64_t base, std::uint64_t size_bytes);
  void remove(RegionId id);
  // Null if there is none.
  const Region* find(RegionId id) const;
  const Region* holder(std::uint64_t first, std::uint64_t length_bytes) const;
  // In order of base.
  std::span<const Region> all() const { return regions_; }

 private:
  std::vector<Region> regions_;
  std::uint32_t next_ = 0;
};

void put_regions(const RegionTable& regions, AddressWriter& address);
// Ids count up from 0 in the order in which put_regions() wrote. kBadMessage: not such a list.
Result<RegionTable> read_regions(AddressReader& address);

// kOutOfRegion if a descriptor leaves the local or the remote regions. One of no bytes leaves nothing.
Result<void> check_descriptors(std::span<const Descriptor> descriptors, const RegionTable& local,
                               const RegionTable& remote);

// Whether one of the descriptors reads bytes of `region`.
bool reads_region(std::span<const Descriptor> descriptors, const Region& region);

}  // namespace kvpush
