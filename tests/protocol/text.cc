#include "tests/protocol/text.h"

#include <charconv>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

namespace kvpush::sim {

namespace {

std::uint64_t number(const std::vector<std::string>& words, std::size_t index) {
  std::uint64_t value = 0;
  if (index >= words.size()) return value;
  std::from_chars(words[index].data(), words[index].data() + words[index].size(), value);
  return value;
}

ErrorCode code_named(const std::string& name) {
  for (const ErrorCode code : kErrorCodes) {
    if (error_name(code) == name) return code;
  }
  ADD_FAILURE() << "no error code is named " << name;
  return ErrorCode::kBadMessage;
}

}  // namespace

Message parse_message(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    words.push_back(word.ends_with(',') || word.ends_with(':') ? word.substr(0, word.size() - 1) : word);
  }
  words.resize(std::max<std::size_t>(words.size(), 4));
  const std::string& name = words[0];
  const RegistrationNumber registration{number(words, 1)};
  if (name == "Hello") return Hello{kProtocolVersion, {}, {number(words, 2)}, {}, {}};
  if (name == "Welcome") return Welcome{};
  if (name == "Assign") return Assign{{}, words[2]};
  if (name == "Assigned") return Assigned{};
  if (name == "Refused") return Refused{code_named(words[1]), words[2]};
  if (name == "Register") return Register{registration, words[3], {}, {}};
  if (name == "Writing") return Writing{registration};
  if (name == "Delivered") return Delivered{registration, number(words, 2), {}};
  if (name == "Failed") return Failed{registration, code_named(words[2]), words[3].empty()};
  if (name == "Quiet") return Quiet{registration};
  if (name == "Revoke") return Revoke{registration};
  if (name == "Revoked") return Revoked{registration};
  if (name == "Unwanted") return Unwanted{words[1]};
  if (name == "Expect") return Expect{words[1]};
  if (name == "Admitted") return Admitted{words[1]};
  if (name == "Done") return Done{{number(words, 3)}};
  const Instant stamp{Duration{static_cast<Duration::rep>(number(words, 1))}};
  if (name == "Renew") return Renew{stamp};
  if (name == "Renewed") return Renewed{stamp};
  if (name != "Goodbye") ADD_FAILURE() << "no message is named " << name;
  return Goodbye{};
}

}  // namespace kvpush::sim
