// No memory is allocated once lanes are open.
#include "tests/conformance/lane_test.h"
#include "tests/support/allocation_counter.h"

namespace phub::conformance {
namespace {

using phub::testing::AllocationCount;

class Allocation : public LaneTest {
 protected:
  // Sends `count` messages each way on each lane and waits for all of them, without allocating.
  void Exchange(std::uint64_t count, std::span<const std::byte> payload) {
    std::uint64_t posted = 0;
    std::uint64_t received = 0;
    Completion completions[32];
    const std::uint64_t total = 2 * count * lanes.size();
    while (received < total) {
      for (const auto& lane : lanes) {
        if (posted == total) break;
        const bool small = posted % 3 == 0;
        SendRequest request{.header = small ? Credit(1) : Gradient(2, payload.size()),
                            .payload = small ? std::span<const std::byte>{} : payload,
                            .connections = {&lane->left, 1},
                            .notify_sent = true};
        posted += left.transport->Post({&request, 1});
        if (posted == total) break;
        request.connections = {&lane->right, 1};
        posted += right.transport->Post({&request, 1});
      }
      for (Side* side : {&left, &right}) {
        const std::size_t polled = side->transport->Poll(completions);
        for (std::size_t i = 0; i < polled; ++i) {
          received += completions[i].kind == CompletionKind::kReceived;
        }
        side->transport->Release({completions, polled});
      }
      harness->Pump();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, Allocation, ::testing::ValuesIn(AllHarnesses()), HarnessName);

TEST_P(Allocation, NoneWhileMessagesFlow) {
  Start({.send_queue = 16});
  for (int i = 0; i < 3; ++i) Open();
  const Bytes payload = PatternBytes(kSlotBytes, 30);
  Exchange(20, payload);
  const std::size_t before = AllocationCount();
  Exchange(500, payload);
  EXPECT_EQ(AllocationCount(), before);
}

TEST_P(Allocation, NoneWhileLanesAreAdoptedAndClosed) {
  Start();
  std::vector<Harness::ConnectionPair> pairs;
  for (int i = 0; i < 8; ++i) pairs.push_back(harness->Connect());
  Landing landing(kSlots, kSlotBytes);
  Completion completions[4];
  const std::size_t before = AllocationCount();
  for (const Harness::ConnectionPair& pair : pairs) {
    const ConnectionId id = left.transport->Adopt(*pair.first, landing.table);
    left.transport->SetLanding(id, landing.table);
    left.transport->Close(id);
    std::size_t polled = 0;
    while (polled == 0) polled = left.transport->Poll(completions);
    EXPECT_EQ(completions[0].kind, CompletionKind::kClosed);
  }
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace phub::conformance
