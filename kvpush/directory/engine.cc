#include "kvpush/directory/engine.h"

#include <algorithm>
#include <boost/json.hpp>
#include <boost/system/error_code.hpp>
#include <charconv>
#include <cstdio>
#include <optional>
#include <utility>

#include "kvpush/base/limits.h"

namespace kvpush {
namespace {

namespace json = boost::json;

std::string incarnation_text(Incarnation incarnation) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(incarnation.value));
  return text;
}

json::object to_object(const Endpoint& endpoint) {
  return {{"host", endpoint.host}, {"port", endpoint.port}};
}

json::object to_object(const PlaneKind& kind) {
  return {{"component", component_name(kind.component)},
          {"group", kind.group},
          {"dtype", kind.dtype},
          {"element_bytes", kind.element_bytes},
          {"block_tokens", kind.block_tokens},
          {"block_count", kind.block_count},
          {"heads", {{"first", kind.heads.first}, {"count", kind.heads.count}, {"total", kind.heads.total}}},
          {"inner_bytes", kind.inner_bytes},
          {"layers", json::array(kind.layers.begin(), kind.layers.end())}};
}

// What all ranks of an engine say alike.
json::object head_of(const RankDocument& rank) {
  return {{"engine_id", rank.engine_id},
          {"version", rank.version},
          {"protocol", rank.protocol},
          {"rank_count", rank.rank_count}};
}

json::object part_of(const RankDocument& rank) {
  json::array planes;
  for (const PlaneKind& kind : rank.planes) planes.push_back(to_object(kind));
  return {{"rank", rank.rank},
          {"incarnation", incarnation_text(rank.incarnation)},
          {"control", to_object(rank.control)},
          {"http", to_object(rank.http)},
          {"planes", std::move(planes)}};
}

// Reads the fields of one object; after the first that does not fit, everything it returns is to be thrown away.
//
// Job: turns "is it there, of this type, within these bounds" into one flag for a whole document.
// Thread: value type.
class Reader {
 public:
  Reader(const json::value& value, bool& good) : object_(value.if_object()), good_(good) {
    good_ &= object_ != nullptr;
  }

  std::string text(const char* name, std::size_t bytes_max, std::size_t bytes_min = 1) {
    const json::value* value = find(name);
    const json::string* found = value != nullptr ? value->if_string() : nullptr;
    good_ &= found != nullptr && found->size() >= bytes_min && found->size() <= bytes_max;
    return good_ ? std::string(found->data(), found->size()) : std::string();
  }

  template <class T>
  T number(const char* name, T least = 0) {
    const json::value* value = find(name);
    boost::system::error_code error;
    const T number = value != nullptr ? value->to_number<T>(error) : T{};
    good_ &= value != nullptr && !value->is_double() && !error && number >= least;
    return good_ ? number : T{};
  }

  const json::array& list(const char* name, std::size_t count_max) {
    static const json::array kNone;
    const json::value* value = find(name);
    const json::array* found = value != nullptr ? value->if_array() : nullptr;
    good_ &= found != nullptr && found->size() <= count_max;
    return good_ ? *found : kNone;
  }

  Reader object(const char* name) {
    static const json::value kNone;
    const json::value* value = find(name);
    return at(value != nullptr ? *value : kNone);
  }

  Reader at(const json::value& value) { return {value, good_}; }

  void refuse_unless(bool condition) { good_ &= condition; }
  bool good() const { return good_; }

 private:
  const json::value* find(const char* name) const { return object_ != nullptr ? object_->if_contains(name) : nullptr; }

  const json::object* object_;
  bool& good_;
};

constexpr std::size_t kHostBytesMax = 253;    // of a DNS name
constexpr std::size_t kVersionBytesMax = 64;  // "0.1.0" and what packagers append

Endpoint read_endpoint(Reader reader) {
  return {reader.text("host", kHostBytesMax), reader.number<std::uint16_t>("port", 1)};
}

Incarnation read_incarnation(Reader& reader) {
  const std::string text = reader.text("incarnation", 16, 16);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  reader.refuse_unless(error == std::errc() && end == text.data() + text.size());
  return {value};
}

Component read_component(Reader& reader) {
  const std::string name = reader.text("component", kDtypeBytesMax);
  for (const Component one : {Component::kKey, Component::kValue, Component::kLatent, Component::kState}) {
    if (component_name(one) == name) return one;
  }
  reader.refuse_unless(false);
  return {};
}

HeadRange read_heads(Reader reader) {
  return {.first = reader.number<std::uint32_t>("first"),
          .count = reader.number<std::uint32_t>("count", 1),
          .total = reader.number<std::uint32_t>("total", 1)};
}

PlaneKind read_kind(Reader reader) {
  PlaneKind kind;
  kind.component = read_component(reader);
  kind.group = reader.number<std::uint16_t>("group");
  kind.dtype = reader.text("dtype", kDtypeBytesMax);
  kind.element_bytes = reader.number<std::uint32_t>("element_bytes", 1);
  kind.block_tokens = reader.number<std::uint32_t>("block_tokens", 1);
  kind.block_count = reader.number<std::uint32_t>("block_count", 1);
  kind.heads = read_heads(reader.object("heads"));
  kind.inner_bytes = reader.number<std::uint64_t>("inner_bytes", 1);
  for (const json::value& layer : reader.list("layers", kPlanesMax)) {
    const json::string* name = layer.if_string();
    reader.refuse_unless(name != nullptr && !name->empty() && name->size() <= kLayerNameBytesMax);
    if (reader.good()) kind.layers.emplace_back(name->data(), name->size());
  }
  return kind;
}

void read_head(Reader& reader, RankDocument& rank) {
  rank.engine_id = reader.text("engine_id", kEngineIdBytesMax);
  rank.version = reader.text("version", kVersionBytesMax);
  rank.protocol = reader.number<std::uint32_t>("protocol", 1);
  rank.rank_count = reader.number<std::uint32_t>("rank_count", 1);
}

void read_part(Reader& reader, RankDocument& rank) {
  rank.rank = reader.number<std::uint32_t>("rank");
  rank.incarnation = read_incarnation(reader);
  rank.control = read_endpoint(reader.object("control"));
  rank.http = read_endpoint(reader.object("http"));
  for (const json::value& kind : reader.list("planes", kPlanesMax)) rank.planes.push_back(read_kind(reader.at(kind)));
}

std::optional<json::value> parse(std::string_view text) {
  if (text.size() > kDocumentBytesMax) return std::nullopt;
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error) return std::nullopt;
  return value;
}

bool of_one_engine(const RankDocument& a, const RankDocument& b) {
  return a.engine_id == b.engine_id && a.version == b.version && a.protocol == b.protocol &&
         a.rank_count == b.rank_count;
}

}  // namespace

std::vector<PlaneKind> plane_kinds(const RankLayout& layout) {
  std::vector<PlaneKind> kinds;
  std::vector<PlaneKind> shapes;  // of the same index in `kinds`, without layers
  for (const Plane& plane : layout.planes) {
    PlaneKind kind{.component = plane.component,
                   .group = plane.group,
                   .dtype = plane.dtype,
                   .element_bytes = plane.element_bytes,
                   .block_tokens = plane.block_tokens,
                   .block_count = plane.block_count,
                   .heads = plane.heads,
                   .inner_bytes = plane.inner_bytes,
                   .layers = {}};
    const auto same = std::ranges::find(shapes, kind);
    if (same == shapes.end()) {
      shapes.push_back(kind);
      kinds.push_back(std::move(kind));
      kinds.back().layers.push_back(plane.layer);
    } else {
      kinds[static_cast<std::size_t>(same - shapes.begin())].layers.push_back(plane.layer);
    }
  }
  return kinds;
}

std::string to_json(const RankDocument& rank) {
  json::object object = head_of(rank);
  for (auto& field : part_of(rank)) object.insert(std::move(field));
  return json::serialize(object);
}

std::string to_json(const EngineDocument& engine) {
  json::object object = head_of(engine.ranks.front());
  object["incarnation"] = incarnation_text(engine.incarnation());
  json::array& ranks = object["ranks"].emplace_array();
  for (const RankDocument& rank : engine.ranks) ranks.push_back(part_of(rank));
  return json::serialize(object);
}

Result<RankDocument> parse_rank(std::string_view text) {
  const std::optional<json::value> value = parse(text);
  bool good = value.has_value();
  RankDocument rank;
  if (good) {
    Reader reader(*value, good);
    read_head(reader, rank);
    read_part(reader, rank);
  }
  if (!good) return fail(ErrorCode::kBadMessage, "not the document of a rank");
  return rank;
}

Result<EngineDocument> parse_engine(std::string_view text) {
  const std::optional<json::value> value = parse(text);
  bool good = value.has_value();
  std::vector<RankDocument> ranks;
  if (good) {
    Reader reader(*value, good);
    RankDocument common;
    read_head(reader, common);
    for (const json::value& part : reader.list("ranks", kRanksMax)) {
      Reader part_reader = reader.at(part);
      read_part(part_reader, ranks.emplace_back(common));
    }
  }
  if (!good) return fail(ErrorCode::kBadMessage, "not the document of an engine");
  return gather_ranks(std::move(ranks));
}

Result<EngineDocument> gather_ranks(std::vector<RankDocument> ranks) {
  std::ranges::sort(ranks, {}, &RankDocument::rank);
  if (ranks.empty() || ranks.size() > kRanksMax || ranks.front().rank_count != ranks.size()) {
    return fail(ErrorCode::kBadMessage, "an engine's document has every rank of the engine");
  }
  for (std::size_t index = 0; index < ranks.size(); ++index) {
    if (ranks[index].rank != index) return fail(ErrorCode::kBadMessage, "an engine's document has each rank once");
    if (!of_one_engine(ranks[index], ranks.front())) {
      return fail(ErrorCode::kBadMessage, "the ranks of an engine's document are not of one engine");
    }
  }
  return EngineDocument{std::move(ranks)};
}

}  // namespace kvpush
