#include "kvpush/transport/copy_queue.h"

#include <algorithm>

#include "kvpush/base/check.h"
#include "kvpush/base/limits.h"

namespace kvpush {

Result<void> CopyQueue::post(PeerId peer, std::span<const Descriptor> descriptors, WriteToken token) {
  KVPUSH_CHECK(descriptors.size() <= kBatchDescriptorsMax, "a batch has more descriptors than one batch may have");
  const Result<Line*> line = line_with_room(peer);
  if (!line) return std::unexpected(line.error());
  ++(*line)->in_flight;
  (*line)->batches.push_back({.token = token, .descriptors{descriptors.begin(), descriptors.end()}});
  if ((*line)->batches.size() == 1) turns_.push_back(peer);
  return {};
}

Result<void> CopyQueue::post_failed(PeerId peer, WriteToken token, Error error) {
  const Result<Line*> line = line_with_room(peer);
  if (!line) return std::unexpected(line.error());
  ++(*line)->in_flight;
  ended_.push_back({peer, {token, error}});
  return {};
}

std::optional<Slice> CopyQueue::next() {
  while (!turns_.empty()) {
    const PeerId peer = turns_.front();
    cut(lines_.at(peer).batches.front());
    if (!pieces_.empty()) {
      turns_.pop_front();
      turns_.push_back(peer);
      return Slice{peer, pieces_};
    }
    end_oldest(peer, std::nullopt);  // it had no bytes at all
  }
  return std::nullopt;
}

void CopyQueue::advance(PeerId peer, std::uint64_t moved_bytes) {
  Batch& batch = lines_.at(peer).batches.front();
  const auto left = [&batch] { return batch.descriptors[batch.next].length_bytes - batch.moved_bytes; };
  while (batch.next < batch.descriptors.size() && moved_bytes >= left()) {
    moved_bytes -= left();
    ++batch.next;
    batch.moved_bytes = 0;
  }
  batch.moved_bytes += moved_bytes;
  if (batch.next == batch.descriptors.size()) end_oldest(peer, std::nullopt);
}

void CopyQueue::fail_oldest(PeerId peer, Error error) {
  end_oldest(peer, error);
}

void CopyQueue::fail_all(PeerId peer, Error error) {
  const auto line = lines_.find(peer);
  while (line != lines_.end() && !line->second.batches.empty()) end_oldest(peer, error);
}

std::size_t CopyQueue::hand_out(std::vector<WriteCompletion>& completions) {
  for (const Ended& ended : ended_) {
    completions.push_back(ended.completion);
    const auto line = lines_.find(ended.peer);
    if (--line->second.in_flight == 0) lines_.erase(line);
  }
  const std::size_t count = ended_.size();
  ended_.clear();
  return count;
}

Result<void> CopyQueue::remove(RegionId region, RegionTable& from) const {
  const Region* found = from.find(region);
  if (found == nullptr) return fail(ErrorCode::kBadConfig, "no such region");
  const auto reads = [found](const Batch& batch) { return reads_region(batch.descriptors, *found); };
  const auto has_reader = [&reads](const auto& line) { return std::ranges::any_of(line.second.batches, reads); };
  if (std::ranges::any_of(lines_, has_reader)) return fail(ErrorCode::kBusy, "a posted write reads the region");
  from.remove(region);
  return {};
}

Result<CopyQueue::Line*> CopyQueue::line_with_room(PeerId peer) {
  Line& line = lines_[peer];
  if (line.in_flight >= kBatchesInFlightMax) return fail(ErrorCode::kFull, "too many batches in flight to this peer");
  return &line;
}

void CopyQueue::cut(const Batch& batch) {
  pieces_.clear();
  std::uint64_t room_bytes = kSliceBytesMax;
  std::uint64_t skip_bytes = batch.moved_bytes;
  for (std::size_t i = batch.next; i < batch.descriptors.size() && room_bytes > 0; ++i) {
    const Descriptor& whole = batch.descriptors[i];
    const std::uint64_t length_bytes = std::min(whole.length_bytes - skip_bytes, room_bytes);
    if (length_bytes > 0) pieces_.push_back({whole.local + skip_bytes, whole.remote + skip_bytes, length_bytes});
    if (pieces_.size() == kSlicePiecesMax) return;
    room_bytes -= length_bytes;
    skip_bytes = 0;
  }
}

void CopyQueue::end_oldest(PeerId peer, std::optional<Error> error) {
  auto& batches = lines_.at(peer).batches;
  ended_.push_back({peer, {batches.front().token, error}});
  batches.pop_front();
  if (batches.empty()) std::erase(turns_, peer);
}

}  // namespace kvpush
