// Both halves of a lane in one thread, without a device: the test carries out the work requests of
// the sender, reports them to the receiver, and completes them, in random order. The invariants of
// both halves hold after every step, with any window, and all messages arrive.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "common/base/random.h"
#include "common/transport/verbs/verbs_receiver.h"
#include "common/transport/verbs/verbs_sender.h"
#include "tests/verbs/fake_verbs.h"

namespace phub::transport {
namespace {

constexpr std::uint32_t kBoxBytes = 2048;
constexpr std::uint32_t kSendQueue = 8;
constexpr std::uint32_t kLent = 4;
constexpr std::uint32_t kChunks = 4;
constexpr std::uint32_t kPayloadMax = 3000;  // more than fits into the boxes at once
constexpr std::uint64_t kStepsMax = 1'000'000;

struct Sizes {
  std::uint32_t window;         // messages in flight
  std::uint32_t work_requests;  // in flight
  std::uint64_t messages;       // to send
};

// The daemon's sender and the client's receiver.
class LaneHalves : private WorkRequestObserver {
 public:
  LaneHalves(const Sizes& sizes, std::uint64_t seed)
      : sizes_(sizes),
        random_(seed),
        sender_(VerbsEnd::kDaemon, kSendQueue,
                {.heads = heads_.data(), .outbox = outbox_.data(), .outbox_bytes = kBoxBytes},
                MakeDomain(),
                {.requests = sizes.work_requests, .inline_bytes = 0, .message_bytes = 1 << 20}),
        receiver_(VerbsEnd::kClient, {.inbox = inbox_.data(), .inbox_bytes = kBoxBytes},
                  sizes.window, kLent) {
    context_.ops.post_send = [](ibv_qp*, ibv_send_wr*, ibv_send_wr**) { return 0; };
    queue_pair_.context = &context_;
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      landed_[i].resize(kPayloadMax);
      landing_[i] = {.data = landed_[i].data(), .bytes_max = kPayloadMax};
    }
    wire::VerbsOffer offer;
    offer.inbox_address = reinterpret_cast<std::uintptr_t>(inbox_.data());
    offer.inbox_bytes = kBoxBytes;
    offer.inbox_key = 1;
    offer.messages_max = sizes.window;
    sender_.SetPeer(offer);
  }

  // False if not all messages have arrived after many steps.
  bool Run() {
    for (std::uint64_t step = 0; received_ < sizes_.messages && step < kStepsMax; ++step) {
      switch (random_.Below(5)) {
        case 0: Push(); break;
        case 1: Flush(); break;
        case 2: CarryOut(); break;
        case 3: Complete(); break;
        case 4: Receive(); break;
      }
      sender_.CheckInvariants();
      receiver_.CheckInvariants();
      if (HasFailure()) return false;
    }
    return received_ == sizes_.messages;
  }

 private:
  static std::shared_ptr<const VerbsDomain> MakeDomain() {
    fake_verbs::Reset();
    return VerbsDomain::Create(VerbsDevice::Open({}).value()).value();
  }
  static bool HasFailure() { return ::testing::Test::HasFailure(); }
  std::byte ValueOfMessage(std::uint64_t number) const { return std::byte(number % 251); }

  void OnPost(const ibv_send_wr& request) override {
    Work& work = in_flight_.emplace_back();
    work.request = request;
    for (int i = 0; i < request.num_sge; ++i) {
      const auto* const at = reinterpret_cast<const std::byte*>(request.sg_list[i].addr);
      work.parts.push_back({at, request.sg_list[i].length});
    }
  }

  void Push() {
    if (sender_.full() || pushed_ == sizes_.messages) return;
    SendRequest request;
    request.header.kind = wire::MessageKind::kParameters;
    request.header.chunk = ChunkIndex{static_cast<std::uint32_t>(random_.Below(kChunks))};
    request.header.slot = SlotIndex{request.header.chunk.value};
    request.header.payload_bytes =
        random_.Below(2) == 0 ? 0 : 4 * static_cast<std::uint32_t>(random_.Below(kPayloadMax / 4));
    payloads_.emplace_back(request.header.payload_bytes, ValueOfMessage(pushed_++));
    request.payload = payloads_.back();
    std::array<std::byte, wire::kHeaderBytes> encoded;
    wire::EncodeHeader(request.header, encoded);
    sender_.Push(encoded, request);
  }

  void Flush() {
    std::size_t budget = 1 + random_.Below(4 * kBoxBytes);
    ASSERT_TRUE(sender_.Flush(&queue_pair_, 0, budget, counters_, this));
  }

  // The device reads the oldest request's data only now, so the sender must not have reused it.
  void CarryOut() {
    if (carried_out_ == in_flight_.size()) return;
    const Work& work = in_flight_[carried_out_++];
    auto* to = reinterpret_cast<std::byte*>(work.request.wr.rdma.remote_addr);
    std::uint32_t bytes = 0;
    for (const std::span<const std::byte> part : work.parts) {
      if (!part.empty()) std::memcpy(to + bytes, part.data(), part.size());
      bytes += static_cast<std::uint32_t>(part.size());
    }
    if (work.request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) return;
    wire::VerbsControl control;
    bool has_control = false;
    ASSERT_EQ(receiver_.Arrived(ntohl(work.request.imm_data), bytes, control, has_control),
              ProtocolError::kNone);
  }

  // Completes the requests up to the first signaled one.
  void Complete() {
    for (std::size_t i = 0; i < carried_out_; ++i) {
      if ((in_flight_[i].request.send_flags & IBV_SEND_SIGNALED) == 0) continue;
      in_flight_.erase(in_flight_.begin(), in_flight_.begin() + static_cast<std::ptrdiff_t>(i + 1));
      carried_out_ -= i + 1;
      sender_.OnCompletion();
      return;
    }
  }

  void Receive() {
    std::size_t budget = 1 + random_.Below(kBoxBytes);
    const VerbsReceiver::Result result = receiver_.Receive(landing_, budget, counters_);
    ASSERT_NE(result.outcome, VerbsReceiver::Outcome::kBroken);
    if (result.outcome == VerbsReceiver::Outcome::kMessage) {
      const std::vector<std::byte> wanted(result.message->header.payload_bytes,
                                          ValueOfMessage(received_++));
      ASSERT_EQ(wanted.size(), payloads_[received_ - 1].size());
      if (!wanted.empty()) {
        ASSERT_EQ(std::memcmp(result.message->payload, wanted.data(), wanted.size()), 0);
      }
      receiver_.Release(result.message);
    }
    if (!receiver_.WantsToTell()) return;
    const TakenImmediate taken = UnpackTaken(receiver_.TellTaken());
    ASSERT_NE(sender_.OnTaken(taken.messages, taken.units), VerbsSender::Taken::kBroken);
  }

  struct Work {
    ibv_send_wr request;
    std::vector<std::span<const std::byte>> parts;
  };

  const Sizes sizes_;
  SeededRandom random_;
  alignas(64) std::array<std::byte, kSendQueue * VerbsSender::kHeadBytes> heads_{};
  alignas(64) std::array<std::byte, kBoxBytes> outbox_{};
  alignas(64) std::array<std::byte, kBoxBytes> inbox_{};
  std::array<std::vector<std::byte>, kChunks> landed_;
  std::array<LandingSlot, kChunks> landing_{};
  ibv_context context_{};
  ibv_qp queue_pair_{};
  VerbsCounters counters_;
  VerbsSender sender_;
  VerbsReceiver receiver_;
  std::deque<std::vector<std::byte>> payloads_;  // stay where they are: they are lent
  std::deque<Work> in_flight_;
  std::size_t carried_out_ = 0;
  std::uint64_t pushed_ = 0;
  std::uint64_t received_ = 0;
};

TEST(VerbsHalves, KeepTheirInvariantsAndDeliverEverything) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (const Sizes& sizes : {Sizes{.window = 4, .work_requests = 64, .messages = 400},
                               Sizes{.window = 32, .work_requests = 6, .messages = 400},
                               Sizes{.window = 64, .work_requests = 64, .messages = 400}}) {
      LaneHalves lane(sizes, seed);
      ASSERT_TRUE(lane.Run()) << "seed=" << seed << " window=" << sizes.window;
    }
  }
}

}  // namespace
}  // namespace phub::transport
