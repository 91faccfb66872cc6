#include "kvpush/router/legs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <string>

namespace kvpush {
namespace {

using testing::HasSubstr;

const Endpoint kDirectory{"10.0.0.1", 9100};

// The two bodies as values, so that tests compare content and not spelling.
struct ParsedLegs {
  boost::json::value prefill;
  boost::json::value decode;
};

ParsedLegs legs_of(Api api, std::string_view body) {
  const auto legs = make_legs(api, body, "t-1", kDirectory);
  EXPECT_TRUE(legs.has_value()) << legs.error().message;
  return {boost::json::parse(legs->prefill), boost::json::parse(legs->decode)};
}

void expect_refused(Api api, std::string_view body, const std::string& param, const std::string& message_part) {
  const auto legs = make_legs(api, body, "t-1", kDirectory);
  ASSERT_FALSE(legs.has_value()) << body;
  EXPECT_EQ(legs.error().param, param) << body;
  EXPECT_THAT(legs.error().message, HasSubstr(message_part)) << body;
}

TEST(Legs, AskPrefillForOneTokenAndDecodeForTheAnswer) {
  const ParsedLegs legs = legs_of(Api::kCompletions, R"({"model":"m","prompt":"hi","max_tokens":64,"temperature":0})");

  EXPECT_EQ(legs.prefill, boost::json::parse(R"({"model":"m","prompt":"hi","max_tokens":1,"temperature":0,
      "stream":false,"kv_transfer_params":{"do_remote_decode":true,"transfer_id":"t-1"}})"));
  EXPECT_EQ(legs.decode, boost::json::parse(R"({"model":"m","prompt":"hi","max_tokens":64,"temperature":0,
      "kv_transfer_params":{"do_remote_prefill":true,"transfer_id":"t-1",
                            "remote_host":"10.0.0.1","remote_port":9100}})"));
}

TEST(Legs, StreamOnlyFromDecode) {
  const ParsedLegs legs = legs_of(
      Api::kCompletions,
      R"({"prompt":"hi","stream":true,"stream_options":{"include_usage":true},"min_tokens":8,"ignore_eos":true})");

  EXPECT_EQ(legs.prefill.at("stream"), false);
  EXPECT_FALSE(legs.prefill.as_object().contains("stream_options"));
  EXPECT_FALSE(legs.prefill.as_object().contains("min_tokens"));
  EXPECT_EQ(legs.prefill.at("ignore_eos"), true);
  EXPECT_EQ(legs.decode.at("stream"), true);
  EXPECT_EQ(legs.decode.at("stream_options"), boost::json::parse(R"({"include_usage":true})"));
  EXPECT_EQ(legs.decode.at("min_tokens"), 8);
}

TEST(Legs, LimitBothNamesOfTheAnswersLengthInChats) {
  const char* messages = R"("messages":[{"role":"user","content":"hi"}])";

  const ParsedLegs both =
      legs_of(Api::kChat, std::string("{") + messages + R"(,"max_completion_tokens":9,"max_tokens":8})");
  const ParsedLegs none = legs_of(Api::kChat, std::string("{") + messages + "}");

  EXPECT_EQ(both.prefill.at("max_completion_tokens"), 1);
  EXPECT_EQ(both.prefill.at("max_tokens"), 1);
  EXPECT_EQ(both.decode.at("max_completion_tokens"), 9);
  EXPECT_EQ(both.decode.at("max_tokens"), 8);
  EXPECT_EQ(none.prefill.at("max_tokens"), 1);
  EXPECT_FALSE(none.prefill.as_object().contains("max_completion_tokens"));
  EXPECT_FALSE(none.decode.as_object().contains("max_tokens"));
}

TEST(Legs, PrefillOnceForSeveralAnswers) {
  const ParsedLegs legs = legs_of(Api::kCompletions, R"({"prompt":"hi","n":4,"best_of":5,"logprobs":3})");

  EXPECT_EQ(legs.prefill.at("n"), 1);
  EXPECT_FALSE(legs.prefill.as_object().contains("best_of"));
  EXPECT_FALSE(legs.prefill.as_object().contains("logprobs"));
  EXPECT_EQ(legs.decode.at("n"), 4);
  EXPECT_EQ(legs.decode.at("best_of"), 5);
  EXPECT_EQ(legs.decode.at("logprobs"), 3);
}

// vLLM refuses each of the others without logprobs, and prefill is sent none.
TEST(Legs, AskOnlyDecodeForProbabilities) {
  const char* fields = R"("logprobs":true,"top_logprobs":2,"logprob_token_ids":[7,8])";
  const ParsedLegs legs = legs_of(Api::kChat, std::string(R"({"messages":[{}],)") + fields + "}");

  for (const char* name : {"logprobs", "top_logprobs", "logprob_token_ids"}) {
    EXPECT_FALSE(legs.prefill.as_object().contains(name)) << name;
  }
  EXPECT_EQ(legs.decode.at("logprobs"), true);
  EXPECT_EQ(legs.decode.at("top_logprobs"), 2);
  EXPECT_EQ(legs.decode.at("logprob_token_ids"), boost::json::parse("[7,8]"));
}

TEST(Legs, TakeEveryFormOfPrompt) {
  for (const char* prompt : {R"("")", R"("a")", R"(["a","b"])", "[1,2]", "[[1],[2,3]]"}) {
    const ParsedLegs legs = legs_of(Api::kCompletions, std::string(R"({"prompt":)") + prompt + "}");
    EXPECT_EQ(legs.prefill.at("prompt"), boost::json::parse(prompt));
    EXPECT_EQ(legs.decode.at("prompt"), boost::json::parse(prompt));
  }
  legs_of(Api::kCompletions, R"({"prompt":null,"prompt_embeds":"AAAA"})");
}

TEST(Legs, KeepEveryFieldAndEveryCharacterThatTheyDoNotKnow) {
  const ParsedLegs legs = legs_of(
      Api::kCompletions,
      R"({"prompt":"gr\u00fc\u00df \"x\" \ud83d\ude80\u0000","seed":9007199254740993,"top_p":0.95,"x":{"y":[null,1e-7]}})");

  for (const boost::json::value& leg : {legs.prefill, legs.decode}) {
    EXPECT_EQ(leg.at("prompt").as_string(), std::string_view("gr\xc3\xbc\xc3\x9f \"x\" \xf0\x9f\x9a\x80\0", 16));
    EXPECT_EQ(leg.at("seed"), 9007199254740993);
    EXPECT_EQ(leg.at("top_p"), 0.95);
    EXPECT_EQ(leg.at("x"), boost::json::parse(R"({"y":[null,1e-7]})"));
  }
}

// Else the two servers could see different prompts: numbers reach those through the schemas of tools.
TEST(Legs, RoundLongNumbersAlikeForBothServers) {
  for (const char* number : {"100000100000000000000000000000000000", "0.12345678901234567", "-18446744073709551617",
                             "1.7976931348623157e308", "3e-324"}) {
    const ParsedLegs legs =
        legs_of(Api::kChat, R"({"messages":[{"role":"user","content":"a"}],"x":)" + std::string(number) + "}");

    const double sent = std::strtod(number, nullptr);
    EXPECT_EQ(legs.prefill.at("x"), legs.decode.at("x"));
    EXPECT_TRUE(legs.decode.at("x").is_double());
    EXPECT_DOUBLE_EQ(legs.decode.at("x").as_double(), sent);
  }
}

TEST(Legs, TakeNullAsAbsent) {
  legs_of(Api::kCompletions,
          R"({"prompt":"a","n":null,"stream":null,"kv_transfer_params":null,"prompt_logprobs":null,"echo":null})");
}

TEST(Legs, RefuseWhatIsNoJsonObject) {
  expect_refused(Api::kCompletions, "", "", "not JSON");
  expect_refused(Api::kCompletions, "{\"prompt\":", "", "not JSON");
  expect_refused(Api::kCompletions, "{\"prompt\":\"\xff\"}", "", "not JSON");
  expect_refused(Api::kCompletions, "{} {}", "", "not JSON");
  expect_refused(Api::kCompletions, "[\"prompt\"]", "", "not a JSON object");
  expect_refused(Api::kCompletions, "null", "", "not a JSON object");
}

TEST(Legs, RefuseNumbersThatCannotBeSentOn) {
  expect_refused(Api::kCompletions, R"({"prompt":"a","x":1e400})", "", "larger than a double");
  expect_refused(Api::kCompletions, R"({"prompt":"a","x":{"y":[0,-1e400]}})", "", "larger than a double");
}

TEST(Legs, RefuseNestingAboveItsLimit) {
  const auto nested = [](std::size_t depth) {
    return "{\"prompt\":\"a\",\"x\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };

  EXPECT_TRUE(make_legs(Api::kCompletions, nested(kJsonDepthMax), "t-1", kDirectory).has_value());
  expect_refused(Api::kCompletions, nested(kJsonDepthMax + 1), "", "not JSON");
}

TEST(Legs, RefuseARequestWithoutItsPrompt) {
  expect_refused(Api::kCompletions, "{}", "prompt", "no prompt");
  expect_refused(Api::kCompletions, R"({"messages":[{}]})", "prompt", "no prompt");
  expect_refused(Api::kCompletions, R"({"prompt":[]})", "prompt", "not empty");
  expect_refused(Api::kCompletions, R"({"prompt":7})", "prompt", "a text");
  expect_refused(Api::kChat, R"({"prompt":"a"})", "messages", "no messages");
  expect_refused(Api::kChat, R"({"messages":[]})", "messages", "at least one");
  expect_refused(Api::kChat, R"({"messages":"hi"})", "messages", "a list");
}

TEST(Legs, RefuseTransferParametersOfClients) {
  expect_refused(Api::kCompletions, R"({"prompt":"a","kv_transfer_params":{}})", "kv_transfer_params",
                 "leave them out");
  expect_refused(Api::kChat, R"({"messages":[{}],"kv_transfer_params":1})", "kv_transfer_params", "leave them out");
}

TEST(Legs, RefuseCountsThatAreNone) {
  for (const char* count : {"0", "-1", "1.5", "\"2\"", "true", "99999999999999999999"}) {
    const std::string fields = std::string(R"({"prompt":"a",)");
    expect_refused(Api::kCompletions, fields + R"("n":)" + count + "}", "n", "at least 1");
    expect_refused(Api::kCompletions, fields + R"("best_of":)" + count + "}", "best_of", "at least 1");
  }
}

TEST(Legs, RefuseFlagsThatAreNone) {
  for (const char* flag : {"\"yes\"", "1", "[]"}) {
    const std::string fields = std::string(R"({"prompt":"a",)");
    expect_refused(Api::kCompletions, fields + R"("stream":)" + flag + "}", "stream", "true or false");
    expect_refused(Api::kCompletions, fields + R"("echo":)" + flag + "}", "echo", "true or false");
  }
}

TEST(Legs, RefuseProbabilitiesOfThePrompt) {
  expect_refused(Api::kCompletions, R"({"prompt":"a","prompt_logprobs":1})", "prompt_logprobs", "leave it out");
  for (const char* count : {"1", "0"}) {
    expect_refused(Api::kCompletions, R"({"prompt":"a","echo":true,"logprobs":)" + std::string(count) + "}", "echo",
                   "leave one of them out");
  }

  legs_of(Api::kCompletions, R"({"prompt":"a","echo":true})");
  legs_of(Api::kCompletions, R"({"prompt":"a","echo":false,"logprobs":1})");
}

// With echo alone vLLM computes probabilities of a chat's prompt, whatever else is asked for.
TEST(Legs, RefuseEchoInChats) {
  for (const char* more : {"", R"(,"logprobs":false)", R"(,"logprobs":true,"top_logprobs":0)"}) {
    expect_refused(Api::kChat, R"({"messages":[{}],"echo":true)" + std::string(more) + "}", "echo", "leave it out");
  }

  legs_of(Api::kChat, R"({"messages":[{}],"echo":false,"logprobs":true,"top_logprobs":1})");
}

TEST(TransferId, IsAllBitsInHexadecimal) {
  EXPECT_EQ(make_transfer_id(0x0123456789abcdef, 0xf), "0123456789abcdef000000000000000f");
}

}  // namespace
}  // namespace kvpush
