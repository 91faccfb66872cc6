#include "kvpush/layout/assignment.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace kvpush {
namespace {

// Finds a rank's planes by layer and component.
class PlaneIndex {
 public:
  explicit PlaneIndex(const RankLayout& layout) {
    for (std::uint32_t i = 0; const Plane& plane : layout.planes) index_.emplace(key(plane), i++);
  }
  std::optional<std::uint32_t> find(const Plane& like) const {
    const auto found = index_.find(key(like));
    return found == index_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  using Key = std::pair<std::string_view, Component>;
  static Key key(const Plane& plane) { return {plane.layer, plane.component}; }

  std::map<Key, std::uint32_t> index_;
};

// A producer rank that has the plane in question.
struct Holder {
  std::uint32_t rank = 0;
  std::uint32_t plane = 0;
  HeadRange heads;
};

std::uint64_t end(const HeadRange& heads) {
  return std::uint64_t{heads.first} + heads.count;
}

std::string plane_text(const Plane& plane) {
  return "layer \"" + plane.layer + "\", component " + std::string(component_name(plane.component));
}

// Nothing if both planes hold the same kind of bytes, else what differs.
std::optional<Mismatch> compare(const Plane& consumer, const Plane& producer, std::uint32_t producer_rank) {
  const auto differ = [&](const char* what, const std::string& wanted, const std::string& found) {
    return Mismatch{"In " + plane_text(consumer) + ", " + what + " is " + wanted + " at the consumer and " + found +
                    " at producer rank " + std::to_string(producer_rank) + "."};
  };
  const auto differ_in_number = [&](const char* what, std::uint64_t wanted, std::uint64_t found) {
    return differ(what, std::to_string(wanted), std::to_string(found));
  };
  if (consumer.dtype != producer.dtype) return differ("the dtype", consumer.dtype, producer.dtype);
  if (consumer.element_bytes != producer.element_bytes) {
    return differ_in_number("the element size in bytes", consumer.element_bytes, producer.element_bytes);
  }
  if (consumer.inner_bytes != producer.inner_bytes) {
    return differ_in_number("the size in bytes of one token and head", consumer.inner_bytes, producer.inner_bytes);
  }
  if (consumer.heads.total != producer.heads.total) {
    return differ_in_number("the number of heads", consumer.heads.total, producer.heads.total);
  }
  return std::nullopt;
}

// The holder of `head` that writes it for this consumer rank: consumer ranks that want the same heads take turns.
std::optional<Holder> choose(std::span<const Holder> holders, std::uint64_t head, std::uint32_t consumer_rank) {
  const auto has_head = [head](const Holder& holder) { return holder.heads.first <= head && head < end(holder.heads); };
  const auto count = static_cast<std::size_t>(std::ranges::count_if(holders, has_head));
  if (count == 0) return std::nullopt;
  std::size_t turn = consumer_rank % count;
  for (const Holder& holder : holders) {
    if (has_head(holder) && turn-- == 0) return holder;
  }
  return std::nullopt;
}

Mismatch missing_head(const Plane& plane, std::uint64_t head) {
  return {"In " + plane_text(plane) + ", no producer rank holds head " + std::to_string(head) +
          " of the consumer's heads " + std::to_string(plane.heads.first) + " to " +
          std::to_string(end(plane.heads) - 1) + "."};
}

// Shares out the heads of one consumer plane. Each step uses up one holder, so there are at most as many as holders.
std::optional<Mismatch> share_out(const Plane& plane, std::uint32_t plane_index, std::uint32_t consumer_rank,
                                  std::span<const Holder> holders, std::vector<Assignment>& assignments) {
  std::uint64_t head = plane.heads.first;
  while (head < end(plane.heads)) {
    const std::optional<Holder> holder = choose(holders, head, consumer_rank);
    if (!holder) return missing_head(plane, head);
    const std::uint64_t share_end = std::min(end(holder->heads), end(plane.heads));
    assignments[holder->rank].push_back({.producer_plane = holder->plane,
                                         .consumer_plane = plane_index,
                                         .producer_head = static_cast<std::uint32_t>(head - holder->heads.first),
                                         .consumer_head = static_cast<std::uint32_t>(head - plane.heads.first),
                                         .head_count = static_cast<std::uint32_t>(share_end - head)});
    head = share_end;
  }
  return std::nullopt;
}

bool in_range(std::uint32_t head, std::uint32_t count, const HeadRange& heads) {
  return std::uint64_t{head} + count <= heads.count;
}

// Whether no (plane, head) of the consumer is written twice. It also bounds the shares by the heads that exist.
bool shares_are_disjoint(Assignment assignment) {
  const auto place = [](const PlaneShare& share) { return std::pair(share.consumer_plane, share.consumer_head); };
  std::ranges::sort(assignment, {}, place);
  const auto overlap = [](const PlaneShare& before, const PlaneShare& after) {
    return before.consumer_plane == after.consumer_plane &&
           std::uint64_t{before.consumer_head} + before.head_count > after.consumer_head;
  };
  return std::ranges::adjacent_find(assignment, overlap) == assignment.end();
}

Result<void> validate(const PlaneShare& share, const RankLayout& producer_layout, const RankLayout& consumer_layout) {
  const auto refuse = [](const char* what) { return fail(ErrorCode::kLayoutMismatch, what); };
  if (share.producer_plane >= producer_layout.planes.size() || share.consumer_plane >= consumer_layout.planes.size()) {
    return refuse("an assignment names a plane that does not exist");
  }
  const Plane& producer = producer_layout.planes[share.producer_plane];
  const Plane& consumer = consumer_layout.planes[share.consumer_plane];
  if (producer.layer != consumer.layer || producer.component != consumer.component) {
    return refuse("an assignment pairs different layers or components");
  }
  if (compare(consumer, producer, 0)) return refuse("an assignment pairs planes that hold different kinds of bytes");
  if (share.head_count == 0 || !in_range(share.producer_head, share.head_count, producer.heads) ||
      !in_range(share.consumer_head, share.head_count, consumer.heads)) {
    return refuse("an assignment names heads that do not exist");
  }
  if (std::uint64_t{producer.heads.first} + share.producer_head !=
      std::uint64_t{consumer.heads.first} + share.consumer_head) {
    return refuse("an assignment pairs different heads of the model");
  }
  return {};
}

}  // namespace

std::expected<std::vector<Assignment>, Mismatch> assign(const RankLayout& consumer, std::uint32_t consumer_rank,
                                                        std::span<const RankLayout> producers) {
  const std::vector<PlaneIndex> indexes(producers.begin(), producers.end());
  std::vector<Assignment> assignments(producers.size());
  std::vector<Holder> holders;
  for (std::uint32_t i = 0; const Plane& plane : consumer.planes) {
    holders.clear();
    for (std::uint32_t rank = 0; rank < producers.size(); ++rank) {
      const std::optional<std::uint32_t> found = indexes[rank].find(plane);
      if (!found) continue;
      const Plane& held = producers[rank].planes[*found];
      if (auto mismatch = compare(plane, held, rank)) return std::unexpected(*std::move(mismatch));
      holders.push_back({.rank = rank, .plane = *found, .heads = held.heads});
    }
    if (holders.empty()) return std::unexpected(Mismatch{"No producer rank has " + plane_text(plane) + "."});
    if (auto mismatch = share_out(plane, i++, consumer_rank, holders, assignments)) {
      return std::unexpected(*std::move(mismatch));
    }
  }
  return assignments;
}

Result<void> validate(const Assignment& assignment, const RankLayout& producer, const RankLayout& consumer) {
  for (const PlaneShare& share : assignment) {
    if (const Result<void> valid = validate(share, producer, consumer); !valid) return valid;
  }
  if (!shares_are_disjoint(assignment)) {
    return fail(ErrorCode::kLayoutMismatch, "an assignment writes a head twice");
  }
  return {};
}

}  // namespace kvpush
