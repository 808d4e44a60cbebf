// Datagrams to an aggregator with one lease. The input is a sequence of datagrams, each after two
// bytes with its length; the tag of each is made right if the length's top bit is set, so that the
// input reaches the slots. The counts of checks, kinds and verdicts agree, and
// what is sent is good.
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "aggregator/engine.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::uint16_t kRightTag = 0x8000;

phub_endpoint PortOnly(std::uint16_t port) {
  phub_endpoint endpoint{};
  endpoint.port = port;
  return endpoint;
}

phub::aggregator::LeaseRequest SomeLease() {
  phub::aggregator::LeaseRequest request;
  request.tenant = "a";
  request.keep_alive = phub::kSecond;
  request.lease.number = 1;
  request.lease.slot_count = 3;
  request.lease.worker_count = 2;
  request.lease.count_max = 8;
  request.lease.key = {{1, 2}};
  request.lease.core_loop = PortOnly(1);
  for (std::uint16_t i = 0; i < 2; ++i)
    request.lease.workers[i] = PortOnly(static_cast<std::uint16_t>(10 + i));
  return request;
}

void CheckSent(const phub_lease& lease, const phub_endpoint& to,
               std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload) {
  std::vector<std::uint8_t> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  phub_packet packet{};
  const bool is_sum = to.port == 1;
  const phub_check check =
      phub_packet_check(&lease, is_sum ? PHUB_KINDS_TO_CORE_LOOP : PHUB_KINDS_TO_WORKERS,
                        bytes.data(), static_cast<__u32>(bytes.size()), &lease.aggregator, &packet);
  PHUB_CHECK(check == PHUB_CHECK_GOOD, "check={}", phub::aggregator::NameOf(check));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  phub_lease lease = SomeLease().lease;
  lease.aggregator = PortOnly(2);
  phub::aggregator::Engine engine({1 << 20, 1 << 20}, lease.aggregator,
                                  [&](const phub_endpoint& to, auto header, auto payload) {
                                    CheckSent(lease, to, header, payload);
                                  });
  PHUB_CHECK(engine.Grant(SomeLease(), 0).ok());
  std::uint64_t datagrams = 0;
  for (std::size_t at = 0; at + 2 <= size;) {
    const std::uint16_t word = phub_load16(data + at);
    const std::size_t length = std::min<std::size_t>(word & (kRightTag - 1u), size - at - 2);
    std::vector<std::uint8_t> bytes(data + at + 2, data + at + 2 + length);
    at += 2 + length;
    phub_endpoint source = PortOnly(99);
    if (length >= PHUB_PACKET_BYTES) {
      if ((word & kRightTag) != 0)
        phub_store64(bytes.data() + 24, phub_packet_tag(&lease.key, bytes.data()));
      const bool is_payload = bytes[3] == PHUB_PACKET_PAYLOAD;
      source = PortOnly(is_payload ? static_cast<std::uint16_t>(10 + bytes[16]) : std::uint16_t{1});
    }
    engine.Receive(bytes, source);
    ++datagrams;
  }
  const phub::aggregator::Counters& counters = engine.counters();
  const auto sum = [](const auto& array) {
    return std::accumulate(array.begin(), array.end(), std::uint64_t{0});
  };
  PHUB_CHECK(sum(counters.checks) == datagrams);
  PHUB_CHECK(sum(counters.kinds) == counters.checks[PHUB_CHECK_GOOD]);
  PHUB_CHECK(sum(counters.verdicts) == counters.kinds[PHUB_PACKET_PAYLOAD]);
  return 0;
}
