// The window of a lane's replies: which ones may be posted now.
//
// A lane sends replies in the order in which they were posted, so each waits for those before it.
// If the job has keys of a higher priority class, replies of lower classes get kYieldingReplies
// places of the window. The others wait in the lane's bitmaps, where the stage chooses the highest
// class first. After kOvertakesMax replies that went ahead of waiting ones of a lower class, one of
// the lowest class that waits is posted, so that each class proceeds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "server/core/job_shard.h"

namespace phub::server::reply {

// Enough to keep the lane busy while the core loop does other work.
inline constexpr std::uint32_t kYieldingReplies = 2;

// The lowest class with waiting replies; kPriorityLevels if no reply waits.
inline std::size_t LowestWaiting(const Lane& lane) {
  std::size_t level = 0;
  while (level < kPriorityLevels && lane.replies_pending_at[level] == 0) ++level;
  return level;
}

// A reply of the lowest class that waits must be posted next.
inline bool IsLowestDue(const Lane& lane) { return lane.replies_ahead >= kOvertakesMax; }

// Whether a reply of that level may be posted now.
inline bool HasWindow(const JobShard& shard, const Lane& lane, std::size_t level) {
  std::uint32_t limit = shard.config.replies_per_lane_max;
  if (IsLowestDue(lane)) {
    if (LowestWaiting(lane) >= level) return lane.replies_posted < limit;
    --limit;  // a place for the lowest
  }
  if (level < shard.top_level) limit = std::min(limit, kYieldingReplies);
  return lane.replies_posted < limit;
}

inline void NotePosted(Lane& lane, std::size_t level) {
  ++lane.replies_posted;
  lane.replies_ahead = LowestWaiting(lane) < level ? lane.replies_ahead + 1 : 0;
}

inline void NotePending(Lane& lane, std::size_t level) {
  ++lane.replies_pending;
  ++lane.replies_pending_at[level];
}
inline void NoteNotPending(Lane& lane, std::size_t level) {
  --lane.replies_pending;
  --lane.replies_pending_at[level];
}

}  // namespace phub::server::reply
