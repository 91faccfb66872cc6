#include "kvpush/directory/gather.h"

#include <boost/json.hpp>
#include <boost/system/error_code.hpp>
#include <map>
#include <optional>
#include <utility>

namespace kvpush {
namespace {

namespace json = boost::json;

// The lines of one metric family.
struct Family {
  std::size_t first_text = 0;
  std::string comments{};  // HELP and TYPE
  std::string samples{};
};

// Families in order of first appearance.
//
// Job: sorts the lines of several texts by family, as the text format asks for.
// Thread: value type.
class Families {
 public:
  // The comments of a family are those of the first text that has it.
  void add(std::string_view text, std::optional<std::uint32_t> rank) {
    ++text_;
    Family* family = nullptr;
    std::string name;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
        const std::string_view rest = line.substr(7);
        const std::string_view of = rest.substr(0, rest.find(' '));
        if (family == nullptr || name != of) family = &named(name = of);
        if (family->first_text == text_) family->comments.append(line) += '\n';
      } else if (!line.empty() && line[0] != '#') {
        if (family == nullptr) family = &named({});
        append_sample(family->samples, line, rank);
      }
    }
  }

  std::string text() const {
    std::string all;
    for (const std::string& name : order_) all.append(by_name_.at(name).comments).append(by_name_.at(name).samples);
    return all;
  }

 private:
  Family& named(const std::string& name) {
    const auto [found, is_new] = by_name_.try_emplace(name, Family{.first_text = text_});
    if (is_new) order_.push_back(name);
    return found->second;
  }

  static void append_sample(std::string& out, std::string_view line, std::optional<std::uint32_t> rank) {
    if (!rank) {
      out.append(line) += '\n';
      return;
    }
    const std::size_t name_end = line.find_first_of("{ ");
    if (name_end == std::string_view::npos) return;
    out.append(line.substr(0, name_end)).append("{rank=\"").append(std::to_string(*rank)).append("\"");
    const bool labelled = line[name_end] == '{';
    out.append(labelled ? (line.substr(name_end + 1).starts_with('}') ? "" : ",") : "}");
    out.append(line.substr(labelled ? name_end + 1 : name_end)) += '\n';
  }

  std::map<std::string, Family> by_name_;
  std::vector<std::string> order_;
  std::size_t text_ = 0;  // number of the one that is added
};

// The fields of a JSON object as they were written, or nothing if it is none or has none.
std::optional<std::string_view> fields_of(std::string_view text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object() || value.get_object().empty()) return std::nullopt;
  const std::size_t begin = text.find('{') + 1;
  return text.substr(begin, text.rfind('}') - begin);
}

void append_transfers(std::string& out, const RankAnswer& answer) {
  out.append("{\"rank\":").append(std::to_string(answer.rank)).append(",");
  const auto fields = answer.body ? fields_of(*answer.body) : std::nullopt;
  if (fields) {
    out.append(*fields);
  } else {
    const ErrorCode code = answer.body ? ErrorCode::kBadMessage : answer.body.error().code;
    out.append("\"error\":\"").append(error_name(code)).append("\"");
  }
  out.append("}");
}

}  // namespace

std::string gather_transfers(const std::vector<RankAnswer>& answers) {
  std::string text = "[";
  for (const RankAnswer& answer : answers) {
    if (&answer != &answers.front()) text += ',';
    append_transfers(text, answer);
  }
  return text += "]";
}

std::string gather_metrics(const std::vector<RankAnswer>& answers, std::string_view own) {
  Families families;
  for (const RankAnswer& answer : answers) {
    if (answer.body) families.add(*answer.body, answer.rank);
  }
  families.add(own, std::nullopt);
  std::string text = families.text();
  text += "# HELP kvpush_rank_up Whether the rank answered the directory.\n# TYPE kvpush_rank_up gauge\n";
  for (const RankAnswer& answer : answers) {
    text.append("kvpush_rank_up{rank=\"").append(std::to_string(answer.rank)).append("\"} ");
    text.append(answer.body ? "1" : "0") += '\n';
  }
  return text;
}

}  // namespace kvpush
