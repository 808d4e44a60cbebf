// Nothing allocates once lanes are open: this program counts every operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/conformance/lane_test.h"

namespace {
std::atomic<std::uint64_t> allocation_count{0};

void* CountedAllocate(std::size_t bytes, std::size_t alignment) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return CountedAllocate(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) {
  return CountedAllocate(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return CountedAllocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return CountedAllocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace phub::conformance {
namespace {

class Allocation : public LaneTest {
 protected:
  // Sends `count` messages each way on each lane and waits for all of them, allocating nothing.
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
  const std::uint64_t before = allocation_count.load();
  Exchange(500, payload);
  EXPECT_EQ(allocation_count.load() - before, 0u);
}

TEST_P(Allocation, NoneWhileLanesAreAdoptedAndClosed) {
  Start();
  std::vector<Harness::ConnectionPair> pairs;
  for (int i = 0; i < 8; ++i) pairs.push_back(harness->Connect());
  Landing landing(kSlots, kSlotBytes);
  Completion completions[4];
  const std::uint64_t before = allocation_count.load();
  for (const Harness::ConnectionPair& pair : pairs) {
    const ConnectionId id = left.transport->Adopt(*pair.first, landing.table);
    left.transport->SetLanding(id, landing.table);
    left.transport->Close(id);
    std::size_t polled = 0;
    while (polled == 0) polled = left.transport->Poll(completions);
    EXPECT_EQ(completions[0].kind, CompletionKind::kClosed);
  }
  EXPECT_EQ(allocation_count.load() - before, 0u);
}

}  // namespace
}  // namespace phub::conformance
