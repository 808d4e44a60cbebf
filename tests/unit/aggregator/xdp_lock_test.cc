// Two cores run the program in the kernel on one slot at the same time, and nothing is lost. A
// program without the lock shows that this would be noticed. Needs the rights to load programs.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/unit/aggregator/xdp_fixture.h"
#include "tests/unit/aggregator/xdp_trace.h"

namespace phub::aggregator {
namespace {

using XdpLock = XdpTest;

// Without the lock, one of the first 13 sums was wrong in each of eight runs.
constexpr std::uint32_t kPhases = 500;

// Two threads meet here again and again. They do not sleep, so both go on at the same time, and
// each has a core of its own, also on a busy machine.
class MeetingPoint {
 public:
  void Meet() {
    const std::uint32_t round = round_.load();
    if (waiting_.fetch_add(1) == 1) {
      waiting_ = 0;
      round_ = round + 1;
      return;
    }
    while (round_.load() == round) {
    }
  }

 private:
  std::atomic<std::uint32_t> round_{0};
  std::atomic<std::uint32_t> waiting_{0};
};

std::vector<int> Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// Two threads send the contributions of 8 workers to one slot at the same time, phase after phase.
// Returns the first phase whose sum is wrong; `phases` if all are right.
std::uint32_t FirstWrongPhase(XdpProgram& program, std::uint32_t phases) {
  constexpr std::uint32_t kWorkers = 8;
  Engine engine(
      kLimits, kOwn, [](const auto&, auto, auto) {}, &program);
  const LeaseRequest request = TraceLease(5, kWorkers, PHUB_PACKET_COUNT_MAX);
  EXPECT_TRUE(engine.Grant(request, 0).ok());
  std::uint32_t phase = 0;
  bool wrong = false;
  MeetingPoint both;
  const std::vector<int> cores = Cores();
  const auto stay_on = [&](int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
  };
  std::vector<std::vector<std::uint8_t>> datagrams(kWorkers);
  for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
    datagrams[worker].resize(PHUB_PACKET_BYTES + 4 * PHUB_PACKET_COUNT_MAX);
    for (std::size_t at = PHUB_PACKET_BYTES; at < datagrams[worker].size(); at += 4)
      phub_store32(datagrams[worker].data() + at, 1u << worker);
  }
  const auto contribute = [&](std::uint32_t first) {
    for (std::uint32_t worker = first; worker < kWorkers; worker += 2) {
      phub_packet packet{};
      packet.lease = request.lease.number;
      packet.kind = PHUB_PACKET_PAYLOAD;
      packet.worker = static_cast<__u8>(worker);
      packet.phase = phase;
      packet.count = PHUB_PACKET_COUNT_MAX;
      packet.payload_sum = PHUB_PACKET_COUNT_MAX << worker;
      phub_packet_encode(&packet, &request.lease.key, datagrams[worker].data());
      program.Run(XdpProgram::Entry::kHandIn, datagrams[worker], request.lease.workers[worker]);
    }
  };
  const auto is_wrong = [&] {
    phub_slot slot{};
    std::vector<std::uint32_t> values(PHUB_PACKET_COUNT_MAX);
    engine.ReadSlot(request.lease.number, 0, slot, values);
    return slot.state != PHUB_SLOT_SUMMED ||
           std::any_of(values.begin(), values.end(), [](auto value) { return value != 255; });
  };
  std::thread first([&] {
    stay_on(cores.front());
    for (;;) {
      both.Meet();
      if (wrong || phase == phases) return;
      contribute(0);
      both.Meet();
      wrong = is_wrong();
      if (!wrong) ++phase;
      engine.TakeKernelEvents();
    }
  });
  std::thread second([&] {
    stay_on(cores.back());
    for (;;) {
      both.Meet();
      if (wrong || phase == phases) return;
      contribute(1);
      both.Meet();
    }
  });
  first.join();
  second.join();
  engine.End(request.lease.number, request.owner);
  return phase;
}

TEST_F(XdpLock, TwoCoresAddToOneSlotWithoutLosingAnything) {
  LOAD_OR_SKIP(EmbeddedProgram());
  EXPECT_EQ(FirstWrongPhase(*program, kPhases), kPhases);
}

TEST_F(XdpLock, NoticesAProgramWithoutALock) {
  if (Cores().size() < 2) GTEST_SKIP() << "this process has one core";
  LOAD_OR_SKIP(ReadObject(PHUB_TEST_NO_LOCK));
  constexpr std::uint32_t kMany = 100 * kPhases;
  EXPECT_LT(FirstWrongPhase(*program, kMany), kMany);
}

}  // namespace
}  // namespace phub::aggregator
