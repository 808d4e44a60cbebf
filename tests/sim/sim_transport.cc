#include "tests/sim/sim_transport.h"

namespace phub::sim {

bool SimTransport::Watch(transport::StreamConnection& connection, transport::ConnectionId id) {
  auto& end = static_cast<SimNetwork::Connection&>(connection);
  network_.Watch(end.link_, end.end_, this, id);
  return true;
}

void SimTransport::Unwatch(transport::StreamConnection& connection) {
  auto& end = static_cast<SimNetwork::Connection&>(connection);
  network_.Watch(end.link_, end.end_, nullptr, {});
}

}  // namespace phub::sim
