// What this daemon knows of its counterparts in the other racks, independent of jobs: when each was
// last heard, which process it is, which envelope is next, and the known problems with it. Owned by
// Control; under control's lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "server/control/control_options.h"

namespace phub::server {

class KnownRacks {
 public:
  // Knows no racks if none are configured.
  KnownRacks(const ControlOptions& options, std::size_t core_count, Random& random);

  bool empty() const { return racks_.empty(); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(racks_.size()); }
  // Of this daemon: HashOfRacks, and the number that identifies this process.
  const std::string& configuration() const { return configuration_; }
  std::uint64_t instance() const { return instance_; }

  TimeNs LastHeard(RackIndex rack) const { return at(rack).last_heard; }        // 0: never
  std::uint64_t InstanceOf(RackIndex rack) const { return at(rack).instance; }  // 0: unknown
  // It has accepted the last envelope. If not, envelopes have the values of the settings, so that
  // its refusal can show them.
  bool Agrees(RackIndex rack) const { return at(rack).agrees; }
  // A known problem between the two daemons, to append to an error: " (...)", or nothing.
  std::string DescribeTrouble(RackIndex rack) const;

  // An envelope or a receipt arrived. True if the daemon's instance has changed, so that it may be
  // a new process.
  [[nodiscard]] bool NoteEnvelope(RackIndex from, std::uint64_t instance, TimeNs now);
  [[nodiscard]] bool NoteReceipt(RackIndex from, std::uint64_t instance, TimeNs now);
  // The sequence number of an envelope's first message. True if messages before it were lost.
  [[nodiscard]] bool BeginSequence(RackIndex from, std::uint64_t first);
  // False if the message is a repetition: its receipt was lost.
  [[nodiscard]] bool TakeSequence(RackIndex from, std::uint64_t sequence);

  // This daemon refuses its envelopes. `rack` is not validated. True if the last refusal, of any
  // rack, had another reason; repetitions need not be logged.
  bool NoteRefused(std::uint32_t rack, const std::string& why);
  // It refuses this daemon's messages; `why` is its reason.
  void NoteRefusal(RackIndex rack, std::string_view why);

  // Messages to this rack were dropped, and the jobs that sent them are not known.
  void NoteMissedMessages(RackIndex rack) { at(rack).missed_messages = true; }
  [[nodiscard]] bool TakeMissedMessages(RackIndex rack);

  // A lane over the transport was lost, so another transport is used until then.
  void Avoid(RackIndex rack, const std::string& transport, TimeNs until);
  bool IsAvoided(RackIndex rack, const std::string& transport, TimeNs now) const;

  void ForgiveSilence(DurationNs duration, TimeNs now);

 private:
  struct KnownRack {
    TimeNs last_heard = 0;
    std::uint64_t instance = 0;
    std::optional<std::uint64_t> next_sequence;  // none: no envelope has arrived yet
    bool missed_messages = false;
    bool agrees = false;
    std::string refuses;     // why it refuses this daemon's messages, in its own words
    std::string is_refused;  // why this daemon refuses its messages
    std::map<std::string, TimeNs> avoided_until;  // by transport
  };

  KnownRack& at(RackIndex rack) { return racks_[rack.value]; }
  const KnownRack& at(RackIndex rack) const { return racks_[rack.value]; }
  bool NoteInstance(KnownRack& rack, std::uint64_t instance);

  std::vector<KnownRack> racks_;  // [rack]
  std::string configuration_;
  std::uint64_t instance_ = 0;
  std::string last_refusal_;
};

}  // namespace phub::server
