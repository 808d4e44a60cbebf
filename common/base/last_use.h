// Notices when nobody uses a memfd any more: no process has a descriptor of it, and none maps it.
//
// The kernel reports that (inotify), whatever the users did with their descriptors: duplicated,
// passed on, opened again or closed after mapping. Its own watch is no use. One owner at a time; no
// call blocks.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace phub {

class LastUse {
 public:
  // kUnavailable: the kernel has no inotify instance for this process.
  static absl::StatusOr<LastUse> Create();

  // Watches the memory until it is unused. Returns its number, which is never used again.
  // kResourceExhausted: fs.inotify.max_user_watches is reached.
  absl::StatusOr<int> Watch(const Descriptor& memfd);
  // Adds the numbers of memories that nobody uses any more, each once. False: the kernel lost some;
  // then only Watched() is complete.
  [[nodiscard]] bool Take(std::vector<int>& unused);
  // The memories that are still used. Slow.
  std::set<int> Watched() const;

 private:
  explicit LastUse(Descriptor inotify) : inotify_(std::move(inotify)) {}

  Descriptor inotify_;
};

}  // namespace phub
