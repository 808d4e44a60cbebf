// A stand-in for libibverbs, for tests on hosts without an RDMA device. A program that is linked
// with it uses it as the library. It has one device, "fake0", with one port, or two on request. No
// data is transferred: queue pairs accept requests and report nothing. It simulates rare events of
// a real device on request.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/clock.h"

namespace phub::fake_verbs {

struct Device {
  // The duration of calls.
  std::atomic<DurationNs> register_time{0};
  std::atomic<DurationNs> unregister_time{0};
  std::atomic<DurationNs> connect_time{0};  // until a queue pair is ready to receive
  // Polling its queues fails, although the device is there.
  std::atomic<bool> poll_fails{false};
  std::atomic<bool> notify_fails{false};
  std::atomic<bool> reset_fails{false};
  std::atomic<bool> connect_fails{false};  // no queue pair can reach its peer
  std::atomic<bool> first_is_full{false};  // "fake0" has no protection domain left
  // There is a second device, "fake1".
  std::atomic<bool> second_device{false};
  // It has two ports, both active, and the first has no address.
  std::atomic<bool> bare_first_port{false};
  // What exists now.
  std::atomic<std::uint64_t> regions{0};
  std::atomic<std::uint64_t> registered_bytes{0};
  std::atomic<std::uint64_t> queue_pairs{0};
  std::atomic<std::uint64_t> registrations{0};  // the number of registrations ever begun
};

Device& TheDevice();
// Simulates an unplugged device: calls return EIO from now on, and open descriptors hang up.
// `hang_up` false: as in kernels before 5.19, in which descriptors do not hang up.
void TakeAway(bool hang_up = true);
// The device is there again, with nothing open on it. Called before each test.
void Reset();

}  // namespace phub::fake_verbs
