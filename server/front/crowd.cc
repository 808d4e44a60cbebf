#include "server/front/crowd.h"

#include <sys/resource.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/net/host_port.h"
#include "server/front/accepted_socket.h"

namespace phub::server {

CrowdLimits ScaledTo(CrowdLimits limits, std::uint64_t descriptors) {
  const auto bound = [](std::uint32_t& limit, std::uint64_t most) {
    limit = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(limit, std::max<std::uint64_t>(most, 1)));
  };
  bound(limits.connections_max, descriptors / 2);
  bound(limits.known_max, limits.connections_max - limits.connections_max / 4);
  bound(limits.known_per_block_max, limits.connections_max / 2);
  bound(limits.silent_max, limits.connections_max / 4);
  bound(limits.silent_per_block_max, limits.silent_max / 2);
  bound(limits.strangers_max, limits.connections_max / 8);
  return limits;
}

CrowdLimits CrowdLimitsOfProcess() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? ScaledTo({}, limit.rlim_cur) : CrowdLimits{};
}

std::string BlockOf(const net::SocketAddress& address) {
  return net::AddressBlock(PeerTextOf(address).peer);
}

std::size_t Crowd::Group::CountOf(const std::string& block) const {
  const auto found = blocks.find(block);
  return found == blocks.end() ? 0 : found->second.size();
}

void Crowd::Group::Add(Id id, const std::string& block, TimeNs now) {
  blocks[block].emplace(id, now);
  ++count;
}

void Crowd::Group::Remove(Id id, const std::string& block) {
  const auto found = blocks.find(block);
  PHUB_CHECK(found != blocks.end() && found->second.erase(id) == 1, "id={}", id);
  if (found->second.empty()) blocks.erase(found);
  --count;
}

const std::string* Crowd::Group::Largest() const {
  auto best = blocks.end();
  for (auto it = blocks.begin(); it != blocks.end(); ++it) {
    if (best == blocks.end() || it->second.size() > best->second.size() ||
        (it->second.size() == best->second.size() &&
         it->second.begin()->first < best->second.begin()->first)) {
      best = it;
    }
  }
  return best == blocks.end() ? nullptr : &best->first;
}

Crowd::Id Crowd::DisplaceOldest(Group& group, const std::string& block) {
  const Id id = group.blocks.at(block).begin()->first;
  Remove(id);
  return id;
}

Crowd::Place Crowd::Add(Id id, const std::string& block, TimeNs now) {
  Place place{.granted = true, .displaced = {}};
  if (silent_.CountOf(block) >= limits_.silent_per_block_max) {
    place.displaced = DisplaceOldest(silent_, block);
  } else if (silent_.count >= limits_.silent_max || members_.size() >= limits_.connections_max) {
    const std::string* largest = silent_.Largest();
    if (largest == nullptr) return {};
    place.displaced = DisplaceOldest(silent_, std::string(*largest));
  }
  members_[id] = {block, State::kSilent};
  silent_.Add(id, block, now);
  return place;
}

Crowd::Place Crowd::MakeStranger(Id id, TimeNs now) {
  Member& member = members_.at(id);
  PHUB_CHECK(member.state == State::kSilent, "id={}", id);
  Place place{.granted = true, .displaced = {}};
  if (strangers_.count >= limits_.strangers_max) {
    const std::string* const largest = strangers_.Largest();
    if (largest == nullptr) return {};
    const TimeNs since = strangers_.blocks.at(*largest).begin()->second;
    const bool crowded =
        strangers_.CountOf(*largest) > strangers_.CountOf(member.block) + limits_.lead;
    if (!crowded && now - since < limits_.displaced_after) return {};
    place.displaced = DisplaceOldest(strangers_, std::string(*largest));
  }
  silent_.Remove(id, member.block);
  strangers_.Add(id, member.block, now);
  member.state = State::kStranger;
  return place;
}

void Crowd::MakeKnown(Id id, const std::string& tenant) {
  Member& member = members_.at(id);
  if (member.state != State::kStranger) return;
  strangers_.Remove(id, member.block);
  member.state = State::kKnown;
  member.tenant = tenant;
  known_of_[{tenant, member.block}].insert(id);
  ++known_;
}

std::optional<Crowd::Id> Crowd::DisplaceKnown(const std::string& tenant, const std::string& block,
                                              const std::function<Use(Id)>& use_of) {
  const auto found = known_of_.find({tenant, block});
  if (found == known_of_.end()) return std::nullopt;
  std::optional<std::pair<Use, Id>> best;
  for (const Id id : found->second) {
    const std::pair<Use, Id> each(use_of(id), id);
    if (!best.has_value() || each < *best) best = each;
    if (best->first == Use::kNothing) break;
  }
  Remove(best->second);
  return best->second;
}

void Crowd::Remove(Id id) {
  const auto found = members_.find(id);
  if (found == members_.end()) return;
  const auto& [block, state, tenant] = found->second;
  if (state == State::kSilent) silent_.Remove(id, block);
  if (state == State::kStranger) strangers_.Remove(id, block);
  if (state == State::kKnown) {
    --known_;
    const auto known = known_of_.find({tenant, block});
    known->second.erase(id);
    if (known->second.empty()) known_of_.erase(known);
  }
  members_.erase(found);
}

}  // namespace phub::server
