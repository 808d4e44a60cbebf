#include "server/etcd/members/cluster_members.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "server/etcd/members/member_records.h"

namespace phub::server::etcd {
namespace {

constexpr std::size_t kMemberKeyBytesShown =
    200;  // in logs: anyone who writes to etcd chooses them

}  // namespace

absl::StatusOr<view::View> ClusterMembers::DeclaredView() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

std::vector<ClusterMember> ClusterMembers::List() const {
  const std::lock_guard lock(mutex_);
  std::map<view::Place, ClusterMember> members;
  for (const auto& [key, member] : last_) members[member.place] = member;
  for (const auto& [key, member] : present_) {
    ClusterMember& each = members[member.place];
    each = member;
    each.claims = true;
  }
  std::vector<ClusterMember> list;
  for (auto& [place, member] : members) list.push_back(std::move(member));
  return list;
}

absl::Status ClusterMembers::Declare(view::View& view, std::optional<std::int64_t> expected,
                                     const AuditNote& note) {
  if (absl::Status valid = CheckView(view); !valid.ok()) return valid;
  std::int64_t revision = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!view_.ok()) {
      return absl::FailedPreconditionError(
          fmt::format("the view was not changed: {}. Restore the record, or remove it with etcdctl",
                      MessageOf(view_.status())));
    }
    if (expected.has_value() && *expected != view_->number) {
      return absl::AbortedError(
          fmt::format("the view was not changed: its number is {}, not {}; look at it with "
                      "`phubctl view show`",
                      view_->number, *expected));
    }
    view.number = view_->number;
    if (view.number > 0 && view == *view_) return absl::OkStatus();
    view.number = view_->number + 1;
    revision = view_revision_;
  }
  AuditNote described = note;
  described.subject = fmt::format("view {}", view.number);
  described.detail = Describe(view);
  return commit_(SealView(records_, view), revision, described);
}

void ClusterMembers::RecordChanged(const std::string& key, std::int64_t revision,
                                   const std::string& value) {
  const std::lock_guard lock(mutex_);
  if (key.starts_with(kPlaceKeys)) return PlaceChanged(key, value, present_);
  if (key.starts_with(kEndpointKeys)) return PlaceChanged(key, value, last_);
  if (key != kViewKey) return;
  view_revision_ = value.empty() ? 0 : revision;
  if (value.empty()) {
    view_ = view::View();
    return;
  }
  view_ = OpenView(records_, value);
  if (view_.ok()) {
    LogInfo("event=view_declared view={} digest={}", view_->number, DigestOf(*view_).substr(0, 12));
    return;
  }
  view_ = absl::Status(view_.status().code(),
                       fmt::format("{} {}", kViewKey, MessageOf(view_.status())));
  LogError(
      "event=control_store_record_unreadable key=\"{}\" error=\"{}\" effect=\"no daemon starts at "
      "a place, and the view cannot be changed\"",
      kViewKey, MessageOf(view_.status()));
}

void ClusterMembers::PlaceChanged(const std::string& key, const std::string& value,
                                  std::map<std::string, ClusterMember>& members) {
  members.erase(key);
  if (value.empty()) return;
  auto member = OpenMember(records_, key, value);
  if (member.ok()) {
    members[key] = *std::move(member);
    return;
  }
  LogError(
      "event=control_store_record_unreadable key=\"{}\" error=\"{}\" effect=\"nobody is known to "
      "be at the place\"",
      Printable(key, kMemberKeyBytesShown), MessageOf(member.status()));
}

}  // namespace phub::server::etcd
