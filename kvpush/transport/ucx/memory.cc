#include "kvpush/transport/ucx/memory.h"

#include <utility>

#include "kvpush/transport/address.h"

namespace kvpush {

UcxMemory::~UcxMemory() {
  for (const auto& [id, mapped] : mapped_) ucp_mem_unmap(context_.get(), mapped.handle);
}

Result<RegionId> UcxMemory::add(std::span<std::byte> memory) {
  const Result<RegionId> id = regions_.add(reinterpret_cast<std::uint64_t>(memory.data()), memory.size());
  if (!id) return id;
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  Mapped mapped;
  if (ucp_mem_map(context_.get(), &params, &mapped.handle) != UCS_OK) {
    regions_.remove(*id);
    return fail(ErrorCode::kUnavailable, "UCX cannot register the memory (is the limit of locked memory too low?)");
  }
  void* key = nullptr;
  std::size_t key_bytes = 0;
  const bool packed = ucp_rkey_pack(context_.get(), mapped.handle, &key, &key_bytes) == UCS_OK;
  if (packed) {
    const auto* first = static_cast<const std::byte*>(key);
    mapped.key.assign(first, first + key_bytes);
    ucp_rkey_buffer_release(key);
  }
  mapped_.emplace(*id, std::move(mapped));
  if (packed) return id;
  remove(*id);
  return fail(ErrorCode::kUnavailable, "UCX makes no key for the memory");
}

void UcxMemory::remove(RegionId id) {
  ucp_mem_unmap(context_.get(), handle(id));
  mapped_.erase(id);
  regions_.remove(id);
}

void UcxMemory::put(AddressWriter& address) const {
  put_regions(regions_, address);
  for (const Region& region : regions_.all()) address.put_sized(mapped_.at(region.id).key);
}

}  // namespace kvpush
