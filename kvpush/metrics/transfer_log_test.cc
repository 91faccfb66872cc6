#include "kvpush/metrics/transfer_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvpush {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr Instant kStart{seconds(100)};

TransferRecord record_named(std::string transfer_id) {
  TransferRecord record;
  record.transfer_id = std::move(transfer_id);
  record.request = "cmpl-7";
  record.role = "consumer";
  record.peer = "prefill-0/1";
  record.outcome = "delivered";
  record.bytes = 1u << 20;
  record.tokens = 4096;
  return record;
}

std::string json_of(const TransferRecord& record) {
  std::string out;
  append_json(out, record);
  return out;
}

TEST(TransferRecord, IsAnObjectWithTimesAfterItsEarliestPoint) {
  TransferRecord record = record_named("t-1");
  record.timeline.note("registered", kStart + milliseconds(2));
  record.timeline.note("offered", kStart);
  record.timeline.note("delivered", kStart + milliseconds(12) + microseconds(345));

  EXPECT_EQ(json_of(record), R"({"transfer_id":"t-1","request":"cmpl-7","role":"consumer","peer":"prefill-0/1",)"
                             R"("outcome":"delivered","bytes":1048576,"tokens":4096,"start_boot_seconds":100.000000,)"
                             R"("timeline_seconds":{"registered":0.002000,"offered":0.000000,"delivered":0.012345}})");
}

TEST(TransferRecord, NeedsNoTimeline) {
  EXPECT_THAT(json_of(record_named("t-1")), HasSubstr(R"("start_boot_seconds":0.000000,"timeline_seconds":{}})"));
}

TEST(TransferRecord, LeavesOutWhatItsMakerDoesNotCount) {
  TransferRecord record = record_named("t-1");
  record.bytes.reset();
  record.tokens.reset();

  EXPECT_THAT(json_of(record), HasSubstr(R"("outcome":"delivered","start_boot_seconds":0.000000)"));
}

TEST(Moment, IsTwoFieldsOfSeconds) {
  std::string out;

  append_json(out, Moment{.boot = kStart + milliseconds(250),
                          .wall = std::chrono::system_clock::time_point{std::chrono::seconds(1'700'000'000)}});

  EXPECT_EQ(out, R"("now_boot_seconds":100.250000,"now_unix_seconds":1700000000.000000)");
}

TEST(TransferRecord, StaysJsonWhateverBytesAnIdHas) {
  EXPECT_THAT(json_of(record_named("a\"b\\c\n\x01")), HasSubstr(R"("a\"b\\c\u000a\u0001")"));
  EXPECT_THAT(json_of(record_named("gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\x80")),
              HasSubstr("\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\x80\""));
  EXPECT_THAT(json_of(record_named("\xff\xc3")), HasSubstr(R"("\ufffd\ufffd")"));
  EXPECT_THAT(json_of(record_named("\xc0\xaf.\xed\xa0\x80")), HasSubstr(R"("\ufffd\ufffd.\ufffd\ufffd\ufffd")"));
}

TEST(TransferLog, KeepsTheNewestRecordsOldestFirst) {
  TransferLog log;

  for (std::size_t i = 0; i < kTransferRecordsMax + 3; ++i) log.add(record_named("t-" + std::to_string(i)));

  EXPECT_EQ(log.records().size(), kTransferRecordsMax);
  EXPECT_EQ(log.records().front().transfer_id, "t-3");
  EXPECT_EQ(log.records().back().transfer_id, "t-258");
}

TEST(TransferLog, IsAnArray) {
  TransferLog log;
  EXPECT_EQ(log.to_json(), "[]");

  log.add(record_named("t-1"));
  log.add(record_named("t-2"));

  EXPECT_EQ(log.to_json(), "[" + json_of(record_named("t-1")) + "," + json_of(record_named("t-2")) + "]");
}

TEST(TransferLog, TakesAPointAfterTheEnd) {
  TransferLog log;
  TransferRecord record = record_named("t-1");
  record.timeline.note("delivered", kStart);
  log.add(record_named("t-0"));
  const std::uint64_t number = log.add(record);

  log.note(number, "seen_by_engine", kStart + milliseconds(1));

  EXPECT_THAT(log.to_json(), HasSubstr(R"({"delivered":0.000000,"seen_by_engine":0.001000})"));
}

TEST(TransferLog, IgnoresAPointOfARecordItHasDropped) {
  TransferLog log;
  const std::uint64_t number = log.add(record_named("t-old"));
  for (std::size_t i = 0; i < kTransferRecordsMax; ++i) log.add(record_named("t"));

  log.note(number, "seen_by_engine", kStart);

  EXPECT_THAT(log.to_json(), Not(HasSubstr("seen_by_engine")));
}

TEST(TimelineDeathTest, HasABound) {
  Timeline timeline;
  for (std::size_t i = 0; i < kTimelinePointsMax; ++i) timeline.note("registered", kStart);

  EXPECT_DEATH(timeline.note("delivered", kStart), "a place for each of its points");
}

}  // namespace
}  // namespace kvpush
