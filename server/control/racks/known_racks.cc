#include "server/control/racks/known_racks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "server/control/on_control.h"
#include "server/control/shared_settings.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {
namespace {

constexpr std::size_t kRefusalBytesMax = 1024;  // for the reason that another daemon gives

}  // namespace

KnownRacks::KnownRacks(const ControlOptions& options, std::size_t core_count, Random& random) {
  PHUB_CHECK(options.rack_self < std::max<std::size_t>(1, options.rack_endpoints.size()));
  if (options.racks.empty()) return;
  PHUB_CHECK(options.rack_topology != nullptr && options.rack_index < options.racks.size());
  PHUB_CHECK(options.rack_topology->members().size() == options.racks_with_ranks());
  PHUB_CHECK(options.aggregator_count == 0 ||
             options.aggregator_count == exchange::AggregatorCount(*options.rack_topology));
  PHUB_CHECK(!options.topology_is_measured || options.aggregator_count == 0);
  racks_.resize(options.racks.size());
  configuration_ = HashOfRacks(options, core_count);
  instance_ = random.Next() | 1;  // 0 means unknown
}

std::string KnownRacks::DescribeTrouble(RackIndex rack) const {
  PHUB_ON_CONTROL();
  const KnownRack& known = at(rack);
  if (!known.refuses.empty()) {
    return fmt::format(" (it refuses messages from this daemon: {})", known.refuses);
  }
  if (!known.is_refused.empty()) {
    return fmt::format(" (this daemon refuses its messages: {})", known.is_refused);
  }
  return "";
}

bool KnownRacks::NoteInstance(KnownRack& rack, std::uint64_t instance) {
  if (rack.instance == instance) return false;
  rack.instance = instance;
  rack.next_sequence.reset();
  return true;
}

bool KnownRacks::NoteEnvelope(RackIndex from, std::uint64_t instance, TimeNs now) {
  KnownRack& rack = at(from);
  rack.last_heard = now;
  rack.is_refused.clear();
  return NoteInstance(rack, instance);
}

bool KnownRacks::NoteReceipt(RackIndex from, std::uint64_t instance, TimeNs now) {
  KnownRack& rack = at(from);
  rack.last_heard = now;
  rack.refuses.clear();
  rack.agrees = true;
  return NoteInstance(rack, instance);
}

bool KnownRacks::BeginSequence(RackIndex from, std::uint64_t first) {
  std::optional<std::uint64_t>& next = at(from).next_sequence;
  const bool lost = next && first > *next;
  if (lost || !next) next = first;
  return lost;
}

bool KnownRacks::TakeSequence(RackIndex from, std::uint64_t sequence) {
  std::optional<std::uint64_t>& next = at(from).next_sequence;
  PHUB_CHECK(next.has_value(), "rack={}", from.value);
  if (sequence < *next) return false;
  next = sequence + 1;
  return true;
}

bool KnownRacks::NoteRefused(std::uint32_t rack, const std::string& why) {
  PHUB_ON_CONTROL();
  if (rack < racks_.size()) racks_[rack].is_refused = why;
  return std::exchange(last_refusal_, why) != why;
}

void KnownRacks::NoteRefusal(RackIndex rack, std::string_view why) {
  PHUB_ON_CONTROL();
  at(rack).refuses = Printable(why, kRefusalBytesMax);
  at(rack).agrees = false;
}

bool KnownRacks::TakeMissedMessages(RackIndex rack) {
  return std::exchange(at(rack).missed_messages, false);
}

void KnownRacks::Avoid(RackIndex rack, const std::string& transport, TimeNs until) {
  at(rack).avoided_until[transport] = until;
}

bool KnownRacks::IsAvoided(RackIndex rack, const std::string& transport, TimeNs now) const {
  PHUB_ON_CONTROL();
  const auto until = at(rack).avoided_until.find(transport);
  return until != at(rack).avoided_until.end() && now < until->second;
}

void KnownRacks::ForgiveSilence(DurationNs duration, TimeNs now) {
  PHUB_ON_CONTROL();
  for (KnownRack& rack : racks_) {
    if (rack.last_heard != 0) rack.last_heard = std::min(now, rack.last_heard + duration);
  }
}

}  // namespace phub::server
