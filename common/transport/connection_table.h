// The connections that a transport serves, and the ring of those that are ready. The size is fixed
// at construction; nothing allocates after that. One thread.
//
// Entries have generations, so the id of a closed connection names nothing. The ring holds each
// ready entry at most once. Entries that are in it when a Poll begins get one turn; entries that
// become ready during the Poll wait for the next.
//
// A closed entry is "forgotten" after its kClosed completion, and is freed by FreeForgotten, which
// the next Poll calls. Until then, messages that came before kClosed in the same Poll may still
// name the connection's shared memory. The Connection may already be destroyed, so only lookups of
// shared memory may use a forgotten entry.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/check.h"
#include "common/transport/transport.h"

namespace phub::transport {

inline constexpr std::uint32_t kConnectionsMaxDefault = 4096;

// The state of a connection that every transport keeps; each derives its own class.
template <typename ConnectionType>
struct ConnectionEntry {
  ConnectionType* connection = nullptr;  // null: the entry is free
  std::span<const LandingSlot> landing;
  std::uint32_t generation = 1;
  std::uint32_t served_index = 0;  // position in ConnectionTable::served_
  bool in_ready = false;
  bool forgotten = false;                         // kClosed was polled; freed by the next Poll
  bool held = false;                              // see Transport::Hold
  bool starved = false;                           // every message is lent: cannot receive
  TransportError ending = TransportError::kNone;  // if set, only kSent and kClosed will follow
  ProtocolError protocol_error = ProtocolError::kNone;

  bool ends() const { return ending != TransportError::kNone; }
};

// Packs an id into the 64 bits that epoll stores with a watched descriptor.
constexpr std::uint64_t PackId(ConnectionId id) {
  return (static_cast<std::uint64_t>(id.generation) << 32) | id.index;
}
constexpr ConnectionId UnpackId(std::uint64_t packed) {
  return {static_cast<std::uint32_t>(packed), static_cast<std::uint32_t>(packed >> 32)};
}

template <typename Entry>
class ConnectionTable {
 public:
  explicit ConnectionTable(std::uint32_t connections_max)
      : connections_max_(connections_max),
        entries_(std::make_unique<Entry[]>(connections_max)),
        free_(std::make_unique<std::uint32_t[]>(connections_max)),
        free_count_(connections_max),
        ready_(std::make_unique<std::uint32_t[]>(connections_max)),
        served_(std::make_unique<std::uint32_t[]>(connections_max)),
        forgotten_(std::make_unique<std::uint32_t[]>(connections_max)) {
    PHUB_CHECK(connections_max > 0);
    for (std::uint32_t i = 0; i < connections_max; ++i) free_[i] = connections_max - 1 - i;
  }

  // Null for stale ids. Use a forgotten entry only to look up its shared memory.
  Entry* Live(ConnectionId id) const {
    if (id.index >= connections_max_) return nullptr;
    Entry& entry = entries_[id.index];
    if (entry.connection == nullptr || entry.generation != id.generation) return nullptr;
    return &entry;
  }
  // The entry of that index, if it has a connection; ignores the generation.
  Entry* At(std::uint32_t index) const {
    if (index >= connections_max_ || entries_[index].connection == nullptr) return nullptr;
    return &entries_[index];
  }
  ConnectionId IdOf(const Entry& entry) const { return {IndexOf(entry), entry.generation}; }

  // The entry that the next Occupy will use, with its id; null if the table is full.
  Entry* Vacant() {
    if (free_count_ == 0) FreeForgotten();
    return free_count_ == 0 ? nullptr : &entries_[free_[free_count_ - 1]];
  }
  template <typename ConnectionType>
  Entry& Occupy(ConnectionType& connection, std::span<const LandingSlot> landing) {
    Entry* vacant = Vacant();
    PHUB_CHECK(vacant != nullptr);
    --free_count_;
    const std::uint32_t generation = vacant->generation;
    const bool in_ready = vacant->in_ready;
    *vacant = Entry{};
    vacant->generation = generation;
    vacant->in_ready = in_ready;
    vacant->connection = &connection;
    vacant->landing = landing;
    vacant->served_index = served_count_;
    served_[served_count_++] = IndexOf(*vacant);
    return *vacant;
  }

  // Checks C1 of docs/internals/invariants.md: each entry is free, served or forgotten, and a
  // served entry's served_index is right. `entry`: the one that a turn has changed.
  void CheckInvariants(const Entry& entry) const {
    PHUB_CHECK(free_count_ + served_count_ + forgotten_count_ <= connections_max_,
               "C1 free={} served={} forgotten={}", free_count_, served_count_, forgotten_count_);
    PHUB_CHECK(ready_count() <= connections_max_, "C2 ready={}", ready_count());
    if (entry.connection == nullptr || entry.forgotten) return;
    PHUB_CHECK(entry.served_index < served_count_ && served_[entry.served_index] == IndexOf(entry),
               "C1 index={} served_index={}", IndexOf(entry), entry.served_index);
  }

  // Returns the entry's last completion.
  Completion Forget(Entry& entry) {
    PHUB_CHECK(entry.ends() && !entry.forgotten && served_count_ > 0, "index={}", IndexOf(entry));
    Completion completion;
    completion.kind = CompletionKind::kClosed;
    completion.error = entry.ending;
    completion.protocol_error = entry.protocol_error;
    completion.connection = IdOf(entry);
    entry.landing = {};
    const std::uint32_t last = served_[--served_count_];
    served_[entry.served_index] = last;
    entries_[last].served_index = entry.served_index;
    entry.forgotten = true;
    forgotten_[forgotten_count_++] = IndexOf(entry);
    return completion;
  }
  void FreeForgotten() {
    for (; forgotten_count_ > 0; --forgotten_count_) {
      const std::uint32_t index = forgotten_[forgotten_count_ - 1];
      Entry& entry = entries_[index];
      entry.connection = nullptr;
      entry.forgotten = false;
      // An index without unused generations is never used again.
      if (++entry.generation != UINT32_MAX) free_[free_count_++] = index;
    }
  }

  // The entries with a connection that is not forgotten, unordered.
  std::uint32_t served_count() const { return served_count_; }
  Entry& served(std::uint32_t i) const { return entries_[served_[i]]; }

  void MakeReady(Entry& entry) {
    if (entry.in_ready) return;
    entry.in_ready = true;
    ready_[ready_tail_++ % connections_max_] = IndexOf(entry);
  }
  std::uint64_t ready_count() const { return ready_tail_ - ready_head_; }
  // Requires ready_count() > 0. The entry may have ended, or may have been freed, since it became
  // ready.
  Entry& TakeReady() {
    PHUB_DCHECK(ready_count() > 0);
    Entry& entry = entries_[ready_[ready_head_++ % connections_max_]];
    entry.in_ready = false;
    return entry;
  }

 private:
  std::uint32_t IndexOf(const Entry& entry) const {
    return static_cast<std::uint32_t>(&entry - entries_.get());
  }

  const std::uint32_t connections_max_;
  const std::unique_ptr<Entry[]> entries_;
  const std::unique_ptr<std::uint32_t[]> free_;  // a stack of entry indices
  std::uint32_t free_count_;
  const std::unique_ptr<std::uint32_t[]> ready_;  // a ring of entry indices
  std::uint64_t ready_head_ = 0;
  std::uint64_t ready_tail_ = 0;
  const std::unique_ptr<std::uint32_t[]> served_;
  std::uint32_t served_count_ = 0;
  const std::unique_ptr<std::uint32_t[]> forgotten_;  // entries that FreeForgotten frees
  std::uint32_t forgotten_count_ = 0;
};

}  // namespace phub::transport
