#include "common/base/refusal_log.h"

#include <utility>

namespace phub {
namespace {

constexpr DurationNs kRefusalLogInterval = 10 * kSecond;
// If more peers were refused lately, they share one place, so that changing addresses does not
// bring more lines.
constexpr std::size_t kRefusedPeersMax = 256;
constexpr const char* kOtherPeers = "";

}  // namespace

std::optional<std::uint64_t> RefusalLog::Take(const std::string& peer, TimeNs now) {
  const std::lock_guard lock(mutex_);
  if (peers_.size() >= kRefusedPeersMax && !peers_.contains(peer)) Shrink(now);
  const bool crowded = peers_.size() >= kRefusedPeersMax && !peers_.contains(peer);
  const auto [place, is_new] = peers_.try_emplace(crowded ? kOtherPeers : peer);
  Peer& known = place->second;
  if (!is_new && now - known.logged_at < kRefusalLogInterval) {
    ++known.left_out;
    return std::nullopt;
  }
  known.logged_at = now;
  return std::exchange(known.left_out, 0);
}

void RefusalLog::Shrink(TimeNs now) {
  std::erase_if(peers_, [now](const auto& each) {
    return now - each.second.logged_at >= kRefusalLogInterval;
  });
}

}  // namespace phub
