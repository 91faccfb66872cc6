#include "kvpush/router/answer.h"

#include <gtest/gtest.h>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <boost/system/error_code.hpp>

namespace kvpush {
namespace {

TEST(ErrorReply, IsJsonWhateverItQuotes) {
  const HttpReply reply = error_reply(502, "a server answered \"\xff\n\"");

  boost::system::error_code error;
  const boost::json::value body = boost::json::parse(reply.body, error);
  ASSERT_FALSE(error) << reply.body;
  EXPECT_EQ(body.at("error").at("message"), "a server answered \"\xef\xbf\xbd\n\"");
}

}  // namespace
}  // namespace kvpush
