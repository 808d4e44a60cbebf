// The program in the kernel: loads it, keeps its maps, and attaches it to interfaces. Calls of the
// kernel only through libbpf.
//
// Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: without the last, the verifier refuses additions to
// pointers whose bounds are not constants.
//
// Threads: as KernelSlots; Run() on any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aggregator/kernel_slots.h"
#include "common/base/descriptor.h"

namespace phub::aggregator {

// The program as it was compiled with this binary.
std::span<const std::byte> EmbeddedProgram();

class XdpProgram final : public KernelSlots {
 public:
  // `own`: where workers send to. REQUIRES: it is an address of IPv4.
  static absl::StatusOr<std::unique_ptr<XdpProgram>> Load(std::span<const std::byte> object,
                                                          const phub_endpoint& own,
                                                          std::uint64_t pool_bytes);
  ~XdpProgram() override;  // detaches

  struct Attached {
    bool native = false;  // by the driver; otherwise by the network stack, which may join datagrams
    std::string why_not_native;
  };
  absl::StatusOr<Attached> Attach(const std::string& interface);

  std::uint64_t slot_bytes() const override;
  absl::Status Grant(const phub_lease& lease) override;
  void End(std::uint32_t lease) override;
  void HandIn(std::span<const std::uint8_t> datagram, const phub_endpoint& source) override;
  int event_descriptor() const override;
  void TakeEvents(const std::function<void(const KernelEvent&)>& take) override;
  bool Read(std::uint32_t lease, std::uint32_t slot, phub_slot& state,
            std::span<std::uint32_t> values) const override;
  void AddTo(Counters& counters) const override;
  std::uint64_t Sums(std::uint32_t lease) const override;

  enum class Entry : std::uint8_t { kInterface, kHandIn };
  struct Ran {
    int action = -1;                   // XDP_DROP...; -1: the kernel refused to run it
    std::vector<std::uint8_t> packet;  // as the program has left it, from the Ethernet header on
  };
  // Runs the program in this thread with a datagram in a packet of its own.
  Ran Run(Entry entry, std::span<const std::uint8_t> datagram, const phub_endpoint& source) const;

 private:
  struct Handles;
  explicit XdpProgram(std::unique_ptr<Handles> handles);

  std::unique_ptr<Handles> handles_;
  phub_endpoint own_{};
  std::uint32_t slot_count_ = 0;
  std::map<std::uint32_t, std::uint32_t> free_;  // ranges of slots: first, count
  std::vector<Descriptor> links_;
};

}  // namespace phub::aggregator
