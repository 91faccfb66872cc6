#include "bench/wire/load.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <string_view>

#include "kvpush/base/check.h"
#include "kvpush/base/random.h"

namespace kvpush {

std::span<const Descriptor> Shape::next(const Load& load) {
  KVPUSH_CHECK(load.length_bytes > 0 && load.total_bytes >= load.length_bytes && load.total_bytes <= kMemoryBytes &&
                   kMemoryBytes % load.total_bytes == 0 && load.total_bytes % load.length_bytes == 0,
               "a load must divide the memory");
  if (load.length_bytes != length_bytes_) {
    length_bytes_ = load.length_bytes;
    std::vector<std::uint64_t> places(kMemoryBytes / length_bytes_);
    std::iota(places.begin(), places.end(), std::uint64_t{0});
    Random random(length_bytes_);
    const auto shuffle = [&] {
      for (std::size_t i = places.size() - 1; i > 0; --i) std::swap(places[i], places[random.below(i + 1)]);
    };
    descriptors_.resize(places.size());
    shuffle();
    for (std::size_t i = 0; i < places.size(); ++i) descriptors_[i].local = local_ + places[i] * length_bytes_;
    shuffle();
    for (std::size_t i = 0; i < places.size(); ++i) descriptors_[i].remote = remote_ + places[i] * length_bytes_;
    for (Descriptor& each : descriptors_) each.length_bytes = length_bytes_;
    next_ = 0;
  }
  const std::size_t count = load.total_bytes / length_bytes_;
  if (next_ + count > descriptors_.size()) next_ = 0;
  const auto chosen = std::span<const Descriptor>(descriptors_).subspan(next_, count);
  next_ += count;
  return chosen;
}

void serve(std::span<Way> ways) {
  std::puts("ready");
  std::fflush(stdout);
  std::array<char, 32> name{};
  unsigned long length = 0;
  unsigned long total = 0;
  while (std::scanf("%31s %lu %lu", name.data(), &length, &total) == 3) {
    const auto way = std::ranges::find(ways, std::string_view(name.data()), &Way::name);
    KVPUSH_CHECK(way != ways.end(), "there is no such way");
    const Spent spent = way->move(way->shape.next({length, total}));
    std::printf("%.9f %.9f\n", spent.total.count(), spent.posting.count());
    std::fflush(stdout);
  }
}

}  // namespace kvpush
