// Counts the bytes of memory that this process touches for its exchanges. A library that the
// harness preloads into the ranks of untimed blocks (overlap/count_traffic.cc) counts copies of the
// C library and bytes through sockets. The rank program itself counts arithmetic.
#pragma once

#include <cstdint>

namespace phub::bench {

struct Traffic {
  std::uint64_t copied_bytes = 0;           // copied by memcpy and memmove
  std::uint64_t socket_sent_bytes = 0;      // copied by the kernel for sending
  std::uint64_t socket_sent_in_place = 0;   // sent by sendfile without a copy
  std::uint64_t socket_received_bytes = 0;  // copied by the kernel on receive
  std::uint64_t peer_copied_bytes = 0;      // copied by process_vm_readv and process_vm_writev
  std::uint64_t arithmetic_bytes = 0;       // read and written by sums of an exchange
  std::uint64_t update_bytes = 0;           // read and written by the optimizer in this process
};

// Exported by the preloaded library: the first five members.
extern "C" {
using ReadTrafficFunction = void (*)(Traffic* traffic);
}
inline constexpr char kReadTrafficName[] = "PhubBenchReadTraffic";

// The traffic of all threads so far. Returns false if the counting library is not loaded.
bool ReadTraffic(Traffic& traffic);
void CountArithmetic(std::uint64_t bytes);
void CountUpdate(std::uint64_t bytes);

}  // namespace phub::bench
