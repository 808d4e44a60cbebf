// The sockets of lanes over tcp. Off the data path, any thread.
#pragma once

#include <sys/socket.h>

#include "common/base/descriptor.h"

namespace phub::transport {

// Creates a socket for a lane, or to listen for lanes: non-blocking, not connected, and with CUBIC
// instead of BBR. Empty, with errno, if the system refuses.
//
// BBR is made for long and lossy paths. If lanes share a link, BBR lets some of them run ahead for
// tens of milliseconds, but a round ends only when its last gradient arrives. BBR's pacing also
// costs CPU. CUBIC shares the link more evenly and is the default of most hosts (bench/NOTES.md
// compares both). Other algorithms, such as DCTCP, are not changed; neither is BBR on a host that
// has no CUBIC.
Descriptor LaneSocket(sa_family_t family);

}  // namespace phub::transport
