// How many bytes of memory this process touches for its exchanges. Counted, not estimated: copies
// of the C library and bytes through sockets by a library that the harness preloads into the ranks
// of a block that is not timed (overlap/count_traffic.cc); arithmetic by the rank program itself.
#pragma once

#include <cstdint>

namespace phub::bench {

struct Traffic {
  std::uint64_t copied_bytes = 0;           // by memcpy and memmove
  std::uint64_t socket_sent_bytes = 0;      // copied by the kernel, into what it sends
  std::uint64_t socket_sent_in_place = 0;   // sent by sendfile, from where they lay
  std::uint64_t socket_received_bytes = 0;  // copied by the kernel, out of what it received
  std::uint64_t peer_copied_bytes = 0;      // by process_vm_readv and process_vm_writev
  std::uint64_t arithmetic_bytes = 0;       // read and written by sums of an exchange
  std::uint64_t update_bytes = 0;           // read and written by the optimizer, in this process
};

// What the preloaded library exports. Of the first five members.
extern "C" {
using ReadTrafficFunction = void (*)(Traffic* traffic);
}
inline constexpr char kReadTrafficName[] = "PhubBenchReadTraffic";

// So far, all threads. False if no library that counts is loaded.
bool ReadTraffic(Traffic& traffic);
void CountArithmetic(std::uint64_t bytes);
void CountUpdate(std::uint64_t bytes);

}  // namespace phub::bench
