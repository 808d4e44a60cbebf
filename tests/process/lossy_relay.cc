#include "tests/process/lossy_relay.h"

#include <netinet/in.h>

#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace phub::process {
namespace {

constexpr std::size_t kRecordedMax = 500;
constexpr std::uint64_t kDelaySteps = 20;
constexpr std::uint64_t kLateSteps = 3000;

}  // namespace

aggregation::DatagramSocket LocalSocket() {
  sockaddr_storage storage{};
  auto& address = reinterpret_cast<sockaddr_in&>(storage);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto socket = aggregation::DatagramSocket::Bind(storage, sizeof address);
  PHUB_CHECK(socket.ok());
  return *std::move(socket);
}

LossyRelay::LossyRelay(const Trouble& trouble, std::uint64_t seed)
    : trouble_(trouble), random_(seed), outer_(LocalSocket()), inner_(LocalSocket()) {}

void LossyRelay::Send(bool outwards, std::span<const std::uint8_t> datagram) {
  if (outwards) return outer_.Queue(aggregator_, datagram, {});
  inner_.Queue(peer_, datagram, {});
}

void LossyRelay::Inject(std::span<const std::uint8_t> datagram) {
  Send(true, datagram);
  outer_.Flush();
}

void LossyRelay::Take(bool outwards, std::span<const std::uint8_t> datagram) {
  std::vector<std::uint8_t> bytes(datagram.begin(), datagram.end());
  if (outwards && recorded_.size() < kRecordedMax) recorded_.push_back(bytes);
  const auto happens = [&](std::uint32_t chance) { return random_.Chance(chance, 1000); };
  if (happens(trouble_.repeated)) Send(outwards, bytes);
  if (happens(trouble_.repeated_late))
    held_.push_back({step_ + kDelaySteps + random_.Below(kLateSteps), outwards, bytes});
  if (happens(trouble_.lost)) return;
  if (happens(trouble_.delayed)) {
    held_.push_back({step_ + 1 + random_.Below(kDelaySteps), outwards, std::move(bytes)});
  } else {
    Send(outwards, bytes);
  }
}

void LossyRelay::Pump() {
  ++step_;
  inner_.Receive([&](auto datagram, const phub_endpoint&) { Take(true, datagram); });
  outer_.Receive([&](auto datagram, const phub_endpoint&) { Take(false, datagram); });
  for (const Held& held : held_) {
    if (held.due <= step_) Send(held.outwards, held.bytes);
  }
  std::erase_if(held_, [&](const Held& held) { return held.due <= step_; });
  outer_.Flush();
  inner_.Flush();
}

}  // namespace phub::process
