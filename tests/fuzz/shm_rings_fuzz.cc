// A daemon's end of a lane in shared memory, with a worker that the fuzzer controls. For all
// contents of the rings and their indices, which may change at any time:
// - nothing is read or written outside of the lane's memory, the worker's region and the landing
//   slots;
// - delivered messages are well formed and point to valid memory;
// - the owner's other memory does not change.
//
// Input: commands of one byte and their operands, little-endian. Operands cut at the end are zeros.
//   0 put: a message's header of 64 bytes, place u8, region u8, offset u32 -> the next record
//   1 bytes: count u16 -> announces that many more bytes of the arena
//   2 indices: which u8, value u64, added to what this side wrote or read
//   3 poll: the daemon's turn     4 post: the daemon sends count u8 gradients of size u16
//   5 scribble: where u16, value u64 into the lane's memory    6 release: everything lent
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "common/transport/shm/ring_receiver.h"
#include "common/transport/shm/ring_sender.h"
#include "tests/fuzz/fuzz.h"

namespace phub::fuzz {
namespace {

using namespace phub::transport;
using Memory = std::shared_ptr<const SharedMemory>;

constexpr std::uint32_t kRecords = 4;
constexpr std::uint32_t kArenaBytes = 4096;
constexpr std::uint32_t kSlots = 3;
constexpr std::uint32_t kSlotBytes = 512;
constexpr std::uint32_t kLongBytes = 20000;  // longer than both arenas
constexpr std::size_t kRegionBytes = 4096;
constexpr std::byte kGuard{0xA5};

class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  template <typename T>
  T Take() {
    T value{};
    const std::size_t count = std::min(sizeof value, rest_.size());
    std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }

 private:
  std::span<const std::byte> rest_;
};

Memory MakeRegion(SharedMemory::Others others) {
  auto made = SharedMemory::Create("fuzz", kRegionBytes, others);
  PHUB_CHECK(made.ok());
  return std::make_shared<const SharedMemory>(*std::move(made));
}

// Created once, since a memfd for each input would take most of the time.
struct Regions {
  Regions() {
    table.Add(worker, /*writable_by_peer=*/true);
    table.Add(parameters, /*writable_by_peer=*/false);
  }
  Memory worker = MakeRegion(SharedMemory::Others::kWrite);
  Memory parameters = MakeRegion(SharedMemory::Others::kRead);
  SharedRegions table;
};

// Ends where an inaccessible page begins. One for the whole run.
std::byte* MemoryBeforeAGuard(std::size_t bytes) {
  constexpr std::size_t kPages = 16 * 4096;
  static std::byte* const pages = static_cast<std::byte*>(
      mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  static const int guarded = mprotect(pages + kPages - 4096, 4096, PROT_NONE);
  PHUB_CHECK(guarded == 0 && bytes % kIndexAlignment == 0 && bytes < kPages - 4096);
  return pages + kPages - 4096 - bytes;
}

class Lane {
 public:
  Lane()
      : bytes_(LaneMemoryBytes(kRecords, kArenaBytes)),
        memory_(MemoryBeforeAGuard(bytes_)),
        staging_(kSlots * kSlotBytes, kGuard) {
    std::memset(memory_, 0, bytes_);
    // The first slot is in the staging area, the second elsewhere, the third is closed.
    landing_ = {LandingSlot{staging_.data(), kSlotBytes},
                LandingSlot{elsewhere_.data(), kLongBytes}, LandingSlot{}};
    in_ = RingAt(memory_, 0, kRecords, kArenaBytes);
    out_ = RingAt(memory_, 1, kRecords, kArenaBytes);
    const SharedSlots slots{staging_.data(), kSlots, kSlotBytes};
    receiver_ = std::make_unique<RingReceiver>(in_, slots, &regions().table, 2);
    sender_ = std::make_unique<RingSender>(out_, 4);
  }

  void Run(Input input) {
    while (!input.empty() && !ended_) {
      switch (input.Take<std::uint8_t>() % 7) {
        case 0: Put(input); break;
        case 1: Announce({0, input.Take<std::uint16_t>()}); break;
        case 2: Jump(input); break;
        case 3: Poll(); break;
        case 4: Post(input); break;
        case 5: Scribble(input); break;
        default: ReleaseAll(); break;
      }
    }
    Poll();
    PHUB_CHECK(std::all_of(elsewhere_.begin() + kLongBytes, elsewhere_.end(),
                           [](std::byte each) { return each == kGuard; }));
  }

 private:
  static Regions& regions() {
    static Regions made;
    return made;
  }

  void Put(Input& input) {
    RingRecord& record = in_.record(written_.records);
    record.header = input.Take<std::array<std::byte, wire::kHeaderBytes>>();
    record.place = input.Take<std::uint8_t>();
    const auto region = input.Take<std::uint8_t>();
    record.address = (std::uint64_t{region} << 48) + input.Take<std::uint32_t>();
    Announce({1, 0});
  }
  void Announce(RingPosition more) {
    written_.records += more.records;
    written_.bytes += more.bytes;
    StoreShared(in_.indices->written.records, written_.records, std::memory_order_seq_cst);
    StoreShared(in_.indices->written.bytes, written_.bytes, std::memory_order_seq_cst);
  }
  void Jump(Input& input) {
    const auto which = input.Take<std::uint8_t>();
    std::uint64_t* const indices[] = {&in_.indices->written.records, &in_.indices->written.bytes,
                                      &out_.indices->read.records, &out_.indices->read.bytes};
    std::uint64_t& index = *indices[which % 4];
    StoreShared(index, index + input.Take<std::uint64_t>(), std::memory_order_seq_cst);
  }
  void Scribble(Input& input) {
    const std::size_t at = input.Take<std::uint16_t>() % (bytes_ / 8) * 8;
    const auto value = input.Take<std::uint64_t>();
    std::memcpy(memory_ + at, &value, sizeof value);
  }
  void Post(Input& input) {
    const std::size_t count = input.Take<std::uint8_t>() % 5;
    const std::size_t bytes = input.Take<std::uint16_t>() % payload_.size();
    for (std::size_t i = 0; i < count && !sender_->full(); ++i) {
      const bool small = bytes <= wire::kInlineBytesMax;
      sender_->Push(header_, {small ? PayloadPlace::kRecord : PayloadPlace::kArena, {}},
                    std::span(payload_).first(bytes), i, true);
    }
  }
  void Poll() {
    if (ended_) return;
    std::size_t budget_bytes = 30000;
    std::uint64_t cookie = 0;
    if (!sender_->Flush(budget_bytes)) return End();
    while (sender_->NextSent(cookie)) PHUB_CHECK(cookie < 5);
    [[maybe_unused]] const RingSender::Bell more = sender_->TakePeerSleeps(false);
    for (int i = 0; i < 10; ++i) {
      const RingReceiver::Result result = receiver_->Receive(landing_, budget_bytes);
      if (result.outcome == RingReceiver::Outcome::kBroken) {
        PHUB_CHECK(result.error != ProtocolError::kNone);
        return End();
      }
      if (result.outcome != RingReceiver::Outcome::kMessage) break;
      PHUB_CHECK(lent_.size() < 2);
      lent_.push_back(result.message);
      CheckMessage(*result.message);
    }
    receiver_->Publish();
    [[maybe_unused]] const bool room = receiver_->TakePeerSleeps();
  }
  void End() {
    ended_ = true;
    sender_->DropUnsent();
    PHUB_CHECK(!sender_->has_unsent());
  }
  void CheckMessage(const ReceivedMessage& message) {
    const std::uint32_t bytes = message.header.payload_bytes;
    PHUB_CHECK((bytes == 0) == (message.payload == nullptr), "bytes={}", bytes);
    if (bytes == 0) return;
    const auto inside = [&](const std::byte* data, std::size_t size) {
      return message.payload >= data && message.payload < data + size &&
             bytes <= size - static_cast<std::size_t>(message.payload - data);
    };
    const Memory& worker = regions().worker;
    PHUB_CHECK(inside(staging_.data(), kSlotBytes) || inside(elsewhere_.data(), kLongBytes) ||
               inside(message.inline_payload.data(), wire::kInlineBytesMax) ||
               inside(worker->data(), worker->bytes()));
    // Reads it once, as a kernel would. Sanitizers detect a read past the end.
    unsigned sum = 0;
    for (std::uint32_t i = 0; i < bytes; ++i) sum += std::to_integer<unsigned>(message.payload[i]);
    PHUB_CHECK(sum <= 255u * bytes);
  }
  void ReleaseAll() {
    for (const ReceivedMessage* message : lent_) {
      receiver_->Release(message);
      receiver_->Release(message);  // a second release has no effect
    }
    lent_.clear();
  }

  const std::size_t bytes_;
  std::byte* const memory_;
  std::vector<std::byte> staging_;
  std::vector<std::byte> elsewhere_ = std::vector<std::byte>(kLongBytes + 100, kGuard);
  std::vector<std::byte> payload_ = std::vector<std::byte>(6000);
  std::array<std::byte, wire::kHeaderBytes> header_{};
  std::array<LandingSlot, kSlots> landing_;
  Ring in_;
  Ring out_;
  std::unique_ptr<RingReceiver> receiver_;
  std::unique_ptr<RingSender> sender_;
  RingPosition written_{};
  std::vector<const ReceivedMessage*> lent_;
  bool ended_ = false;
};

}  // namespace
}  // namespace phub::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  phub::fuzz::Lane().Run(phub::fuzz::Input(phub::fuzz::Bytes(data, size)));
  return 0;
}
