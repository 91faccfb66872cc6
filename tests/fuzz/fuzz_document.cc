// Any text as the document of an engine or a rank, and as what a rank says of its transfers and metrics.
#include <boost/json/parse.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"
#include "kvpush/directory/engine.h"
#include "kvpush/directory/gather.h"

namespace kvpush {
namespace {

void check_documents(std::string_view text) {
  if (const auto rank = parse_rank(text)) {
    const auto again = parse_rank(to_json(*rank));
    KVPUSH_CHECK(again && *again == *rank, "a rank's document survives being sent on");
  }
  if (const auto engine = parse_engine(text)) {
    KVPUSH_CHECK(!engine->ranks.empty() && engine->ranks.size() <= kRanksMax, "an engine has ranks, and not too many");
    const auto again = parse_engine(to_json(*engine));
    KVPUSH_CHECK(again && *again == *engine, "an engine's document survives being sent on");
  }
}

void check_transfers(const std::vector<RankAnswer>& answers) {
  boost::system::error_code error;
  const auto value = boost::json::parse(gather_transfers(answers), error);
  KVPUSH_CHECK(!error && value.is_array(), "whatever a rank says, the whole is JSON");
  KVPUSH_CHECK(value.get_array().size() == answers.size(), "each rank has its place");
}

void check_metrics(const std::vector<RankAnswer>& answers) {
  const std::string text = gather_metrics(answers, "");
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    KVPUSH_CHECK(line.starts_with('#') || line.find("{rank=\"") != std::string_view::npos, "each sample has its rank");
  }
}

}  // namespace
}  // namespace kvpush

// Shows E3.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvpush;
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_documents(text);
  const std::vector<RankAnswer> answers = {{0, text}, {1, fail(ErrorCode::kTimeout, "late")}, {2, text}};
  check_transfers(answers);
  check_metrics(answers);
  return 0;
}
