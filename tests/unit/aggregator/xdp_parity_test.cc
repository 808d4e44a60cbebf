// The program in the kernel decides and sends what the engine in this process does, packet by
// packet, and its slots have the same contents. A program with a mistake shows that this would be
// noticed. Needs the rights to load programs; no network.
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "common/aggregation/datagram_socket.h"
#include "common/aggregation/endpoint_text.h"
#include "tests/unit/aggregator/xdp_fixture.h"
#include "tests/unit/aggregator/xdp_trace.h"

namespace phub::aggregator {
namespace {

constexpr std::size_t kHeaders = 42;  // Ethernet, IPv4, UDP
std::uint16_t Folded(std::uint64_t sum) {
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

std::uint64_t SumOf(std::span<const std::uint8_t> bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) sum += std::uint64_t{bytes[i]} << (i % 2 * 8);
  return sum;
}

// The destination and the datagram of a frame, and what is wrong with it.
std::pair<std::string, std::string> Parse(std::span<const std::uint8_t> frame) {
  sockaddr_storage to{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(to);
  v4.sin_family = AF_INET;
  std::memcpy(&v4.sin_addr, frame.data() + 30, 4);
  std::memcpy(&v4.sin_port, frame.data() + 36, 2);
  std::string problem;
  if (Folded(SumOf(frame.subspan(14, 20))) != 0xffff) problem += " IP checksum";
  const auto udp = frame.subspan(34);
  if (Folded(SumOf(udp) + SumOf(frame.subspan(26, 8)) + htons(IPPROTO_UDP) +
             htons(static_cast<std::uint16_t>(udp.size()))) != 0xffff)
    problem += " UDP checksum";
  if (std::memcmp(frame.data() + 26, reinterpret_cast<const char*>(&kOwn) + 12, 4) != 0 ||
      std::memcmp(frame.data() + 34, &kOwn.port, 2) != 0)
    problem += " source";
  return {aggregation::TextOf(aggregation::EndpointOf(to)) + ": " +
              std::string(frame.begin() + kHeaders, frame.end()),
          problem};
}

// What an engine has done. Two of them are compared.
class Side {
 public:
  explicit Side(XdpProgram* program, XdpProgram::Entry entry = XdpProgram::Entry::kHandIn)
      : program_(program),
        entry_(entry),
        engine_(
            kLimits, kOwn,
            [this](const phub_endpoint& to, auto header, auto payload) {
              std::string bytes(header.begin(), header.end());
              bytes.append(payload.begin(), payload.end());
              sent_.push_back(aggregation::TextOf(to) + ": " + bytes);
            },
            program) {}

  void Receive(const TracePacket& packet) {
    if (entry_ == XdpProgram::Entry::kInterface) {
      const XdpProgram::Ran ran = program_->Run(entry_, Cut(packet.bytes), packet.source);
      if (ran.action == XDP_REDIRECT) {
        auto [sent, problem] = Parse(ran.packet);
        problems_ += problem;
        sent_.push_back(std::move(sent));
      }
      if (ran.action == -1) problems_ += " the program did not run";
      if (ran.action == XDP_PASS && packet.source.port != TraceLease(1, 1, 1).lease.core_loop.port)
        ++joined_;
      if (ran.action == XDP_PASS) engine_.Receive(packet.bytes, packet.source);
    } else {
      engine_.Receive(packet.bytes, packet.source);
    }
    engine_.TakeKernelEvents();
  }
  std::vector<std::string> TakeSent() {
    std::sort(sent_.begin(), sent_.end());
    return std::exchange(sent_, {});
  }
  Engine& engine() { return engine_; }
  const std::string& problems() const { return problems_; }
  // Datagrams of workers that the program passed on, as if they were several that had been joined.
  std::uint64_t joined() const { return joined_; }

 private:
  // The driver never has more than this in one piece.
  static std::span<const std::uint8_t> Cut(std::span<const std::uint8_t> datagram) {
    return datagram.first(std::min<std::size_t>(datagram.size(), 3428));
  }

  XdpProgram* const program_;
  const XdpProgram::Entry entry_;
  std::vector<std::string> sent_;
  std::string problems_;
  std::uint64_t joined_ = 0;
  Engine engine_;
};

std::map<std::string, std::uint64_t> Decisions(const Counters& counters) {
  std::map<std::string, std::uint64_t> named;
  for (std::uint32_t i = 0; i < counters.checks.size(); ++i)
    named[std::string("check ") + NameOf(static_cast<phub_check>(i))] = counters.checks[i];
  for (std::uint32_t i = 0; i < counters.verdicts.size(); ++i)
    named[std::string("verdict ") + NameOf(static_cast<phub_verdict>(i))] = counters.verdicts[i];
  for (std::uint32_t i = 0; i < counters.kinds.size(); ++i)
    named["kind " + std::to_string(i)] = counters.kinds[i];
  named["sums"] = counters.sums;
  named["answers"] = counters.answers;
  named["sums repeated"] = counters.sums_repeated;
  named["nacks dropped"] = counters.nacks_dropped;
  named["parameters forwarded"] = counters.parameters_forwarded;
  return named;
}

// State and integers of a slot. Only the integers that the slot says it has: the engine leaves the
// rest of an earlier phase in the others.
std::string Contents(const Engine& engine, std::uint32_t lease, std::uint32_t slot) {
  phub_slot state{};
  std::vector<std::uint32_t> values(PHUB_PACKET_COUNT_MAX);
  if (!engine.ReadSlot(lease, slot, state, values)) return "no such slot";
  return std::string(reinterpret_cast<const char*>(&state), sizeof state) +
         std::string(reinterpret_cast<const char*>(values.data()), 4u * state.count);
}

struct Compared {
  std::string difference;  // the first one; "": both are equal
  std::map<std::string, std::uint64_t> decisions;
  std::uint64_t kernel_sums = 0;
  std::uint64_t joined = 0;
};

Compared Compare(XdpProgram& program, XdpProgram::Entry entry, const LeaseRequest& request,
                 std::uint64_t seed, int packets) {
  Side process(nullptr);
  Side kernel(&program, entry);
  EXPECT_TRUE(process.engine().Grant(request, 0).ok());
  EXPECT_TRUE(kernel.engine().Grant(request, 0).ok());
  const auto before = Decisions(kernel.engine().counters());
  Trace trace(request.lease, seed);
  Compared compared;
  for (int i = 0; i < packets && compared.difference.empty(); ++i) {
    const TracePacket packet = trace.Next(process.engine());
    process.Receive(packet);
    kernel.Receive(packet);
    compared.decisions = Decisions(process.engine().counters());
    auto decided = Decisions(kernel.engine().counters());
    for (auto& [name, count] : decided) {
      count -= before.at(name);
      if (count != compared.decisions.at(name))
        compared.difference += name + " " + std::to_string(count) + ", expected " +
                               std::to_string(compared.decisions.at(name)) + "; ";
    }
    if (process.TakeSent() != kernel.TakeSent())
      compared.difference += "other datagrams are sent; ";
    for (std::uint32_t slot = 0; slot < request.lease.slot_count; ++slot) {
      if (Contents(process.engine(), request.lease.number, slot) !=
          Contents(kernel.engine(), request.lease.number, slot))
        compared.difference += "slot " + std::to_string(slot) + " has other contents; ";
    }
    compared.difference += kernel.problems();
    if (!compared.difference.empty()) compared.difference += "packet " + std::to_string(i);
  }
  compared.kernel_sums = kernel.engine().counters().kernel_sums;
  compared.joined = kernel.joined();
  kernel.engine().End(request.lease.number, request.owner);
  return compared;
}

using XdpParity = XdpTest;

void ExpectEverythingHappened(const std::map<std::string, std::uint64_t>& decisions) {
  for (const auto& [name, count] : decisions) {
    const bool cannot = name == "verdict store_last" || (name.starts_with("kind ") && count == 0);
    EXPECT_TRUE(count > 0 || cannot) << name;
  }
}

TEST_F(XdpParity, HandedInDatagramsHaveTheResultsOfTheEngine) {
  LOAD_OR_SKIP(EmbeddedProgram());
  const Compared compared =
      Compare(*program, XdpProgram::Entry::kHandIn, TraceLease(9, 3, 350), 1, 6000);
  EXPECT_EQ(compared.difference, "");
  ExpectEverythingHappened(compared.decisions);
  EXPECT_EQ(compared.kernel_sums, 0u) << "sums of such datagrams leave through the socket";
}

TEST_F(XdpParity, PacketsOfAnInterfaceHaveTheResultsOfTheEngine) {
  LOAD_OR_SKIP(EmbeddedProgram());
  const Compared compared =
      Compare(*program, XdpProgram::Entry::kInterface, TraceLease(9, 3, 350), 2, 6000);
  EXPECT_EQ(compared.difference, "");
  ExpectEverythingHappened(compared.decisions);
  EXPECT_GT(compared.kernel_sums, 0u);
  EXPECT_GT(compared.joined, 0u);
}

TEST_F(XdpParity, HoldsForOneWorkerAndForManyAndForLongBlocks) {
  LOAD_OR_SKIP(EmbeddedProgram());
  const LeaseRequest leases[] = {TraceLease(1, 1, 17), TraceLease(2, 64, 3),
                                 TraceLease(3, 2, PHUB_PACKET_COUNT_MAX)};
  for (const LeaseRequest& lease : leases) {
    for (const auto entry : {XdpProgram::Entry::kHandIn, XdpProgram::Entry::kInterface}) {
      const Compared compared = Compare(*program, entry, lease, lease.lease.number, 1000);
      EXPECT_EQ(compared.difference, "") << lease.lease.worker_count << " workers";
    }
  }
}

TEST_F(XdpParity, SlotsAreZerosAgainAfterALease) {
  LOAD_OR_SKIP(EmbeddedProgram());
  const std::uint64_t slots = (1 << 20) / program->slot_bytes();
  LeaseRequest request = TraceLease(1, 2, 8);
  const auto grant = [&](std::uint32_t number, std::uint64_t count) {
    request.lease.number = number;
    request.lease.slot_count = static_cast<std::uint32_t>(count);
    return program->Grant(request.lease);
  };
  const auto contribute = [&](std::uint32_t lease) {
    phub_packet packet{};
    packet.lease = lease;
    packet.kind = PHUB_PACKET_PAYLOAD;
    packet.count = 1;
    packet.payload_sum = 7;
    std::array<std::uint8_t, PHUB_PACKET_BYTES + 4> bytes{};
    phub_store32(bytes.data() + PHUB_PACKET_BYTES, 7);
    phub_packet_encode(&packet, &request.lease.key, bytes.data());
    program->HandIn(bytes, request.lease.workers[0]);
  };
  const auto workers_in = [&](std::uint32_t lease) {
    phub_slot slot{};
    EXPECT_TRUE(program->Read(lease, 0, slot, {}));
    return slot.workers;
  };
  for (std::uint32_t number = 1; number <= 3; ++number) {
    ASSERT_TRUE(grant(number, slots / 3).ok());
    contribute(number);
    EXPECT_EQ(workers_in(number), 1u);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(grant(4, slots / 3 + 1)));
  for (const std::uint32_t number : {1, 3, 2}) program->End(number);
  // Expect: the ranges have become one again. What belongs to an ended lease is not added.
  ASSERT_TRUE(grant(5, slots).ok());
  EXPECT_EQ(workers_in(5), 0u);
  contribute(1);
  EXPECT_EQ(workers_in(5), 0u);
  phub_slot slot{};
  EXPECT_FALSE(program->Read(1, 0, slot, {}));
}

TEST_F(XdpParity, NoticesAProgramThatDoesNotCompareThePhase) {
  LOAD_OR_SKIP(ReadObject(PHUB_TEST_NO_PHASE));
  const Compared compared =
      Compare(*program, XdpProgram::Entry::kHandIn, TraceLease(9, 3, 350), 1, 6000);
  EXPECT_NE(compared.difference, "");
}

}  // namespace
}  // namespace phub::aggregator
