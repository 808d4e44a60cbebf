#include "server/control/racks/peer_queue.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace phub::server {
namespace {

constexpr std::size_t kEnvelopeBytes = 1 << 20;  // beyond this no further message is added
constexpr std::size_t kEnvelopeMessagesMax = 64;
// When the queue is full, the largest run loses its messages if it has more than 1/16 of the queue.
constexpr std::size_t kShares = 16;

}  // namespace

std::vector<SharedPeerMessage> PeerQueue::NextMessages() {
  std::size_t bytes = 0;
  std::vector<SharedPeerMessage> next;
  for (const Waiting& waiting : messages_) {
    bytes += waiting.message.bytes;
    if (next.size() == kEnvelopeMessagesMax || (!next.empty() && bytes > kEnvelopeBytes)) break;
    next.push_back(waiting.message);
  }
  said_ = std::max(said_, next.size());
  return next;
}

std::size_t PeerQueue::Fill(v1::PeerEnvelope& envelope) {
  envelope.set_first_sequence(first_sequence_);
  const std::vector<SharedPeerMessage> next = NextMessages();
  for (const SharedPeerMessage& each : next) *envelope.add_messages() = *each.message;
  return next.size();
}

void PeerQueue::Take(std::uint64_t sequence) {
  while (!messages_.empty() && first_sequence_ < sequence) {
    bytes_ -= messages_.front().message.bytes;
    messages_.pop_front();
    ++first_sequence_;
    if (said_ > 0) --said_;
  }
}

template <typename Is>
std::size_t PeerQueue::Drop(const Is& is) {
  const auto drops = [&](const Waiting& waiting) {
    if (!is(waiting)) return false;
    bytes_ -= waiting.message.bytes;
    return true;
  };
  const auto unsaid = messages_.begin() + static_cast<std::ptrdiff_t>(said_);
  const auto kept = std::remove_if(unsaid, messages_.end(), drops);
  const auto count = static_cast<std::size_t>(messages_.end() - kept);
  messages_.erase(kept, messages_.end());
  return count;
}

DroppedMessages PeerQueue::DropAll() {
  const DroppedMessages dropped{.senders = {}, .count = messages_.size(), .all = true};
  first_sequence_ += messages_.size();
  messages_.clear();
  bytes_ = said_ = 0;
  return dropped;
}

std::optional<PeerSender> PeerQueue::Largest() const {
  const bool by_count = messages_.size() > limits_.messages;
  std::map<PeerSender, std::size_t> runs;
  std::map<std::string_view, std::size_t> tenants;
  for (std::size_t i = said_; i < messages_.size(); ++i) {
    const Waiting& waiting = messages_[i];
    if (waiting.message.message->has_failed()) continue;
    const std::size_t weight = by_count ? 1 : waiting.message.bytes;
    runs[waiting.sender] += weight;
    tenants[waiting.sender.tenant] += weight;
  }
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  auto largest = std::max_element(runs.begin(), runs.end(), less);
  if (largest == runs.end()) return std::nullopt;
  if (largest->second <= (by_count ? limits_.messages : limits_.bytes) / kShares) {
    const auto tenant = std::max_element(tenants.begin(), tenants.end(), less);
    largest = std::max_element(runs.begin(), runs.end(), [&](const auto& a, const auto& b) {
      return std::pair(a.first.tenant == tenant->first, a.second) <
             std::pair(b.first.tenant == tenant->first, b.second);
    });
  }
  return largest->first;
}

DroppedMessages PeerQueue::Push(const PeerSender& sender, SharedPeerMessage message) {
  if (message.message->has_failed()) {
    bool untold = false;
    Drop([&](const Waiting& waiting) {
      const bool is = waiting.sender.incarnation == sender.incarnation;
      untold |= is && waiting.message.message->has_open();
      return is;
    });
    if (untold) return {};
  }
  DroppedMessages dropped;
  bytes_ += message.bytes;
  messages_.push_back({sender, std::move(message)});
  while (IsFull()) {
    const std::optional<PeerSender> largest = Largest();
    if (!largest) return DropAll();
    const std::size_t count = Drop([&](const Waiting& waiting) {
      return waiting.sender == *largest && !waiting.message.message->has_failed();
    });
    dropped.senders.push_back({*largest, count});
    dropped.count += count;
  }
  return dropped;
}

}  // namespace phub::server
