#include "kvpush/standin/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

namespace kvpush {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr EngineRole kBoth = EngineRole::kBoth;

std::string with_params(const std::string& params) {
  return R"({"prompt": [1], "kv_transfer_params": )" + params + "}";
}

std::string why_not(const std::string& body, EngineRole role = kBoth) {
  const auto call = read_completion(body, role);
  return call ? "it was read" : call.error().what;
}

TEST(ReadCompletion, TakesTokensOrText) {
  const std::vector<Token> hi{Token{'h'}, Token{'i'}};

  EXPECT_EQ(read_completion(R"({"prompt": "hi"})", kBoth)->prompt, hi);
  EXPECT_EQ(read_completion(R"({"prompt": [104, 105]})", kBoth)->prompt, hi);
  EXPECT_EQ(read_completion(R"({"prompt": ["hi"]})", kBoth)->prompt, hi);
  EXPECT_EQ(read_completion(R"({"prompt": [[104, 105]]})", kBoth)->prompt, hi);
}

TEST(ReadCompletion, HasTheDefaultsOfTheApi) {
  const auto call = read_completion(R"({"prompt": "hi", "temperature": 0, "unheard_of": {}})", kBoth);

  ASSERT_TRUE(call);
  EXPECT_EQ(call->output_tokens, 16u);
  EXPECT_FALSE(call->streams);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(call->leg));
}

TEST(ReadCompletion, SaysWhatIsWrong) {
  EXPECT_THAT(why_not("nonsense"), HasSubstr("JSON"));
  EXPECT_THAT(why_not("[]"), HasSubstr("JSON object"));
  EXPECT_THAT(why_not("{}"), StartsWith("prompt"));
  EXPECT_THAT(why_not(R"({"prompt": []})"), HasSubstr("empty"));
  EXPECT_THAT(why_not(R"({"prompt": ""})"), HasSubstr("empty"));
  EXPECT_THAT(why_not(R"({"prompt": ["a", "b"]})"), HasSubstr("token"));
  EXPECT_THAT(why_not(R"({"prompt": [-1]})"), HasSubstr("token"));
  EXPECT_THAT(why_not(R"({"prompt": [1.5]})"), HasSubstr("token"));
  EXPECT_THAT(why_not(R"({"prompt": "a", "max_tokens": 0})"), StartsWith("max_tokens"));
  EXPECT_THAT(why_not(R"({"prompt": "a", "max_tokens": 65537})"), StartsWith("max_tokens"));
  EXPECT_THAT(why_not(R"({"prompt": "a", "stream": 1})"), StartsWith("stream"));
  EXPECT_THAT(why_not(R"({"prompt": "a", "n": 2})"), StartsWith("n is 1"));
}

TEST(ReadCompletion, ReadsBothLegs) {
  const auto prefill = read_completion(with_params(R"({"do_remote_decode": true, "transfer_id": "t"})"), kBoth);
  const auto decode = read_completion(with_params(R"({"do_remote_prefill": true, "do_remote_decode": false,
      "transfer_id": "t", "remote_host": "h", "remote_port": 9, "remote_engine_id": "ignored"})"),
                                      kBoth);

  EXPECT_EQ(std::get<PrefillLeg>(prefill->leg).transfer_id, "t");
  EXPECT_EQ(std::get<DecodeLeg>(decode->leg).transfer_id, "t");
  EXPECT_EQ(std::get<DecodeLeg>(decode->leg).producer, (Endpoint{"h", 9}));
}

TEST(ReadCompletion, LeavesTheTransferIdOfAPrefillLegToTheEngine) {
  const auto call = read_completion(with_params(R"({"do_remote_decode": true, "transfer_id": null})"), kBoth);

  EXPECT_EQ(std::get<PrefillLeg>(call->leg).transfer_id, "");
}

TEST(ReadCompletion, TakesParamsThatAskForNothing) {
  for (const char* params : {"null", "{}", R"({"do_remote_decode": false, "do_remote_prefill": null})"}) {
    const auto call = read_completion(with_params(params), kBoth);
    ASSERT_TRUE(call) << params;
    EXPECT_TRUE(std::holds_alternative<std::monostate>(call->leg)) << params;
  }
}

TEST(ReadCompletion, NamesTheParamThatIsWrong) {
  EXPECT_THAT(why_not(with_params("7")), StartsWith("kv_transfer_params"));
  EXPECT_THAT(why_not(with_params(R"({"do_remote_decode": "yes"})")), StartsWith("do_remote_decode"));
  EXPECT_THAT(why_not(with_params(R"({"do_remote_decode": true, "do_remote_prefill": true})")), HasSubstr("both"));
  EXPECT_THAT(why_not(with_params(R"({"do_remote_decode": true, "transfer_id": 5})")), StartsWith("transfer_id"));
  EXPECT_THAT(why_not(with_params(R"({"do_remote_decode": true, "transfer_id": "a\nb"})")), StartsWith("transfer_id"));
  const std::string long_id(129, 'x');
  EXPECT_THAT(why_not(with_params(R"({"do_remote_decode": true, "transfer_id": ")" + long_id + "\"}")),
              StartsWith("transfer_id"));
  EXPECT_THAT(why_not(with_params(R"({"do_remote_prefill": true})")), StartsWith("transfer_id"));
  EXPECT_THAT(why_not(with_params(R"({"do_remote_prefill": true, "transfer_id": "t"})")), StartsWith("remote_host"));
  EXPECT_THAT(why_not(with_params(R"({"do_remote_prefill": true, "transfer_id": "t", "remote_host": "h",
                                      "remote_port": 65536})")),
              StartsWith("remote_port"));
}

TEST(ReadCompletion, RefusesTheLegOfTheOtherRole) {
  const std::string prefill = with_params(R"({"do_remote_decode": true})");
  const std::string decode =
      with_params(R"({"do_remote_prefill": true, "transfer_id": "t", "remote_host": "h", "remote_port": 1})");

  EXPECT_TRUE(read_completion(prefill, EngineRole::kPrefill));
  EXPECT_THAT(why_not(prefill, EngineRole::kDecode), HasSubstr("for decode"));
  EXPECT_TRUE(read_completion(decode, EngineRole::kDecode));
  EXPECT_THAT(why_not(decode, EngineRole::kPrefill), HasSubstr("for prefill"));
}

TEST(CompletionJson, SaysWhereThePromptsKvIs) {
  const CompletionEnd end{.prompt_tokens = 3, .output_tokens = 1, .transfer = DecodeLeg{"made", {"10.0.0.1", 4711}}};

  const auto answer = boost::json::parse(completion_json({"cmpl-1", 12, "m"}, " 0001", end));

  EXPECT_EQ(answer.at("kv_transfer_params"), boost::json::parse(R"({"do_remote_prefill": true,
      "do_remote_decode": false, "transfer_id": "made", "remote_host": "10.0.0.1", "remote_port": 4711})"));
  EXPECT_EQ(answer.at("choices").at(0).at("text"), " 0001");
  EXPECT_EQ(answer.at("usage"),
            boost::json::parse(R"({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4})"));
}

TEST(CompletionEvent, EndsWithABlankLineAndTheReasonInTheLastOne) {
  const CompletionNames names{"cmpl-1", 12, "m"};
  const CompletionEnd end{.prompt_tokens = 3, .output_tokens = 1};

  const std::string middle = completion_event(names, " 0001", nullptr);
  const std::string last = completion_event(names, "", &end);

  for (const std::string& event : {middle, last}) {
    EXPECT_THAT(event, StartsWith("data: {"));
    EXPECT_THAT(event, testing::EndsWith("}\n\n"));
  }
  EXPECT_THAT(middle, HasSubstr(R"("finish_reason":null)"));
  EXPECT_THAT(last, HasSubstr(R"("finish_reason":"length")"));
}

}  // namespace
}  // namespace kvpush
