// A view as a message. `Message` is phub::v1::View between phubctl and daemons, or the record in
// etcd (phub::store::v1::StoredView). Pure; any thread.
#pragma once

#include "common/view/view.h"

namespace phub::view {

template <typename Message>
Message ToMessage(const View& view) {
  Message message;
  message.set_number(view.number);
  for (const Rack& rack : view.racks) {
    auto& each = *message.add_racks();
    each.set_name(rack.name);
    each.set_daemons(rack.daemons);
  }
  message.mutable_aggregators()->Assign(view.aggregators.begin(), view.aggregators.end());
  message.set_topology(view.topology);
  return message;
}

// Not checked; see CheckView().
template <typename Message>
View FromMessage(const Message& message) {
  View view;
  view.number = message.number();
  for (const auto& rack : message.racks()) view.racks.push_back({rack.name(), rack.daemons()});
  view.aggregators.assign(message.aggregators().begin(), message.aggregators().end());
  view.topology = message.topology();
  return view;
}

}  // namespace phub::view
