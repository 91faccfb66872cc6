#include "kvpush/protocol/command.h"

#include "kvpush/base/limits.h"

namespace kvpush {

bool is_transfer_id(const TransferId& id) {
  return !id.empty() && id.size() <= kTransferIdBytesMax;
}

}  // namespace kvpush
