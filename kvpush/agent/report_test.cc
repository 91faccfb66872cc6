#include "kvpush/agent/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "kvpush/base/random.h"
#include "kvpush/http/server.h"

namespace kvpush {
namespace {

using namespace std::chrono_literals;

RankLayout small_layout() {
  return {{Plane{.layer = "layers.0",
                 .component = Component::kLatent,
                 .group = 0,
                 .dtype = "uint8",
                 .element_bytes = 1,
                 .block_tokens = 4,
                 .block_count = 4,
                 .heads = {},
                 .base = 4096,
                 .block_stride_bytes = 32,
                 .head_stride_bytes = 8,
                 .token_stride_bytes = 8,
                 .inner_bytes = 8}}};
}

struct ReportTest : testing::Test {
  const RankName self{"engine", Incarnation{1}, 0, 1};
  Producer producer{self, small_layout(), {}, {}};
  Consumer consumer{self, small_layout(), {}, {}, Random{1}};
  Report report;
  const Instant start{1000s};
};

ReceiveEnded received(std::optional<ErrorCode> error) {
  return {.request = "r", .transfer_id = "t", .error = error, .bytes = 0, .tokens = 0, .producer = {}, .times = {}};
}
SendEnded sent() {
  return {
      .request = "r", .transfer_id = "t", .error = {}, .bytes = 0, .tokens = 0, .consumer = "decode-1", .times = {}};
}

std::set<std::string> names_in(const std::string& text, const std::regex& pattern) {
  std::set<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    names.insert((*match)[1]);
  }
  return names;
}

TEST_F(ReportTest, HasTheMetricsThatAreDocumented) {
  report.ended(received({}));
  report.ended(sent());
  Registry of_http_address;
  http_bad_requests(of_http_address);
  const auto made =
      names_in(report.metrics(producer, consumer, {}, {{"cma", "process_vm_writev"}}) + of_http_address.render(),
               std::regex("# TYPE (kvpush_\\w+)"));

  std::ifstream file("docs/metrics.md");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text = std::regex_replace(text, std::regex("`(kvpush_\\w+)started_total`, `_refused_total`, `_lost_total`"),
                            "`$1started_total` `$1refused_total` `$1lost_total`");
  const auto documented = names_in(text, std::regex("`(kvpush_\\w+)`"));

  EXPECT_EQ(made, documented);
}

TEST_F(ReportTest, HasEachOutcomeFromTheStart) {
  const std::string text = report.metrics(producer, consumer, {}, {});

  EXPECT_THAT(text, testing::HasSubstr("kvpush_receives_total{outcome=\"delivered\"} 0\n"));
  EXPECT_THAT(text, testing::HasSubstr("kvpush_receives_total{outcome=\"timeout\"} 0\n"));
  EXPECT_THAT(text, testing::HasSubstr("kvpush_sends_total{outcome=\"aborted\"} 0\n"));
}

// Shows F4.
TEST_F(ReportTest, ShowsTheTimelineOfAReceivedTransfer) {
  const ReceiveEnded ended{
      .request = "r",
      .transfer_id = "t",
      .error = {},
      .bytes = 96,
      .tokens = 3,
      .producer = {"10.0.0.1", 9100},
      .times = {
          .received = start,
          .registered = start + 1ms,
          .ended = start + 10ms,
          .producer = {.since_offered = 5ms, .since_matched = 4ms, .since_first_post = 3ms, .since_last_post = 2ms}}};

  report.seen({report.ended(ended), start + 10ms, start + 12ms});

  const std::string transfers = report.transfers(producer, consumer);
  EXPECT_THAT(transfers, testing::HasSubstr(R"("peer":"10.0.0.1:9100","outcome":"delivered","bytes":96,"tokens":3)"));
  EXPECT_THAT(transfers, testing::HasSubstr(R"("received":0.000000,"registered":0.001000,"offered":0.005000)"));
  EXPECT_THAT(transfers, testing::HasSubstr(R"("last_post":0.008000,"delivered":0.010000,"seen_by_engine":0.012000)"));
  const std::string metrics = report.metrics(producer, consumer, {}, {{"cma", "process_vm_writev"}});
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_early_seconds_sum 0.005\n"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_exposed_seconds_sum 0.005\n"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_seen_by_engine_seconds_sum 0.002\n"));
}

TEST_F(ReportTest, ExposesNoTimeInWhichNobodyHadAskedForComputedKv) {
  ReceiveEnded late = received({});
  late.times = {.received = start,
                .registered = start + 1ms,
                .ended = start + 4ms,
                .producer = {.since_offered = 30s, .since_matched = 3ms}};

  report.ended(late);

  const std::string metrics = report.metrics(producer, consumer, {}, {{"cma", "process_vm_writev"}});
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_exposed_seconds_sum 0.004\n"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_early_seconds_sum 0\n"));
}

TEST_F(ReportTest, MeasuresTheWritingOfASentTransfer) {
  SendEnded ended = sent();
  ended.times = {.offered = start,
                 .matched = start + 1ms,
                 .first_post = start + 2ms,
                 .last_post = start + 5ms,
                 .completed = start + 10ms};

  report.ended(ended);

  const std::string metrics = report.metrics(producer, consumer, {}, {{"cma", "process_vm_writev"}});
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_send_seconds_sum 0.01\n"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_write_seconds_sum 0.008\n"));
}

// Shows F1.
TEST_F(ReportTest, CountsWhatTheMachinesCountedOnce) {
  Actions actions;
  ASSERT_TRUE(producer.on(Send{"r", "t", 4, {pack(std::vector{BlockId{0}})}}, start, actions));

  report.metrics(producer, consumer, {}, {{"cma", "process_vm_writev"}});
  const std::string metrics = report.metrics(producer, consumer, {}, {{"cma", "process_vm_writev"}});

  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_requests{role=\"producer\"} 1"));
  EXPECT_THAT(report.transfers(producer, consumer), testing::HasSubstr(R"("outcome":"held")"));
}

// Shows F1.
TEST_F(ReportTest, CountsASessionWithoutACommonSecretNotAmongTheRefused) {
  const Endpoint directory{"10.0.0.1", 9100};
  Actions actions;
  ASSERT_TRUE(consumer.on(Receive{"r", "t", directory, {0, 4}, {pack(std::vector{BlockId{0}})}}, start, actions));
  consumer.on_resolved(directory, ProducerEngine{"p", Incarnation{2}, {{"10.0.0.1", 9101}}}, start, actions);
  consumer.on_dialled(directory, 0, ConnectionId{1});

  consumer.on(ConnectionId{1}, Refused{ErrorCode::kUnauthenticated, "another secret"}, start, actions);

  const std::string metrics = report.metrics(producer, consumer, {}, {{"cma", "process_vm_writev"}});
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_sessions_unauthenticated_total{role=\"consumer\"} 1\n"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvpush_sessions_refused_total{role=\"consumer\"} 0\n"));
}

TEST_F(ReportTest, NamesTheConsumerOfASentTransfer) {
  report.ended(sent());

  EXPECT_THAT(report.transfers(producer, consumer), testing::HasSubstr(R"("peer":"decode-1","outcome":"delivered")"));
}

// Shows F2.
TEST_F(ReportTest, ShowsTheWiresInUseNow) {
  report.metrics(producer, consumer, {}, {{"ucx", "not connected"}});
  const std::string metrics = report.metrics(producer, consumer, {}, {{"ucx", "tcp"}});

  EXPECT_THAT(metrics, testing::HasSubstr(R"(kvpush_transport_info{transport="ucx",wire="not connected"} 0)"));
  EXPECT_THAT(metrics, testing::HasSubstr(R"(kvpush_transport_info{transport="ucx",wire="tcp"} 1)"));
}

// Shows F1.
TEST_F(ReportTest, NamesTheReasonOfARequestThatFailed) {
  report.ended(received(ErrorCode::kPeerLost));

  EXPECT_THAT(report.transfers(producer, consumer), testing::HasSubstr(R"("outcome":"peer_lost")"));
  EXPECT_THAT(report.metrics(producer, consumer, {}, {{"cma", "process_vm_writev"}}),
              testing::HasSubstr(R"(kvpush_receives_total{outcome="peer_lost"} 1)"));
}

}  // namespace
}  // namespace kvpush
