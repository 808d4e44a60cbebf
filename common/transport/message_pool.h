// The received messages that a connection of any transport lends to its owner. Their number is
// fixed, so an owner that keeps them slows the peer down (backpressure). Nothing allocates after
// construction. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

#include "common/base/check.h"
#include "common/transport/transport.h"

namespace phub::transport {

class MessagePool {
 public:
  explicit MessagePool(std::uint32_t count)
      : count_(count),
        storage_(std::make_unique_for_overwrite<std::byte[]>(count * sizeof(ReceivedMessage))),
        messages_(reinterpret_cast<ReceivedMessage*>(storage_.get())),
        free_(std::make_unique<std::uint32_t[]>(count)),
        lent_(std::make_unique<bool[]>(count)),
        free_count_(count) {
    PHUB_CHECK(count > 0);
    // Messages are popped from the back, so message 0 comes first.
    for (std::uint32_t i = 0; i < count; ++i) free_[i] = count - 1 - i;
  }

  bool empty() const { return free_count_ == 0; }
  std::uint32_t lent_count() const { return count_ - free_count_; }
  // The message that Lend will lend, to be filled in. REQUIRES: !empty().
  ReceivedMessage& next() {
    PHUB_DCHECK(!empty());
    const std::uint32_t index = free_[free_count_ - 1];
    // Messages are first needed in order of their index, and are constructed then. Most pools lend
    // few messages at once, so the rest of the storage uses no memory pages.
    if (index == made_) std::construct_at(&messages_[made_++]);
    return messages_[index];
  }
  ReceivedMessage& Lend() {
    ReceivedMessage& message = next();
    lent_[free_[--free_count_]] = true;
    return message;
  }
  // Checks P1 of docs/internals/invariants.md: each message is either free or lent, exactly once.
  void CheckInvariants() const {
    PHUB_CHECK(free_count_ <= count_ && made_ <= count_, "P1 free={} made={}", free_count_, made_);
    std::uint32_t lent = 0;
    for (std::uint32_t i = 0; i < count_; ++i) lent += lent_[i];
    PHUB_CHECK(lent + free_count_ == count_, "P1 lent={} free={}", lent, free_count_);
    for (std::uint32_t i = 0; i < free_count_; ++i) {
      PHUB_CHECK(free_[i] < count_ && !lent_[free_[i]], "P1 message={}", free_[i]);
    }
  }
  // Ends a loan. Ignores messages that this pool has not lent.
  void Release(const ReceivedMessage* message) {
    const std::less<const ReceivedMessage*> before;
    const ReceivedMessage* const first = messages_;
    if (before(message, first) || !before(message, first + count_)) return;
    const auto index = static_cast<std::uint32_t>(message - first);
    if (!lent_[index]) return;
    lent_[index] = false;
    free_[free_count_++] = index;
  }

 private:
  const std::uint32_t count_;
  static_assert(std::is_trivially_destructible_v<ReceivedMessage> &&
                alignof(ReceivedMessage) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  const std::unique_ptr<std::byte[]> storage_;
  ReceivedMessage* const messages_;
  const std::unique_ptr<std::uint32_t[]> free_;  // a stack of indices into messages_
  const std::unique_ptr<bool[]> lent_;
  std::uint32_t free_count_;
  std::uint32_t made_ = 0;  // messages_[0, made_) are constructed; the rest is untouched storage
};

}  // namespace phub::transport
