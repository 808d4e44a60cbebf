// Which connections keep their place when too many want one. A connection is
//
//   silent    accepted, and its first message is incomplete. It costs a descriptor.
//   stranger  it has TLS and HTTP/2 state, but no call of an identified caller has come over it.
//   known     phubd has let a call of it pass. phubd counts these (server/control/rpc/
//             tenant_places.h) and names the tenant that gives up a place when all are taken.
//
// Connections are counted by address block: an IPv4 address, or the /64 of an IPv6 address. When
// all places of the first two states are taken, a newcomer displaces the oldest connection of the
// block that has the most. Attackers therefore displace each other, and a client from another
// block gets in at once. Known connections leave a quarter of all places to the other states.
//
// Pure logic, without sockets. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/net/address.h"

namespace phub::server {

struct CrowdLimits {
  std::uint32_t silent_max = 2048;
  std::uint32_t silent_per_block_max = 512;
  std::uint32_t strangers_max = 256;
  std::uint32_t connections_max = 8192;  // in any state
  std::uint32_t known_max = 6144;
  std::uint32_t known_per_block_max = 2048;
  // A stranger keeps its place for this long, unless its block has `lead` more than the newcomer's.
  DurationNs displaced_after = 250 * kMillisecond;
  std::uint32_t lead = 32;
};
// Lowers the limits to fit the process's limit of descriptors. A known connection has two.
CrowdLimits ScaledTo(CrowdLimits limits, std::uint64_t descriptors);

// Those of this process. The front reads them before seccomp forbids it.
CrowdLimits CrowdLimitsOfProcess();

// What the limits count as one address. phubd makes the same text of the peer.
std::string BlockOf(const net::SocketAddress& address);

class Crowd {
 public:
  using Id = std::uint64_t;  // grows with each connection
  explicit Crowd(const CrowdLimits& limits) : limits_(limits) {}

  struct Place {
    bool granted = false;
    std::optional<Id> displaced;  // to be closed; the crowd has already forgotten it
  };
  // A new connection, which becomes silent. Not granted: to be closed.
  Place Add(Id id, const std::string& block, TimeNs now);
  // The first message of a silent connection is complete. Not granted: ask again later.
  Place MakeStranger(Id id, TimeNs now);
  void MakeKnown(Id id, const std::string& tenant);
  // What a known connection is used for now. The order in which connections are displaced.
  enum class Use { kNothing, kEvents, kCalls };
  // Chooses one of the tenant's known connections at this block: one without calls if possible,
  // otherwise one with nothing but a stream of events, otherwise any, the oldest first. The
  // crowd forgets it. A connection with calls is not safe, since a tenant can make calls that take
  // for ever on all its connections; libphub attaches and calls again.
  std::optional<Id> DisplaceKnown(const std::string& tenant, const std::string& block,
                                  const std::function<Use(Id)>& use_of);
  void Remove(Id id);  // no effect for an id that the crowd has forgotten

  const std::string& block(Id id) const { return members_.at(id).block; }
  std::size_t known() const { return known_; }
  std::size_t strangers() const { return strangers_.count; }
  std::size_t silent() const { return silent_.count; }

 private:
  struct Group {
    std::map<std::string, std::map<Id, TimeNs>> blocks;  // ids in the order of their age
    std::size_t count = 0;
    std::size_t CountOf(const std::string& block) const;
    void Add(Id id, const std::string& block, TimeNs now);
    void Remove(Id id, const std::string& block);
    // The block with the most connections; if several have as many, the one with the oldest.
    const std::string* Largest() const;
  };
  enum class State { kSilent, kStranger, kKnown };
  struct Member {
    std::string block;
    State state = State::kSilent;
    std::string tenant = {};  // if it is known
  };
  Id DisplaceOldest(Group& group, const std::string& block);

  const CrowdLimits limits_;
  std::map<Id, Member> members_;
  Group silent_;
  Group strangers_;
  std::map<std::pair<std::string, std::string>, std::set<Id>> known_of_;  // by tenant and block
  std::size_t known_ = 0;
};

}  // namespace phub::server
