// Both ends in two threads, as in two processes: all messages arrive complete and in order through
// rings that wrap and fill, while both ends sleep whenever they may.
#include <poll.h>

#include <atomic>
#include <deque>
#include <thread>

#include "common/base/random.h"
#include "tests/unit/transport/shm/shm_fixture.h"

namespace phub::transport {
namespace {

using wire::MessageKind;
using Bytes = std::vector<std::byte>;

// Fewer under the thread sanitizer, which makes this about twenty times slower.
#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kMessages = 4000;
#else
constexpr std::uint64_t kMessages = 40000;
#endif
constexpr std::uint32_t kStressSlots = 64;

std::byte PatternAt(std::uint64_t iteration, std::size_t at) {
  return static_cast<std::byte>(iteration * 31 + at * 7);
}

std::size_t BytesOf(std::uint64_t iteration) {
  switch (iteration % 5) {
    case 0: return 0;
    case 1: return 64;
    case 2: return 1000 + iteration % 1000;
    case 3: return iteration % 97 == 0 ? 20000 : 300;  // longer than the arena
    default: return 128;                               // in the region
  }
}

// One end: posts its messages, receives the peer's, and sleeps in between.
class StressEnd {
 public:
  StressEnd(ShmConnection& connection, const SharedMemory& region, bool sleeps)
      : region_(region), sleeps_(sleeps), memory_(kStressSlots * std::size_t{20000}) {
    for (std::uint32_t i = 0; i < kStressSlots; ++i) {
      landing_.push_back({memory_.data() + std::size_t{i} * 20000, 20000});
    }
    id_ = transport_.Adopt(connection, landing_);
  }

  // Runs until the peer has reported that it has everything.
  void Run(std::atomic<int>& done, std::uint64_t& errors) {
    bool counted = false;
    while (done.load() < 2) {
      Post();
      Completion completions[16];
      const std::size_t polled = transport_.Poll(completions);
      for (const Completion& each : std::span(completions).first(polled)) errors += Take(each);
      transport_.Release({completions, polled});
      if (!counted && received_ == kMessages && sent_ == kMessages) {
        counted = true;
        ++done;
      }
      if (polled > 0 || (posted_ < kMessages && lent_.size() < 8)) continue;
      if (!sleeps_) std::this_thread::yield();  // both ends may share one core
      if (sleeps_ && transport_.Arm()) {
        pollfd item{transport_.descriptor(), POLLIN, 0};
        const int ready = poll(&item, 1, counted ? 10 : 20000);
        errors += !counted && ready != 1;  // a wake-up was lost
      }
    }
  }

 private:
  void Post() {
    while (posted_ < kMessages && lent_.size() < 8) {
      const std::size_t bytes = BytesOf(posted_);
      auto payload = std::make_unique<Bytes>(bytes);
      for (std::size_t i = 0; i < bytes; ++i) (*payload)[i] = PatternAt(posted_, i);
      wire::MessageHeader header = Header(
          MessageKind::kGradient, SlotIndex{static_cast<std::uint32_t>(posted_ % 64)}, bytes);
      header.iteration = {posted_};
      std::span<const std::byte> lies = *payload;
      // A place is reused 2560 messages later, long after it was received.
      if (posted_ % 5 == 4) {
        std::byte* const place = region_.data() + posted_ / 5 % 512 * 128;
        std::copy(payload->begin(), payload->end(), place);
        lies = {place, bytes};
      }
      const SendRequest request{.header = header,
                                .payload = lies,
                                .connections = {&id_, 1},
                                .cookie = posted_,
                                .notify_sent = true};
      if (transport_.Post({&request, 1}) == 0) return;
      lent_.push_back(std::move(payload));
      ++posted_;
    }
  }
  // Returns the number of errors.
  std::uint64_t Take(const Completion& completion) {
    if (completion.kind == CompletionKind::kSent) {
      const bool wrong = completion.cookie != sent_++;
      lent_.pop_front();
      return wrong;
    }
    if (completion.kind != CompletionKind::kReceived) return 1;
    const wire::MessageHeader& header = completion.message->header;
    const std::uint64_t iteration = received_++;
    if (header.iteration.value != iteration || header.payload_bytes != BytesOf(iteration)) return 1;
    for (std::size_t i = 0; i < header.payload_bytes; ++i) {
      if (completion.message->payload[i] != PatternAt(iteration, i)) return 1;
    }
    return 0;
  }

  const SharedMemory& region_;
  const bool sleeps_;
  Bytes memory_;
  std::vector<LandingSlot> landing_;
  ShmTransport transport_{2};
  ConnectionId id_;
  std::deque<std::unique_ptr<Bytes>> lent_;
  std::uint64_t posted_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

class ShmStressTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ends, ShmStressTest, ::testing::Bool(),
                         [](const auto& sleeps) { return sleeps.param ? "Sleep" : "Poll"; });

TEST_P(ShmStressTest, EverythingArrivesInOrderAndWhole) {
  const ShmLimits limits{
      .ring_records = 8, .arena_bytes = 8192, .send_queue = 16, .received_lent = 16};
  RankMemory rank;
  const MappedTwice to_worker(kRegionBytes, SharedMemory::Others::kWrite);
  rank.daemons->Add(to_worker.daemons, true);
  rank.workers->Add(to_worker.workers, true);
  Offered offered(rank.lane(), limits);
  const auto daemon = std::move(offered.daemon);
  const auto worker = offered.Accept(rank.workers, limits);
  std::atomic<int> done{0};
  std::uint64_t daemon_errors = 0;
  std::uint64_t worker_errors = 0;
  std::thread there(
      [&] { StressEnd(*worker, *rank.worker.workers, GetParam()).Run(done, worker_errors); });
  StressEnd(*daemon, *to_worker.daemons, GetParam()).Run(done, daemon_errors);
  there.join();
  EXPECT_EQ(daemon_errors, 0u);
  EXPECT_EQ(worker_errors, 0u);
}

}  // namespace
}  // namespace phub::transport
