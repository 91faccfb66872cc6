#include "convert.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>

#include "kvpush/layout/block_table.h"

namespace nb = nanobind;

namespace kvpush::python {
namespace {

// Three decades, on either clock; nanoseconds of any sum of a few stay far from overflow.
constexpr double kSecondsMax = 1e9;

// Without conversions: what is no T raises TypeError and names `what`.
template <class T>
T to(nb::handle value, const char* what) {
  T converted{};
  if (!nb::try_cast(value, converted, false)) throw nb::type_error(what);
  return converted;
}

template <class T>
T field(nb::handle object, const char* name) {
  return to<T>(object.attr(name), name);
}

Endpoint producer_of(nb::handle command) {
  return {field<std::string>(command, "host"), field<std::uint16_t>(command, "port")};
}

BlockTables to_tables(nb::handle arrays) {
  using Ids = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  BlockTables tables;
  std::vector<BlockId> blocks;
  for (nb::handle array : arrays) {
    const auto ids = to<Ids>(array, "a block table is a one-dimensional array of uint32");
    blocks.clear();
    for (std::size_t i = 0; i < ids.shape(0); ++i) blocks.push_back({ids(i)});
    tables.push_back(pack(blocks));
  }
  return tables;
}

Command to_command(nb::handle command) {
  const auto kind = nb::cast<std::string>(command.type().attr("__name__"));
  const auto text = [&](const char* name) { return field<std::string>(command, name); };
  if (kind == "Receive") {
    return Receive{.request = text("request"),
                   .transfer_id = text("transfer_id"),
                   .producer = producer_of(command),
                   .tokens = {field<std::uint32_t>(command, "first"), field<std::uint32_t>(command, "end")},
                   .tables = to_tables(command.attr("tables"))};
  }
  if (kind == "Send") {
    return Send{.request = text("request"),
                .transfer_id = text("transfer_id"),
                .token_count = field<std::uint32_t>(command, "token_count"),
                .tables = to_tables(command.attr("tables"))};
  }
  if (kind == "Decline") return Decline{.transfer_id = text("transfer_id"), .producer = producer_of(command)};
  if (kind == "Await") return Await{.transfer_id = text("transfer_id"), .producer = producer_of(command)};
  if (kind == "Admit") return Admit{.transfer_id = text("transfer_id")};
  if (kind == "Abandon") return Abandon{.request = text("request")};
  if (kind == "Cancel") return Cancel{.request = text("request")};
  if (kind == "Withdraw") return Withdraw{.transfer_id = text("transfer_id")};
  throw nb::type_error(("no command of kvpush: " + kind).c_str());
}

Component to_component(const std::string& name) {
  for (const Component one : {Component::kKey, Component::kValue, Component::kLatent, Component::kState}) {
    if (component_name(one) == name) return one;
  }
  throw nb::value_error(("no component of a KV cache: " + name).c_str());
}

Plane to_plane(nb::handle plane) {
  const auto u32 = [&](const char* name) { return field<std::uint32_t>(plane, name); };
  const auto u64 = [&](const char* name) { return field<std::uint64_t>(plane, name); };
  return {.layer = field<std::string>(plane, "layer"),
          .component = to_component(field<std::string>(plane, "component")),
          .group = field<std::uint16_t>(plane, "group"),
          .dtype = field<std::string>(plane, "dtype"),
          .element_bytes = u32("element_bytes"),
          .block_tokens = u32("block_tokens"),
          .block_count = u32("block_count"),
          .heads = {u32("head_first"), u32("head_count"), u32("head_total")},
          .base = u64("base"),
          .block_stride_bytes = u64("block_stride_bytes"),
          .head_stride_bytes = u64("head_stride_bytes"),
          .token_stride_bytes = u64("token_stride_bytes"),
          .inner_bytes = u64("inner_bytes")};
}

Scheduled::Side to_side(const std::string& name) {
  if (name == "producer") return Scheduled::Side::kProducer;
  if (name == "consumer") return Scheduled::Side::kConsumer;
  throw nb::value_error(("no side of a transfer: " + name).c_str());
}

Instant to_instant(nb::handle seconds, const char* what) {
  return Instant{to_duration(to<double>(seconds, what))};
}

std::optional<Instant> instant_or_none(nb::handle object, const char* name) {
  const nb::object seconds = object.attr(name);
  if (seconds.is_none()) return std::nullopt;
  return to_instant(seconds, name);
}

double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

nb::object name_or_none(std::optional<ErrorCode> error) {
  if (!error) return nb::none();
  return nb::cast(std::string(error_name(*error)));
}

// What kvpush.types.Event calls `seconds`.
double seconds_of(const ReceiveEnded& ended) {
  return to_seconds(ended.times.producer.since_matched);
}
double seconds_of(const SendEnded& ended) {
  const SendingTimes& times = ended.times;
  return times.matched && times.completed ? to_seconds(*times.completed - *times.matched) : 0;
}

template <class Ended>
nb::tuple to_tuple(const Ended& ended) {
  const char* kind = std::is_same_v<Ended, ReceiveEnded> ? "receive" : "send";
  const nb::object error = name_or_none(ended.error);
  if (ended.error) return nb::make_tuple(kind, ended.request, error, 0, 0.0);
  return nb::make_tuple(kind, ended.request, error, ended.bytes, seconds_of(ended));
}

nb::tuple to_tuple(const AwaitEnded& ended) {
  return nb::make_tuple("await", ended.transfer_id, ended.producer.host, ended.producer.port);
}

}  // namespace

void raise_error(const Error& error) {
  const nb::object type = nb::module_::import_("kvpush.errors").attr("Error");
  const nb::object value = type(std::string(error_name(error.code)), error.what);
  PyErr_SetObject(type.ptr(), value.ptr());
  throw nb::python_error();
}

std::vector<Command> to_commands(const nb::list& commands) {
  std::vector<Command> converted;
  converted.reserve(commands.size());
  for (nb::handle command : commands) converted.push_back(to_command(command));
  return converted;
}

RankLayout to_layout(const nb::list& planes) {
  RankLayout layout;
  layout.planes.reserve(planes.size());
  for (nb::handle plane : planes) layout.planes.push_back(to_plane(plane));
  return layout;
}

Duration to_duration(double seconds) {
  // Also refuses what is no number.
  if (!(std::abs(seconds) <= kSecondsMax)) throw nb::value_error("a time is a finite number of seconds below 10^9");
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::vector<MemoryRange> to_regions(const nb::list& regions) {
  std::vector<MemoryRange> converted;
  for (nb::handle region : regions) {
    constexpr const char* kWhat = "a region is (address, bytes)";
    converted.push_back({to<std::uint64_t>(region[0], kWhat), to<std::uint64_t>(region[1], kWhat)});
  }
  return converted;
}

Scheduled to_scheduled(nb::handle scheduled) {
  return {.side = to_side(field<std::string>(scheduled, "side")),
          .transfer_id = field<std::string>(scheduled, "transfer_id"),
          .request = field<std::string>(scheduled, "request"),
          .tokens = field<std::uint64_t>(scheduled, "tokens"),
          .producer = producer_of(scheduled),
          .arrived = to_instant(scheduled.attr("arrived"), "arrived"),
          .admitted = instant_or_none(scheduled, "admitted"),
          .computed = instant_or_none(scheduled, "computed"),
          .reported = instant_or_none(scheduled, "reported"),
          .first_step = instant_or_none(scheduled, "first_step")};
}

nb::list to_python(const std::vector<EngineEvent>& events) {
  nb::list converted;
  for (const EngineEvent& event : events) {
    converted.append(std::visit([](const auto& ended) { return to_tuple(ended); }, event));
  }
  return converted;
}

}  // namespace kvpush::python
