#include "aggregator/xdp/start.h"

#include <utility>

#include "aggregator/xdp/program.h"
#include "common/base/log.h"

namespace phub::aggregator {
namespace {

constexpr __u64 kMappedPrefix = 0xffff0000;  // the low half of a mapped address of IPv4

}  // namespace

absl::StatusOr<std::unique_ptr<KernelSlots>> StartXdp(const std::vector<std::string>& interfaces,
                                                      const phub_endpoint& own,
                                                      std::uint64_t pool_bytes) {
  if (own.address[0] != 0 || (own.address[1] & 0xffffffff) != kMappedPrefix)
    return absl::InvalidArgumentError("the address of --listen must be one of IPv4");
  auto program = XdpProgram::Load(EmbeddedProgram(), own, pool_bytes);
  if (!program.ok()) return program.status();
  for (const std::string& interface : interfaces) {
    const auto attached = (*program)->Attach(interface);
    if (!attached.ok()) return attached.status();
    LogInfo("event=xdp_attached interface=\"{}\" mode={}", interface,
            attached->native ? "native" : "generic");
    if (attached->native) continue;
    LogWarning(
        "event=xdp_generic interface=\"{}\" reason=\"{}\" effect=\"packets cost more; turn GRO and "
        "the senders' GSO off, or joined datagrams pass through the process\"",
        interface, attached->why_not_native);
  }
  return std::unique_ptr<KernelSlots>(*std::move(program));
}

}  // namespace phub::aggregator
