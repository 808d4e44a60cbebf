#include "server/transports/tcp/data_port_report.h"

namespace phub::server {

void DataPortReport::Update() {
  const std::array<std::pair<ControlCounter, std::uint64_t>, kCount> now = {
      std::pair(ControlCounter::lanes_refused_form, port_.refused_form.load()),
      std::pair(ControlCounter::lanes_refused_plain, port_.refused_plain.load()),
      std::pair(ControlCounter::lanes_refused_key, port_.refused_key.load()),
      std::pair(ControlCounter::lanes_refused_crowd, port_.over_capacity.load()),
      std::pair(ControlCounter::lanes_refused_late, port_.timeouts.load()),
  };
  bool any = false;
  for (std::size_t i = 0; i < kCount; ++i) any = any || now[i].second != reported_[i];
  if (!any) return;
  thread_.Run([&](Control& control) {
    for (std::size_t i = 0; i < kCount; ++i) {
      control.counters().Add(now[i].first, now[i].second - reported_[i]);
      reported_[i] = now[i].second;
    }
  });
}

}  // namespace phub::server
