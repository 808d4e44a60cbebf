// A stand-in for libibverbs, for tests on hosts without an RDMA device: linked into a program, it
// is the library. It has one device, "fake0", with one port; two, if it is told to. Nothing
// travels: queue pairs take requests and report nothing. What a real device does once in its life,
// this one does when it is told to.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/clock.h"

namespace phub::fake_verbs {

struct Device {
  // How long calls take.
  std::atomic<DurationNs> register_time{0};
  std::atomic<DurationNs> unregister_time{0};
  std::atomic<DurationNs> connect_time{0};  // until a queue pair is ready to receive
  // Its queues fail, and the device is there.
  std::atomic<bool> poll_fails{false};
  std::atomic<bool> notify_fails{false};
  std::atomic<bool> reset_fails{false};
  std::atomic<bool> connect_fails{false};  // no queue pair finds a way to its peer
  std::atomic<bool> first_is_full{false};  // "fake0" has no protection domain left
  // There is another, "fake1".
  std::atomic<bool> second_device{false};
  // It has two ports, both active, and the first has no address.
  std::atomic<bool> bare_first_port{false};
  // What there is.
  std::atomic<std::uint64_t> regions{0};
  std::atomic<std::uint64_t> registered_bytes{0};
  std::atomic<std::uint64_t> queue_pairs{0};
  std::atomic<std::uint64_t> registrations{0};  // that were begun, ever
};

Device& TheDevice();
// As the kernel does it when a device is unplugged: calls say EIO from now on, and descriptors of
// what is open hang up. `hang_up` false: as kernels before 5.19 do it, whose descriptors say
// nothing.
void TakeAway(bool hang_up = true);
// It is there again, with nothing open on it. Before each test.
void Reset();

}  // namespace phub::fake_verbs
