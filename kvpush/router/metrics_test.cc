#include "kvpush/router/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvpush {
namespace {

using testing::HasSubstr;

TEST(RouterMetrics, HaveEverySeriesBeforeAnythingHappens) {
  const std::string text = RouterMetrics().render();

  for (const std::string endpoint : {"completions", "chat_completions"}) {
    for (const std::string outcome :
         {"ok", "refused", "full", "prefill_failed", "decode_failed", "broken", "client_gone"}) {
      EXPECT_THAT(text, HasSubstr("kvpush_router_requests_total{endpoint=\"" + endpoint + "\",outcome=\"" + outcome +
                                  "\"} 0\n"));
    }
  }
  for (const std::string role : {"prefill", "decode"}) {
    for (const std::string outcome : {"ok", "refused", "failed", "cancelled"}) {
      EXPECT_THAT(text, HasSubstr("kvpush_router_legs_total{role=\"" + role + "\",outcome=\"" + outcome + "\"} 0\n"));
    }
  }
}

}  // namespace
}  // namespace kvpush
