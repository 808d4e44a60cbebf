#include "server/etcd/members/seat.h"

#include <fmt/format.h>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "common/base/units.h"
#include "server/etcd/cluster.h"
#include "server/etcd/members/member_records.h"

namespace phub::server::etcd {
namespace {

constexpr int kClaimsMax = 5;
constexpr std::size_t kMemberBytesShown = 100;

// "daemon b (10.0.0.2:7700 on host node2)"
std::string DescribeMember(const ClusterMember& member) {
  return fmt::format("daemon {} ({} on host {})", Printable(member.daemon, kMemberBytesShown),
                     Printable(member.endpoint, kMemberBytesShown),
                     Printable(member.host, kMemberBytesShown));
}

}  // namespace

absl::Status Seat::Claim(std::int64_t lease) {
  if (self_.place.group.empty()) return absl::OkStatus();
  for (int i = 0; i < kClaimsMax; ++i) {
    bool claimed = false;
    if (absl::Status status = TryToClaim(lease, claimed); !status.ok()) return status;
    if (!claimed) continue;
    was_claimed_ = true;
    LogInfo("event=place_claimed place={} daemon={} endpoint={}", view::ToString(self_.place),
            self_.daemon, self_.endpoint);
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      fmt::format("place {} could not be claimed: other daemons change it or the view all the time",
                  view::ToString(self_.place)));
}

absl::Status Seat::TryToClaim(std::int64_t lease, bool& claimed) {
  Found found;
  if (absl::Status status = Read(found); !status.ok()) return status;
  const std::string place = PlaceKey(self_.place);
  const std::string endpoint = EndpointKey(self_.place);
  pb::TxnRequest request;
  *request.add_compare() = HasRevision(prefix_ + std::string(kClusterKey), cluster_revision_);
  *request.add_compare() = HasRevision(prefix_ + place, found.place_revision);
  if (!was_claimed_)
    *request.add_compare() = HasRevision(prefix_ + std::string(kViewKey), found.view_revision);
  *request.add_success() = Put(prefix_ + place, SealMember(records_, place, self_));
  request.mutable_success(0)->mutable_request_put()->set_lease(lease);
  *request.add_success() = Put(prefix_ + endpoint, SealMember(records_, endpoint, self_));
  const auto answer = client_.Txn(request);
  if (!answer.ok()) return answer.status();
  claimed = answer->succeeded();
  return absl::OkStatus();
}

absl::Status Seat::Read(Found& found) {
  pb::TxnRequest request;
  *request.add_success() = Get(prefix_ + std::string(kViewKey));
  *request.add_success() = Get(prefix_ + PlaceKey(self_.place));
  const auto answer = client_.Txn(request);
  if (!answer.ok()) return answer.status();
  const pb::RangeResponse& view = answer->responses(0).response_range();
  if (!was_claimed_) {
    if (absl::Status status = CheckViewRecord(view); !status.ok()) return status;
    found.view_revision = view.kvs(0).mod_revision();
  }
  const pb::RangeResponse& place = answer->responses(1).response_range();
  if (place.kvs().empty()) return absl::OkStatus();
  found.place_revision = place.kvs(0).mod_revision();
  return CheckHolder(place.kvs(0));
}

absl::Status Seat::CheckViewRecord(const pb::RangeResponse& range) const {
  if (range.kvs().empty()) {
    return absl::FailedPreconditionError(
        fmt::format("place = \"{}\" is set, but {}", view::ToString(self_.place), kNoView));
  }
  const auto view = OpenView(records_, range.kvs(0).value());
  if (!view.ok()) {
    return absl::Status(view.status().code(),
                        fmt::format("{} {}", kViewKey, MessageOf(view.status())));
  }
  return FindGroup(*view, self_.place).status();
}

// OK: this daemon may take the place.
absl::Status Seat::CheckHolder(const pb::KeyValue& pair) {
  const std::string key = PlaceKey(self_.place);
  if (pair.lease() == 0) {  // no daemon has made this record
    LogWarning("event=place_record_replaced key=\"{}\" reason=\"it has no lease\"", key);
    return absl::OkStatus();
  }
  const auto holder = OpenMember(records_, key, pair.value());
  if (!holder.ok()) {
    return absl::Status(
        holder.status().code(),
        fmt::format("{} {}. If no daemon is at this place, remove the record with etcdctl", key,
                    MessageOf(holder.status())));
  }
  if (holder->daemon == self_.daemon) return absl::OkStatus();
  const auto left = client_.TimeLeftOf(pair.lease());
  if (!left.ok() && !absl::IsNotFound(left.status())) return left.status();
  return absl::AlreadyExistsError(
      fmt::format("place {} is taken by {}, whose lease in etcd ends in {} unless it renews it; "
                  "this is {}. Set "
                  "another place at one of them, or stop the other one",
                  view::ToString(self_.place), DescribeMember(*holder),
                  HumanDuration(left.ok() ? left->left : 0), DescribeMember(self_)));
}

}  // namespace phub::server::etcd
