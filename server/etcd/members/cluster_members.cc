#include "server/etcd/members/cluster_members.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "server/etcd/members/known_endpoints.h"
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
  return calls_.commit(SealView(records_, view), revision, described);
}

void ClusterMembers::RecordChanged(const std::string& key, std::int64_t revision,
                                   const std::string& value) {
  std::optional<ClusterMember> moved;
  EndpointChanged call;
  {
    const std::lock_guard lock(mutex_);
    if (key == kViewKey) return ViewRecordChanged(revision, value);
    moved = PlaceChanged(key, value, key.starts_with(kPlaceKeys) ? present_ : last_);
    call = endpoint_changed_;
  }
  if (moved && call) call(moved->place, moved->endpoint);  // it may wait for control
}

void ClusterMembers::ViewRecordChanged(std::int64_t revision, const std::string& value) {
  view_revision_ = value.empty() ? 0 : revision;
  ViewChanged(value);
  if (used_view_ == 0 || !view_.ok() || view_->number == used_view_) return;
  LogWarning(
      "event=view_differs used={} declared={} effect=\"this daemon goes on with view {}; restart "
      "it "
      "to use the declared one\"",
      used_view_, view_->number, used_view_);
}

void ClusterMembers::ViewChanged(const std::string& value) {
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

std::optional<ClusterMember> ClusterMembers::PlaceChanged(
    const std::string& key, const std::string& value,
    std::map<std::string, ClusterMember>& members) {
  members.erase(key);
  if (value.empty()) return std::nullopt;
  const auto member = OpenMember(records_, key, value);
  if (!member.ok()) {
    LogError(
        "event=control_store_record_unreadable key=\"{}\" error=\"{}\" effect=\"nobody is known to "
        "be at the place\"",
        Printable(key, kMemberKeyBytesShown), MessageOf(member.status()));
    return std::nullopt;
  }
  members[key] = *member;
  return HasMoved(*member) ? std::optional(*member) : std::nullopt;
}

bool ClusterMembers::HasMoved(const ClusterMember& member) {
  const auto used = used_endpoints_.find(member.place);
  if (used == used_endpoints_.end() || used->second == member.endpoint) return false;
  LogInfo("event=place_moved place={} from={} to={}", ToString(member.place), used->second,
          Printable(member.endpoint, kMemberKeyBytesShown));
  used->second = member.endpoint;
  return true;
}

absl::StatusOr<Membership::Known> ClusterMembers::Read() {
  const auto items = calls_.read();
  if (!items.ok()) return items.status();
  Known known;
  std::map<view::Place, ClusterMember> members;
  for (const Item& item : *items) {
    if (item.key == kViewKey) {
      auto view = OpenView(records_, item.value);
      if (!view.ok()) {
        return absl::Status(view.status().code(),
                            fmt::format("{} {}", kViewKey, MessageOf(view.status())));
      }
      known.view = *std::move(view);
      continue;
    }
    auto member = OpenMember(records_, item.key, item.value);
    if (!member.ok()) continue;  // RecordChanged has logged it
    member->claims = item.key.starts_with(kPlaceKeys);
    ClusterMember& each = members[member->place];
    if (each.daemon.empty() || member->claims) each = *std::move(member);
  }
  std::vector<ClusterMember> list;
  for (auto& [place, member] : members) list.push_back(std::move(member));
  KnownEndpoints found = FindEndpoints(known.view, list);
  known.endpoints = std::move(found.endpoints);
  known.missing = std::move(found.missing);
  return known;
}

void ClusterMembers::UseView(const Known& known) {
  const std::lock_guard lock(mutex_);
  used_view_ = known.view.number;
  used_endpoints_ = known.endpoints;
}

void ClusterMembers::OnEndpoints(EndpointChanged changed) {
  const std::lock_guard lock(mutex_);
  endpoint_changed_ = std::move(changed);
}

std::int64_t ClusterMembers::used_view() const {
  const std::lock_guard lock(mutex_);
  return used_view_;
}

}  // namespace phub::server::etcd
