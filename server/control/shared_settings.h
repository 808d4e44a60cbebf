// The settings that must be equal on several daemons: as a hash, which daemons compare, and as
// values, which errors show. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "common/base/named_values.h"
#include "phub/v1/session.pb.h"
#include "server/control/control_options.h"

namespace phub::server {

// A hash (64 hexadecimal digits) of the settings that all daemons of a rack must share:
// - the list of daemons, or the number of the cluster's view;
// - the protocol versions;
// - the defaults for jobs, because all daemons must split keys into the same chunks;
// - with several racks: the rack's position in `racks`, and the topology.
std::string HashOfConfiguration(const ControlOptions& options);
// The same for the daemons of all racks.
std::string HashOfRacks(const ControlOptions& options, std::size_t core_count);

// The values that the hashes cover. The size of a list is limited: the last links of a very large
// topology are left out.
NamedValues SettingsOfRack(const ControlOptions& options);
NamedValues SettingsOfRacks(const ControlOptions& options, std::size_t core_count);

using SharedSettingList = google::protobuf::RepeatedPtrField<v1::SharedSetting>;
void Write(const NamedValues& values, SharedSettingList& list);
NamedValues ReadSettings(const SharedSettingList& list);

// The configuration of one daemon.
struct Configuration {
  std::string whose;  // "rack 1"
  std::string hash;
  NamedValues values;  // empty: an older daemon, or a peer that has not sent them yet
};
// "chunk_bytes is 4096 at rack 0 and 131072 at rack 1". If the values do not show a difference, the
// hashes: "rack 0 has configuration ..., rack 1 has ...".
std::string DescribeDifference(const Configuration& one, const Configuration& other);

// SHA-256 as 64 hexadecimal digits.
std::string Sha256Hex(std::string_view text);

}  // namespace phub::server
