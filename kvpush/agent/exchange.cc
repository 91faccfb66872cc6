#include "kvpush/agent/exchange.h"

#include <algorithm>
#include <utility>

#include "kvpush/base/check.h"

namespace kvpush {

bool Exchange::submit(std::vector<Command>& commands) {
  const auto owes = [](const Command& command) {
    return std::holds_alternative<Receive>(command) || std::holds_alternative<Send>(command) ||
           std::holds_alternative<Await>(command);
  };
  const auto count = static_cast<std::size_t>(std::ranges::count_if(commands, owes));
  if (events_owed_.fetch_add(count) + count > kEventsMax || !commands_.try_post_all(commands)) {
    events_owed_.fetch_sub(count);
    return false;
  }
  return true;
}

void Exchange::take_events(std::vector<EngineEvent>& into, Instant now) {
  into.clear();
  std::vector<Event> events;
  events_.take(events);
  events_owed_.fetch_sub(events.size());
  for (Event& event : events) {
    if (const auto* received = std::get_if<ReceiveEnded>(&event.event)) {
      // Full only when the agent does not run any more, and then nobody asks.
      seen_.try_post(SeenByEngine{event.record, received->times.ended.value_or(now), now});
    }
    into.push_back(std::move(event.event));
  }
}

void Exchange::tell(Event event) {
  const bool has_room = events_.try_post(event);
  KVPUSH_CHECK(has_room, "an event has room since its command was taken");
}

}  // namespace kvpush
