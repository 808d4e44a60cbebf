// The transports that this program tests.
#include "tests/conformance/harness.h"

namespace phub::conformance {

std::vector<HarnessFactory> AllHarnesses() {
  return {{"Tcp", MakeTcpHarness},
          {"Tls", MakeTlsHarness},
          {"ShmDaemon", MakeShmDaemonHarness, true, false},
          {"ShmClient", MakeShmClientHarness, true, false},
          {"ShmSmall", MakeShmSmallHarness, true, false},
          {"SimCalm", MakeCalmSimHarness, false},
          {"SimHostile", MakeHostileSimHarness, false}};
}

}  // namespace phub::conformance
