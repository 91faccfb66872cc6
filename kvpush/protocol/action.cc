#include "kvpush/protocol/action.h"

namespace kvpush {

std::vector<TransportOffer> offers(const std::vector<TransportView>& transports) {
  std::vector<TransportOffer> offers;
  for (const TransportView& transport : transports) offers.push_back({transport.name, transport.address});
  return offers;
}

}  // namespace kvpush
