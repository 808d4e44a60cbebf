// The fake daemon's keys.
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/chunk_map.h"
#include "common/base/element_type.h"
#include "tests/unit/client/session/fake_daemon.h"

namespace phub::client {

absl::Status FakeDaemon::HandleAddKeys(const v1::AddKeysRequest& request,
                                       v1::AddKeysResponse& response) {
  if (!keys_refusal_.ok()) return keys_refusal_;
  const std::lock_guard lock(mutex_);
  add_keys_requests_.push_back(request);
  if (request.batch() < batches_.size()) {  // a repetition
    response = batches_[request.batch()];
    return absl::OkStatus();
  }
  std::vector<KeyPlacementView> views;
  for (const v1::KeySpec& key : request.keys()) {
    v1::KeyPlacement& placement = *response.add_placements();
    placement.set_key_index(layout_.key_count() +
                            static_cast<std::uint32_t>(response.placements_size()) - 1);
    const std::uint32_t element_bytes =
        numeric::ElementBytes(static_cast<numeric::ElementType>(key.type()));
    const std::uint64_t chunks =
        ChunkMap(key.element_count(), {}, options_.chunk_bytes / element_bytes).count();
    for (std::uint64_t c = 0; c < chunks; ++c)
      placement.add_chunk_bins(
          static_cast<std::uint32_t>((c + (place_differently_ ? 1 : 0)) % layout_.lane_count()));
  }
  for (int i = 0; i < request.keys_size(); ++i)
    views.push_back(
        {.name = request.keys(i).name(),
         .key = KeyIndex{response.placements(i).key_index()},
         .element_count = request.keys(i).element_count(),
         .element_bytes =
             numeric::ElementBytes(static_cast<numeric::ElementType>(request.keys(i).type())),
         .chunk_bins = {response.placements(i).chunk_bins().data(),
                        static_cast<std::size_t>(response.placements(i).chunk_bins_size())}});
  const auto layouts = layout_.AddKeys(views);
  PHUB_CHECK(layouts.ok());
  for (std::size_t i = 0; i < layouts->size(); ++i)
    for (const ChunkPlace& chunk : (*layouts)[i].chunks)
      if (chunk.lane - first_bin() < options_.core_count)
        chunk_bytes_[chunk.lane - first_bin()].push_back(chunk.element_count *
                                                         views[i].element_bytes);
  batches_.push_back(response);
  layouts_.push_back(*layouts);
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleRemoveKeys(const v1::RemoveKeysRequest& request,
                                          const std::function<bool()>& cancelled) {
  if (hold_removal_) ++removals_held_;
  while (hold_removal_ && !cancelled() && !quit_)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (quit_ || cancelled()) return absl::CancelledError("cancelled");
  const std::lock_guard lock(mutex_);
  if (!removal_refusal_.ok()) return removal_refusal_;
  if (request.sequence() + 1 == removals_) return absl::OkStatus();  // a repetition
  PHUB_CHECK(request.sequence() == removals_ && request.batches() == batches_.size());
  for (; batches_.size() > request.first_batch(); batches_.pop_back(), layouts_.pop_back()) {
    for (auto key = layouts_.back().rbegin(); key != layouts_.back().rend(); ++key) {
      for (const ChunkPlace& chunk : key->chunks)
        if (chunk.lane - first_bin() < options_.core_count)
          chunk_bytes_[chunk.lane - first_bin()].pop_back();
      layout_.RemoveLast(*key);
    }
  }
  ++removals_;
  return absl::OkStatus();
}

}  // namespace phub::client
