#include "server/etcd/members/member_records.h"

#include <fmt/format.h>

#include "common/base/status_text.h"
#include "common/view/view_message.h"
#include "phub/store/records.pb.h"
#include "server/etcd/record_parse.h"

namespace phub::server::etcd {

namespace stored = ::phub::store::v1;

std::string PlaceKey(const view::Place& place) {
  return fmt::format("{}{}", kPlaceKeys, view::ToString(place));
}

std::string EndpointKey(const view::Place& place) {
  return fmt::format("{}{}", kEndpointKeys, view::ToString(place));
}

std::string SealView(const Records& records, const view::View& view) {
  return records.Seal(kViewKey, view::ToMessage<stored::StoredView>(view).SerializeAsString());
}

absl::StatusOr<view::View> OpenView(const Records& records, const std::string& value) {
  const auto message = Parse<stored::StoredView>(records.Open(kViewKey, value));
  if (!message.ok()) return message.status();
  view::View view = view::FromMessage(*message);
  if (view.number < 1) return absl::DataLossError("in etcd has no number");
  if (const absl::Status valid = CheckView(view); !valid.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("in etcd cannot be used by this phubd, probably a newer one has written it: {}",
                    MessageOf(valid)));
  }
  return view;
}

std::string SealMember(const Records& records, std::string_view key, const ClusterMember& member) {
  stored::StoredPlace message;
  message.set_group(member.place.group);
  message.set_number(member.place.number);
  message.set_daemon(member.daemon);
  message.set_instance(member.instance);
  message.set_host(member.host);
  message.set_endpoint(member.endpoint);
  message.set_version(member.version);
  message.set_started_at_ns(member.started_at);
  return records.Seal(key, message.SerializeAsString());
}

absl::StatusOr<ClusterMember> OpenMember(const Records& records, std::string_view key,
                                         const std::string& value) {
  const auto message = Parse<stored::StoredPlace>(records.Open(key, value));
  if (!message.ok()) return message.status();
  return ClusterMember{.place = {message->group(), message->number()},
                       .daemon = message->daemon(),
                       .instance = message->instance(),
                       .host = message->host(),
                       .endpoint = message->endpoint(),
                       .version = message->version(),
                       .started_at = message->started_at_ns()};
}

}  // namespace phub::server::etcd
