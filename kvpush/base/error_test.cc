#include "kvpush/base/error.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <string>

namespace kvpush {
namespace {

TEST(ErrorCode, HasANameOfItsOwnForEachValue) {
  std::set<std::string_view> names;

  for (const ErrorCode code : kErrorCodes) names.insert(error_name(code));

  EXPECT_EQ(names.size(), std::size(kErrorCodes));
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(ErrorCode, HasARowInTheErrorsPageWithItsNumber) {
  std::ifstream page("docs/errors.md");
  ASSERT_TRUE(page.is_open()) << "docs/errors.md is read from the source folder";
  std::set<std::string> rows;
  const std::regex row(R"(^\| (\d+) \| `(\w+)` \|.*)");
  for (std::string line; std::getline(page, line);) {
    std::smatch match;
    if (std::regex_match(line, match, row)) rows.insert(match[1].str() + " " + match[2].str());
  }

  std::set<std::string> codes;
  for (const ErrorCode code : kErrorCodes) {
    codes.insert(std::to_string(static_cast<int>(code)) + " " + std::string(error_name(code)));
  }

  EXPECT_EQ(rows, codes);
}

}  // namespace
}  // namespace kvpush
