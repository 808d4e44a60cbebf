// The aggregator: leases, their slots, and what it does with each datagram. It decides with
// phub_packet_check() and slot.h. No clock, no sockets: the caller passes times and a sink for what
// is to be sent. One thread at a time.
//
//   from            kind             it
//   a worker        PAYLOAD          asks the slot; sends the sum to the core loop, or REFUSED
//   the core loop   NACK             sends its sums again, or MISSING to the workers that they wait
//                                    for
//                   PARAMETERS       forwards it to all workers, or to the one that it names
//   anyone          anything else    drops and counts it
// A NACK leads to many datagrams, but only once: its number must be later than the last one. A
// recorded one of PARAMETERS has no such limit: a stranger who can send from the core loop's
// address and repeats it makes it go to every worker, which ignores it.
//
// With KernelSlots, a program in the kernel does the first line of the table. The engine then keeps
// leases and shares, hands in what the program has not seen, and sends what the program leaves to
// it.
//
// Memory: each lease has its slots and their integers, allocated and zeroed when it is granted. All
// leases together have at most pool_bytes, and those of one tenant at most tenant_bytes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aggregator/kernel_slots.h"
#include "common/aggregation/packet.h"
#include "common/aggregation/slot.h"
#include "common/base/clock.h"

namespace phub::aggregator {

struct Limits {
  std::uint64_t pool_bytes = 0;
  std::uint64_t tenant_bytes = 0;
};

struct LeaseRequest {
  std::string owner = {};  // the daemon; only it may renew and end the lease
  std::string tenant;
  std::string job;
  phub_lease lease{};  // all but `aggregator`
  DurationNs keep_alive = 0;
};

struct Counters {
  std::array<std::uint64_t, PHUB_PACKET_KINDS> kinds{};  // good packets, by phub_packet_kind
  std::array<std::uint64_t, PHUB_CHECK_COUNT> checks{};
  std::array<std::uint64_t, PHUB_VERDICT_COUNT> verdicts{};
  std::uint64_t sums = 0;                  // sent, also again
  std::uint64_t sums_repeated = 0;         // the part of `sums` that a NACK asked for
  std::uint64_t answers = 0;               // to workers
  std::uint64_t nacks_dropped = 0;         // repeated, or older than another
  std::uint64_t parameters_forwarded = 0;  // datagrams
  std::uint64_t kernel_sums = 0;           // the part of `sums` that never left the kernel
  std::uint64_t kernel_passed = 0;         // left to the process, see aggregate.bpf.c
  std::uint64_t kernel_events_lost = 0;    // the process was too slow; as if a datagram was lost
  std::uint64_t leases_granted = 0;
  std::uint64_t leases_refused = 0;
  std::uint64_t leases_ended = 0;
  std::uint64_t leases_expired = 0;
  std::uint64_t calls_refused = 0;  // on the control port, from callers that are not daemons
};
const char* NameOf(phub_check check);
const char* NameOf(phub_verdict verdict);
const char* NameOfKind(std::uint32_t kind);  // null: no such kind

class Engine {
 public:
  using Send = std::function<void(const phub_endpoint& to, std::span<const std::uint8_t> header,
                                  std::span<const std::uint8_t> payload)>;

  // `kernel`: slots in the kernel instead of slots in this process. Must outlive the engine.
  Engine(const Limits& limits, const phub_endpoint& own, Send send, KernelSlots* kernel = nullptr);
  ~Engine();

  // kInvalidArgument: the request is not valid. kResourceExhausted: the pool or the tenant's share.
  // kAlreadyExists: the number is in use.
  absl::Status Grant(LeaseRequest request, TimeNs now);
  // False: the owner has no such lease.
  bool Renew(std::uint32_t number, const std::string& owner, TimeNs now);
  bool End(std::uint32_t number, const std::string& owner);
  // Ends the leases that were not renewed in time. Returns their numbers.
  std::vector<std::uint32_t> Expire(TimeNs now);

  void Receive(std::span<const std::uint8_t> datagram, const phub_endpoint& source);
  // Does what the program in the kernel has left to do.
  void TakeKernelEvents();
  // State and integers of a slot, wherever it is; see KernelSlots::Read().
  bool ReadSlot(std::uint32_t lease, std::uint32_t slot, phub_slot& state,
                std::span<std::uint32_t> values) const;

  struct Info {
    std::uint32_t number = 0;
    std::string owner;
    std::string tenant;
    std::string job;
    std::uint32_t workers = 0;
    std::uint32_t slots = 0;
    std::uint64_t bytes = 0;
    std::uint64_t sums = 0;  // sent for the first time
  };
  void NoteCallRefused() { ++counters_.calls_refused; }
  std::vector<Info> Leases() const;
  std::uint64_t bytes_used() const { return bytes_used_; }
  std::uint64_t slots() const { return slots_; }
  const Limits& limits() const { return limits_; }
  Counters counters() const;

 private:
  struct Held;
  using Leases_ = std::map<std::uint32_t, std::unique_ptr<Held>>;

  std::uint64_t BytesOf(const phub_lease& lease) const;
  absl::Status CheckRoom(const LeaseRequest& request) const;
  Leases_::iterator FindOf(const std::string& owner, std::uint32_t number);
  Leases_::iterator Release(Leases_::iterator lease);
  void Contribute(Held& held, const phub_packet& packet, std::span<const std::uint8_t> payload);
  void Perform(const KernelEvent& event);
  void AnswerNack(Held& held, const phub_packet& packet, std::span<const std::uint8_t> payload);
  void AnswerNackOf(const Held& held, phub_packet about);
  void Answer(const Held& held, const phub_packet& answer);
  void Refuse(const Held& held, const phub_packet& packet, const phub_slot& slot);
  void SendSum(const Held& held, const phub_packet& packet, const phub_slot& slot,
               const std::uint32_t* values);
  void ForwardParameters(const Held& held, const phub_packet& packet,
                         std::span<const std::uint8_t> datagram);

  const Limits limits_;
  const phub_endpoint own_;
  const Send send_;
  KernelSlots* const kernel_;
  Leases_ leases_;
  std::map<std::string, std::uint64_t> tenant_bytes_;
  std::uint64_t bytes_used_ = 0;
  std::uint64_t slots_ = 0;
  Counters counters_;
};

}  // namespace phub::aggregator
