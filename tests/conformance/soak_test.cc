// Thousands of random messages both ways over several lanes that open and close, compared with a
// model: each connection's arrivals are a prefix of the posted messages, byte by byte, and all of
// them if it was not closed.
#include <algorithm>
#include <deque>
#include <map>

#include "tests/conformance/lane_test.h"

namespace phub::conformance {
namespace {

constexpr std::uint64_t kMessages = 6000;
constexpr std::size_t kLanes = 5;

struct Expected {
  wire::MessageHeader header;
  Bytes payload;
};

// One direction of one lane.
struct Stream {
  std::deque<Expected> posted;              // not yet received
  std::deque<std::unique_ptr<Bytes>> lent;  // payload lent until kSent, in order of posting
  std::uint64_t next = 0;
};

class Soak : public LaneTest {
 protected:
  void PostSome(Side& side, ConnectionId id, Stream& stream) {
    // One slot each, so that unreceived messages are not overwritten.
    if (stream.posted.size() >= kSlots) return;
    wire::MessageHeader header = Gradient(stream.next % kSlots, 0, stream.next);
    auto payload = std::make_unique<Bytes>();
    switch (random.Below(4)) {
      case 0: header.kind = wire::MessageKind::kCredit; break;
      case 1:
        header.kind = wire::MessageKind::kHyperParameters;
        *payload = PatternBytes(random.Below(wire::kInlineBytesMax + 1), random.Next());
        break;
      default:
        *payload = PatternBytes(
            random.Chance(1, 4) ? random.Below(16) : random.Below(kSlotBytes + 1), random.Next());
    }
    header.payload_bytes = static_cast<std::uint32_t>(payload->size());
    const SendRequest request{.header = header,
                              .payload = *payload,
                              .connections = {&id, 1},
                              .cookie = stream.next,
                              .notify_sent = true};
    if (side.Post(request) == 0) return;
    stream.posted.push_back({header, *payload});
    stream.lent.push_back(std::move(payload));
    ++stream.next;
    ++posted_count;
  }

  // Compares what `side` has seen with the streams towards it, and empties it.
  void Check(Side& side, std::map<std::uint64_t, Stream>& towards,
             std::map<std::uint64_t, Stream>& from) {
    for (const Seen& item : side.seen) {
      const std::uint64_t key = KeyOf(item.completion.connection);
      if (item.completion.kind == CompletionKind::kReceived) {
        Stream& stream = towards[key];
        ASSERT_FALSE(stream.posted.empty());
        EXPECT_EQ(item.header, stream.posted.front().header);
        EXPECT_EQ(item.payload, stream.posted.front().payload);
        stream.posted.pop_front();
        ++received_count;
      } else if (item.completion.kind == CompletionKind::kSent) {
        Stream& stream = from[key];
        ASSERT_FALSE(stream.lent.empty());
        EXPECT_EQ(item.completion.cookie, stream.next - stream.lent.size());
        // Sent: the memory may be reused, and changing it must not change what arrives.
        std::ranges::fill(*stream.lent.front(), std::byte{0xEE});
        stream.lent.pop_front();
      } else {
        EXPECT_TRUE(closing.contains(key)) << "closed by nobody";
        from[key].lent.clear();
      }
    }
    side.seen.clear();
  }

  static std::uint64_t KeyOf(ConnectionId id) {
    return (std::uint64_t{id.generation} << 32) | id.index;
  }

  void Turn(Side& side) {
    if (random.Chance(1, 2)) side.Poll(1 + random.Below(40));
    if (random.Chance(1, 3)) side.ReleaseAll();
  }

  SeededRandom random{GetParam().name.size() * 1000 + 7};
  std::uint64_t posted_count = 0;
  std::uint64_t received_count = 0;
  std::map<std::uint64_t, bool> closing;
};
INSTANTIATE_TEST_SUITE_P(Transports, Soak, ::testing::ValuesIn(AllHarnesses()), HarnessName);

TEST_P(Soak, ArrivalsEqualTheModel) {
  Start({.send_queue = 7, .received_lent = 5});
  left.release_at_once = right.release_at_once = false;
  // Both sides adopt in step, so one key names a lane on both.
  std::vector<Lane*> open;
  std::map<std::uint64_t, Stream> rightwards;
  std::map<std::uint64_t, Stream> leftwards;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::uint64_t closed_count = 0;
  while (posted_count < kMessages) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "no progress";
    if (open.size() < kLanes) {
      open.push_back(&Open());
      ASSERT_EQ(open.back()->left, open.back()->right);
    }
    Lane& lane = *open[random.Below(open.size())];
    PostSome(left, lane.left, rightwards[KeyOf(lane.left)]);
    PostSome(right, lane.right, leftwards[KeyOf(lane.right)]);
    Turn(left);
    Turn(right);
    Check(right, rightwards, leftwards);
    Check(left, leftwards, rightwards);
    if (random.Chance(1, 4)) harness->Pump();
    if (random.Chance(1, 300)) {
      // Closes a lane from a random side, waits until both sides have polled kClosed, and removes
      // it.
      const std::size_t index = random.Below(open.size());
      Lane& victim = *open[index];
      closing[KeyOf(victim.left)] = true;
      (random.Chance(1, 2) ? left : right).transport->Close(victim.left);
      closed_count += 2;
      const auto told = [&] {
        std::size_t left_told = 0;
        for (Side* side : {&left, &right}) {
          left_told += side->Of(CompletionKind::kClosed, victim.left).size();
          side->ReleaseAll();
        }
        return left_told == 2;
      };
      ASSERT_TRUE(Until(told));
      left.Poll();  // a side that has polled kClosed may hold the place until its next Poll
      right.Poll();
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(index));
      Check(right, rightwards, leftwards);
      Check(left, leftwards, rightwards);
    }
  }
  EXPECT_GT(closed_count, 0u);
  // Then all messages posted on live lanes arrive.
  const auto all_arrived = [&] {
    left.ReleaseAll();
    right.ReleaseAll();
    Check(right, rightwards, leftwards);
    Check(left, leftwards, rightwards);
    return std::ranges::all_of(open, [&](const Lane* lane) {
      const Stream& there = rightwards[KeyOf(lane->left)];
      const Stream& back = leftwards[KeyOf(lane->right)];
      return there.posted.empty() && back.posted.empty() && there.lent.empty() && back.lent.empty();
    });
  };
  ASSERT_TRUE(Until(all_arrived));
  EXPECT_GT(received_count, kMessages / 2);
}

}  // namespace
}  // namespace phub::conformance
