#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/transport/region_table.h"
#include "kvpush/transport/ucx/worker.h"

namespace kvpush {

class AddressWriter;

// The memory of this process that UCX reads for our writes and that peers may write to.
//
// Job: maps regions, once for all peers, and keeps their keys.
// Owner: UcxTransport.
// Thread: agent role.
class UcxMemory {
 public:
  // `context` outlives it.
  explicit UcxMemory(const UcxContext& context) : context_(context) {}
  ~UcxMemory();
  UcxMemory(const UcxMemory&) = delete;
  UcxMemory& operator=(const UcxMemory&) = delete;

  Result<RegionId> add(std::span<std::byte> memory);
  void remove(RegionId id);
  const RegionTable& regions() const { return regions_; }
  ucp_mem_h handle(RegionId id) const { return mapped_.at(id).handle; }
  // The regions, and of each the key for peers.
  void put(AddressWriter& address) const;

 private:
  struct Mapped {
    ucp_mem_h handle = nullptr;
    std::vector<std::byte> key{};  // packed
  };

  const UcxContext& context_;
  RegionTable regions_;
  std::map<RegionId, Mapped> mapped_;
};

}  // namespace kvpush
