#include "client/checkpoint/version_pages.h"

#include <fmt/core.h>

namespace phub::client {
namespace {

// A page that does not advance would be requested forever.
absl::Status CheckNext(std::uint32_t next, std::uint32_t previous) {
  if (next == 0 || next > previous) return absl::OkStatus();
  return absl::InternalError(fmt::format(
      "the daemon answered with page {} of a job's keys after page {}", next, previous));
}

}  // namespace

absl::Status AddPage(const v1::GetVersionsResponse& page, v1::GetVersionsResponse& all) {
  if (all.next_key() != 0 && page.incarnation() != all.incarnation())
    return absl::AbortedError("the job was replaced by another one with the same name; try again");
  if (absl::Status status = CheckNext(page.next_key(), all.next_key()); !status.ok()) return status;
  v1::GetVersionsResponse added = page;
  if (!all.racks().empty()) added.clear_racks();  // every page has them
  all.MergeFrom(added);
  if (page.next_key() == 0) all.clear_next_key();
  return absl::OkStatus();
}

absl::Status AddPage(const v1::LoadedState& page, v1::LoadedState& all) {
  if (all.next() != 0 && page.iteration() != all.iteration())
    return absl::AbortedError("another checkpoint was loaded meanwhile; try again");
  if (absl::Status status = CheckNext(page.next(), all.next()); !status.ok()) return status;
  all.MergeFrom(page);
  if (page.next() == 0) all.clear_next();
  return absl::OkStatus();
}

}  // namespace phub::client
