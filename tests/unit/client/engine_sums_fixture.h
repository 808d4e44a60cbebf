// An engine whose rounds an aggregator sums. The test acts as the daemon, and as the aggregator
// with a socket.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "common/aggregation/datagram_socket.h"
#include "common/aggregation/endpoint_text.h"
#include "common/aggregation/fixed_point.h"
#include "common/aggregation/stream_terms.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {

using aggregation::DatagramSocket;
using wire::MessageKind;
using Posted = FakeTransport::Posted;

inline constexpr std::uint32_t kBlock = 24;  // a chunk of 64 elements has blocks of 24, 24 and 16
inline constexpr std::uint32_t kBlocks = 3;
inline constexpr std::uint32_t kRanks = 2;
inline constexpr std::uint32_t kLease = 5;

inline DatagramSocket LocalSocket() {
  const auto address = aggregation::ParseAddress("127.0.0.1:0");
  auto socket = DatagramSocket::Bind(address->storage, address->bytes);
  PHUB_CHECK(socket.ok());
  return *std::move(socket);
}

class EngineSumsTest : public EngineTest {
 public:
  using EngineTest::AddKey;
  using EngineTest::lanes_;
  using EngineTest::Push;
  using EngineTest::Run;
  using EngineTest::transport_;

  void StartSums(std::uint32_t slots = 1) {
    config_ = {.incarnation = Incarnation{77},
               .membership_epoch = MembershipEpoch{3},
               .slots_per_lane = slots,
               .lane_count = 1,
               .sum_sockets = {&socket_},
               .sum_block = kBlock,
               .world_size = kRanks};
    layout_ = std::make_unique<LaneLayout>(kChunkBytes, 1);
    engine_ = std::make_unique<Engine>(config_, clock_, transports_, lanes_);
    Attach(0);
    Run();
  }
  aggregation::StreamTerms Terms(std::uint32_t lease = kLease) {
    return {.lease = aggregation::LeaseNumber{lease},
            .worker = 1,
            .worker_count = kRanks,
            .count_max = kBlock,
            .geometry = {.positions = 2, .blocks = kBlocks},
            .key = {{11, 12}},
            .aggregator = aggregator_.endpoint()};
  }
  void OpenStream(const aggregation::StreamTerms& terms, std::size_t connection = 0) {
    std::array<std::byte, aggregation::kStreamTermsBytes> bytes;
    aggregation::EncodeStreamTerms(terms, bytes);
    transport_.Deliver(connection, StreamHeader(MessageKind::kStreamIs, 0), bytes);
  }
  void CloseStream(std::size_t connection = 0) {
    transport_.Deliver(connection, StreamHeader(MessageKind::kStreamIs, 0), {});
  }
  wire::MessageHeader StreamHeader(MessageKind kind, std::uint32_t chunk,
                                   std::uint64_t iteration = 0) const {
    wire::MessageHeader header = FromDaemon(kind, chunk);
    header.version = wire::kStreamVersion;
    header.iteration = Iteration{iteration};
    return header;
  }
  void Assign(std::uint32_t chunk, std::uint64_t iteration, std::uint64_t position,
              const std::vector<std::uint8_t>& exponents, std::size_t connection = 0) {
    wire::MessageHeader header = StreamHeader(MessageKind::kAssign, chunk, iteration);
    header.slot = SlotIndex{kLease};
    header.value_bits = position;
    transport_.Deliver(connection, header, std::as_bytes(std::span(exponents)));
  }
  void UseTcp(std::uint32_t chunk, std::uint64_t iteration) {
    transport_.Deliver(0, StreamHeader(MessageKind::kUseTcp, chunk, iteration), {});
  }
  static std::span<const float> BlockOf(const TestKey& key, std::uint32_t chunk,
                                        std::uint32_t block) {
    return std::span(key.gradients)
        .subspan(chunk * kChunkElements + block * kBlock)
        .first(block + 1 < kBlocks ? kBlock : 16);
  }
  // Datagrams that have arrived at the aggregator, by slot.
  struct Arrived {
    phub_packet packet{};
    std::vector<std::int32_t> integers;
  };
  std::map<std::uint32_t, Arrived> Datagrams(std::size_t expected) {
    std::map<std::uint32_t, Arrived> arrived;
    phub_lease lease = aggregation::LeaseOf(Terms());
    lease.workers[1] = socket_.endpoint();
    for (int i = 0; i < 1000 && arrived.size() < expected; ++i) {
      aggregator_.Receive([&](std::span<const std::uint8_t> bytes, const phub_endpoint& source) {
        phub_packet packet{};
        EXPECT_EQ(phub_packet_check(&lease, PHUB_KINDS_FROM_WORKERS, bytes.data(),
                                    static_cast<__u32>(bytes.size()), &source, &packet),
                  PHUB_CHECK_GOOD);
        Arrived& one = arrived[packet.slot];
        one.packet = packet;
        one.integers.resize(packet.count);
        std::memcpy(one.integers.data(), bytes.data() + PHUB_PACKET_BYTES, 4u * packet.count);
      });
    }
    return arrived;
  }
  static std::vector<std::uint32_t> Kinds(const std::vector<Posted>& posted) {
    std::vector<std::uint32_t> kinds;
    for (const Posted& one : posted) kinds.push_back(static_cast<std::uint32_t>(one.header.kind));
    return kinds;
  }

  DatagramSocket socket_ = LocalSocket();
  DatagramSocket aggregator_ = LocalSocket();
};

inline constexpr auto kAnnounced = static_cast<std::uint32_t>(MessageKind::kAnnounce);
inline constexpr auto kPushed = static_cast<std::uint32_t>(MessageKind::kGradient);
using Numbers = std::vector<std::uint32_t>;

}  // namespace phub::client
