// Compares the framing of byte streams with a plain parse of the same bytes. However the bytes are
// split over reads, whatever the budget, and however long messages are held: the same messages are
// delivered, with the same payloads in the right places, and the stream ends for the same reason.
//
// Input: byte 0 is the number of messages that may be lent (low 2 bits, plus 1) and whether they
// are held as long as possible (bit 2). Byte 1 seeds the splits. The rest is the stream.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/transport/stream/receiver.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"
#include "tests/fuzz/fuzz.h"

namespace phub::fuzz {
namespace {

using transport::IoResult;
using transport::IoStatus;
using transport::LandingSlot;
using transport::ProtocolError;
using transport::ReceivedMessage;
using transport::StreamReceiver;
using transport::TransportError;
using wire::MessageHeader;

using Memory = std::vector<std::byte>;

struct Expected {
  struct Message {
    MessageHeader header;
    std::span<const std::byte> payload;
  };
  std::vector<Message> messages;
  TransportError error = TransportError::kPeerClosed;
  ProtocolError protocol_error = ProtocolError::kNone;
};

// Slots of different sizes, one of them closed. Each is a separate allocation, so that
// AddressSanitizer detects a byte past its end.
class Slots {
 public:
  Slots() {
    for (std::size_t i = 0; i < kBytes.size(); ++i) {
      memory_[i].resize(kBytes[i]);
      if (kBytes[i] > 0) {
        table_[i] = {memory_[i].data(), static_cast<std::uint32_t>(kBytes[i])};
      }
    }
  }
  std::span<const LandingSlot> table() const { return table_; }

 private:
  static constexpr std::array<std::size_t, 4> kBytes = {64, 0, 1000, 257};
  std::array<Memory, kBytes.size()> memory_;
  std::array<LandingSlot, kBytes.size()> table_;
};

bool LandsInSlot(const MessageHeader& header) {
  return header.kind == wire::MessageKind::kGradient ||
         header.kind == wire::MessageKind::kParameters;
}

ProtocolError CheckSlot(const MessageHeader& header, std::span<const LandingSlot> landing) {
  if (!LandsInSlot(header)) return ProtocolError::kNone;
  if (header.slot.value >= landing.size()) return ProtocolError::kSlotRange;
  const LandingSlot& slot = landing[header.slot.value];
  if (slot.data == nullptr) return ProtocolError::kSlotClosed;
  return header.payload_bytes <= slot.bytes_max ? ProtocolError::kNone : ProtocolError::kSlotBytes;
}

// Both enumerations use the same names for the refusals of a header.
bool SameRefusal(wire::DecodeError decode_error, ProtocolError error) {
  return std::strcmp(wire::ToString(decode_error), transport::ToString(error)) == 0;
}

ProtocolError ToProtocolError(wire::DecodeError decode_error) {
  for (const ProtocolError error :
       {ProtocolError::kMagic, ProtocolError::kVersion, ProtocolError::kKind,
        ProtocolError::kOperation, ProtocolError::kType, ProtocolError::kReserved,
        ProtocolError::kPayloadBytes}) {
    if (SameRefusal(decode_error, error)) return error;
  }
  PHUB_CHECK(false, "no protocol error for {}", wire::ToString(decode_error));
  return ProtocolError::kNone;
}

Expected Parse(std::span<const std::byte> stream, std::span<const LandingSlot> landing) {
  Expected expected;
  while (!stream.empty()) {
    MessageHeader header;
    const wire::DecodeError decode_error = wire::DecodeHeader(stream, header);
    if (decode_error == wire::DecodeError::kTruncated) {
      expected.protocol_error = ProtocolError::kTruncated;
      return expected;
    }
    expected.protocol_error = decode_error == wire::DecodeError::kNone
                                  ? CheckSlot(header, landing)
                                  : ToProtocolError(decode_error);
    if (expected.protocol_error != ProtocolError::kNone) {
      expected.error = TransportError::kProtocol;
      return expected;
    }
    stream = stream.subspan(wire::kHeaderBytes);
    if (stream.size() < header.payload_bytes) {
      expected.protocol_error = ProtocolError::kTruncated;
      return expected;
    }
    expected.messages.push_back({header, stream.first(header.payload_bytes)});
    stream = stream.subspan(header.payload_bytes);
  }
  return expected;
}

// Returns the bytes in pieces of random length.
class SplitStream final : public transport::ByteStream {
 public:
  SplitStream(std::span<const std::byte> bytes, std::uint64_t seed) : rest_(bytes), random_(seed) {}

  IoResult Readv(std::span<const iovec> parts) override {
    if (random_.Chance(1, 8)) return {0, IoStatus::kDrained};
    if (rest_.empty()) return {0, IoStatus::kClosed};
    constexpr std::uint64_t kLongest[] = {1, 7, 64, 200, 5000};
    std::size_t piece = 1 + random_.Below(kLongest[random_.Below(std::size(kLongest))]);
    piece = std::min(piece, rest_.size());
    IoResult result{0, random_.Chance(1, 4) ? IoStatus::kDrained : IoStatus::kMore};
    for (const iovec& part : parts) {
      const std::size_t count = std::min(piece - result.bytes, part.iov_len);
      std::copy_n(rest_.begin(), count, static_cast<std::byte*>(part.iov_base));
      rest_ = rest_.subspan(count);
      result.bytes += count;
    }
    return result;
  }
  IoResult Writev(std::span<const iovec> /*parts*/) override { return {0, IoStatus::kReset}; }
  void Shutdown() override {}

 private:
  std::span<const std::byte> rest_;
  SeededRandom random_;
};

class Check {
 public:
  Check(std::uint8_t options, std::uint8_t seed, std::span<const std::byte> bytes)
      : message_count_((options & 3u) + 1),
        hold_((options & 4u) != 0),
        expected_(Parse(bytes, slots_.table())),
        stream_(bytes, seed),
        receiver_(message_count_) {}

  void Run() {
    bool readable = true;
    std::size_t budget_bytes = 300;
    for (;;) {
      const auto result = receiver_.Receive(stream_, slots_.table(), readable, budget_bytes);
      switch (result.outcome) {
        case StreamReceiver::Outcome::kMessage: Take(result.message); break;
        case StreamReceiver::Outcome::kBlocked:
          PHUB_CHECK(!readable);
          readable = true;
          break;
        case StreamReceiver::Outcome::kStarved:
          PHUB_CHECK(held_.size() == message_count_, "held={}", held_.size());
          ReleaseOldest();
          break;
        case StreamReceiver::Outcome::kYield:
          PHUB_CHECK(budget_bytes == 0);
          budget_bytes = 300;
          break;
        case StreamReceiver::Outcome::kEnded: End(result); return;
      }
    }
  }

 private:
  struct Held {
    const ReceivedMessage* message;
    std::size_t index;  // index into expected_.messages
  };

  void Take(const ReceivedMessage* message) {
    PHUB_CHECK(taken_ < expected_.messages.size(), "more messages than the stream holds");
    const Expected::Message& expected = expected_.messages[taken_];
    if (LandsInSlot(expected.header)) {
      const LandingSlot& slot = slots_.table()[expected.header.slot.value];
      PHUB_CHECK(std::equal(expected.payload.begin(), expected.payload.end(), slot.data));
    }
    held_.push_back({message, taken_});
    ++taken_;
    CheckHeld(held_.back());
    if (!hold_) ReleaseOldest();
  }

  // Lent memory does not change until it is released.
  void CheckHeld(const Held& held) const {
    const Expected::Message& expected = expected_.messages[held.index];
    PHUB_CHECK(held.message->header == expected.header, "message={}", held.index);
    if (LandsInSlot(expected.header)) return;
    PHUB_CHECK(std::equal(expected.payload.begin(), expected.payload.end(),
                          held.message->inline_payload.begin()),
               "message={}", held.index);
  }

  void ReleaseOldest() {
    CheckHeld(held_.front());
    receiver_.Release(held_.front().message);
    receiver_.Release(held_.front().message);  // a second release has no effect
    held_.pop_front();
  }

  void End(const StreamReceiver::Result& result) {
    PHUB_CHECK(taken_ == expected_.messages.size(), "taken={} expected={}", taken_,
               expected_.messages.size());
    PHUB_CHECK(result.error == expected_.error && result.protocol_error == expected_.protocol_error,
               "error={} protocol_error={} expected={}", transport::ToString(result.error),
               transport::ToString(result.protocol_error),
               transport::ToString(expected_.protocol_error));
    for (const Held& held : held_) CheckHeld(held);
  }

  const std::uint32_t message_count_;
  const bool hold_;
  Slots slots_;
  const Expected expected_;
  SplitStream stream_;
  StreamReceiver receiver_;
  std::deque<Held> held_;
  std::size_t taken_ = 0;
};

}  // namespace
}  // namespace phub::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  phub::fuzz::Check(data[0], data[1], phub::fuzz::Bytes(data + 2, size - 2)).Run();
  return 0;
}
