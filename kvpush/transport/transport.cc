#include "kvpush/transport/transport.h"

namespace kvpush {

void TransportEvents::clear() {
  completions.clear();
  lost.clear();
}

}  // namespace kvpush
