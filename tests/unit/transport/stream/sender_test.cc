#include "common/transport/stream/sender.h"

#include <gtest/gtest.h>
#include <limits.h>

#include <vector>

#include "common/base/random.h"

namespace phub::transport {
namespace {

// Accepts the configured number of bytes per call, and records the calls.
class RecordingStream final : public ByteStream {
 public:
  explicit RecordingStream(std::size_t bytes_per_call) : bytes_per_call_(bytes_per_call) {}
  IoResult Readv(std::span<const iovec>) override { return {}; }
  IoResult Writev(std::span<const iovec> parts) override {
    std::size_t asked = 0;
    std::size_t taken = 0;
    for (const iovec& part : parts) {
      asked += part.iov_len;
      const auto* from = static_cast<const std::byte*>(part.iov_base);
      const std::size_t count = std::min(part.iov_len, bytes_per_call_ - taken);
      written.insert(written.end(), from, from + count);
      taken += count;
    }
    asked_bytes.push_back(asked);
    asked_parts.push_back(parts.size());
    return {taken, IoStatus::kMore};
  }
  void Shutdown() override {}

  std::vector<std::byte> written;
  std::vector<std::size_t> asked_bytes;
  std::vector<std::size_t> asked_parts;

 private:
  const std::size_t bytes_per_call_;
};

std::array<std::byte, wire::kHeaderBytes> HeadOf(std::byte fill) {
  std::array<std::byte, wire::kHeaderBytes> head;
  head.fill(fill);
  return head;
}

TEST(StreamSender, GathersAtLeastHalfAMebibyteWhenThatMuchIsQueued) {
  StreamSender sender(128);
  const std::vector<std::byte> payload(32 * 1024);
  for (int i = 0; i < 100; ++i) sender.Push(HeadOf({}), {}, payload, 0, false);
  RecordingStream stream(SIZE_MAX);
  bool writable = true;
  std::size_t budget = SIZE_MAX;
  ASSERT_TRUE(sender.Flush(stream, writable, budget));
  EXPECT_FALSE(sender.has_unsent());
  for (std::size_t i = 0; i + 1 < stream.asked_bytes.size(); ++i) {
    EXPECT_GE(stream.asked_bytes[i], 512u * 1024);
  }
}

TEST(StreamSender, NeverAsksForMorePartsThanTheSystemTakes) {
  StreamSender sender(3000);
  const std::vector<std::byte> payload(1);
  for (int i = 0; i < 3000; ++i) sender.Push(HeadOf({}), {}, payload, 0, false);
  RecordingStream stream(SIZE_MAX);
  bool writable = true;
  std::size_t budget = SIZE_MAX;
  ASSERT_TRUE(sender.Flush(stream, writable, budget));
  EXPECT_EQ(stream.written.size(), 3000 * (wire::kHeaderBytes + 1));
  for (const std::size_t parts : stream.asked_parts) EXPECT_LE(parts, std::size_t{IOV_MAX});
}

TEST(StreamSender, PartialWritesLoseAndRepeatNothing) {
  for (const std::size_t bytes_per_call : {1u, 63u, 64u, 65u, 127u, 100'000u}) {
    StreamSender sender(8);
    std::vector<std::byte> expected;
    std::vector<std::vector<std::byte>> payloads;
    SeededRandom random(bytes_per_call);
    for (const std::size_t size : {0u, 1u, 64u, 500u, 0u}) {
      payloads.emplace_back(size);
      random.Fill(payloads.back());
    }
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      const auto head = HeadOf(static_cast<std::byte>(i));
      // Every other one inline.
      const bool is_inline = payloads[i].size() <= wire::kInlineBytesMax && i % 2 == 0;
      sender.Push(head, is_inline ? payloads[i] : std::span<const std::byte>{},
                  is_inline ? std::span<const std::byte>{} : payloads[i], i, true);
      expected.insert(expected.end(), head.begin(), head.end());
      expected.insert(expected.end(), payloads[i].begin(), payloads[i].end());
    }
    RecordingStream stream(bytes_per_call);
    bool writable = true;
    std::uint64_t reported = 0;
    while (sender.has_unsent()) {
      std::size_t budget = 1;  // one call each time
      ASSERT_TRUE(sender.Flush(stream, writable, budget));
      std::uint64_t cookie = 0;
      while (sender.NextSent(cookie)) EXPECT_EQ(cookie, reported++);
    }
    EXPECT_EQ(reported, payloads.size());
    EXPECT_EQ(stream.written, expected);
  }
}

TEST(StreamSender, PlacesAreTakenUntilSentIsReported) {
  StreamSender sender(2);
  sender.Push(HeadOf({}), {}, {}, 1, true);
  sender.Push(HeadOf({}), {}, {}, 2, false);
  EXPECT_TRUE(sender.full());
  RecordingStream stream(SIZE_MAX);
  bool writable = true;
  std::size_t budget = SIZE_MAX;
  ASSERT_TRUE(sender.Flush(stream, writable, budget));
  EXPECT_TRUE(sender.full());
  std::uint64_t cookie = 0;
  EXPECT_TRUE(sender.NextSent(cookie));
  EXPECT_EQ(cookie, 1u);
  EXPECT_FALSE(sender.NextSent(cookie));
  EXPECT_FALSE(sender.has_unreported());
  EXPECT_FALSE(sender.full());
}

}  // namespace
}  // namespace phub::transport
