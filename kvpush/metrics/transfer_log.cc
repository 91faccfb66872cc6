#include "kvpush/metrics/transfer_log.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "kvpush/base/check.h"
#include "kvpush/base/utf8.h"

namespace kvpush {
namespace {

void append_number(std::string& out, std::uint64_t value) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

void append_seconds(std::string& out, Duration duration) {
  char buffer[64];
  const double seconds = std::chrono::duration<double>(duration).count();
  // Microseconds: what a transfer takes is never told apart more finely.
  out.append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), seconds, std::chars_format::fixed, 6).ptr);
}

// Ids come from clients, so any byte can be inside; what is no UTF-8 becomes a replacement character.
void append_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += "\\ufffd";
    } else if (c < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      out.append("\\u00").append(1, kHex[c >> 4]).append(1, kHex[c & 15]);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  out += '"';
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  append_string(out, name);
  out += ':';
  append_string(out, value);
  out += ',';
}

void append_field(std::string& out, std::string_view name, std::optional<std::uint64_t> value) {
  if (!value) return;
  append_string(out, name);
  out += ':';
  append_number(out, *value);
  out += ',';
}

}  // namespace

void Timeline::note(const char* name, std::optional<Instant> at) {
  if (!at) return;
  KVPUSH_CHECK(count_ < points_.size(), "a timeline has a place for each of its points");
  points_[count_++] = {name, *at};
}

void append_json(std::string& out, const TransferRecord& record) {
  out += '{';
  append_field(out, "transfer_id", record.transfer_id);
  append_field(out, "request", record.request);
  append_field(out, "role", record.role);
  append_field(out, "peer", record.peer);
  append_field(out, "outcome", record.outcome);
  append_field(out, "bytes", record.bytes);
  append_field(out, "tokens", record.tokens);
  const Timeline& points = record.timeline;
  const Instant start = points.empty() ? Instant{} : std::ranges::min(points, {}, &TimelinePoint::at).at;
  out += "\"start_boot_seconds\":";
  append_seconds(out, start.time_since_epoch());
  out += ",\"timeline_seconds\":{";
  for (const TimelinePoint& point : points) {
    if (&point != points.begin()) out += ',';
    append_string(out, point.name);
    out += ':';
    append_seconds(out, point.at - start);
  }
  out += "}}";
}

void append_json(std::string& out, const Moment& now) {
  out += "\"now_boot_seconds\":";
  append_seconds(out, now.boot.time_since_epoch());
  out += ",\"now_unix_seconds\":";
  append_seconds(out, now.wall.time_since_epoch());
}

std::uint64_t TransferLog::add(TransferRecord record) {
  if (records_.size() == kTransferRecordsMax) {
    records_.pop_front();
    ++first_number_;
  }
  records_.push_back(std::move(record));
  return first_number_ + records_.size() - 1;
}

void TransferLog::note(std::uint64_t number, const char* name, Instant at) {
  KVPUSH_CHECK(number < first_number_ + records_.size(), "a point belongs to a record that was added");
  if (number >= first_number_) records_[number - first_number_].timeline.note(name, at);
}

std::string TransferLog::to_json() const {
  std::string out = "[";
  for (const TransferRecord& record : records_) {
    if (out.size() > 1) out += ',';
    append_json(out, record);
  }
  out += ']';
  return out;
}

}  // namespace kvpush
