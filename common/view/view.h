// The declared membership of a cluster: its racks in order, how many daemons each has, its
// aggregators, and how they are connected. Operators change it as a whole, and each change has the
// next number. Pure; any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace phub::view {

inline constexpr std::size_t kGroupsMax = 64;  // racks and aggregators together
inline constexpr std::size_t kDaemonsMax = 64;
inline constexpr std::size_t kNameBytesMax = 63;
inline constexpr std::size_t kTopologyBytesMax = 256 << 10;
inline constexpr std::string_view kMeasured = "probe";  // View::topology: daemons measure it

struct Rack {
  std::string name;
  std::uint32_t daemons = 0;
  friend bool operator==(const Rack&, const Rack&) = default;
};

struct View {
  std::int64_t number = 0;  // 0: no view has been declared
  std::vector<Rack> racks = {};
  // Each has as many daemons as a rack: daemon d of an aggregator serves daemon d of the racks.
  std::vector<std::string> aggregators = {};
  // The text of a topology (TOML or JSON), or kMeasured; empty: one switch connects the racks.
  std::string topology = {};

  std::uint32_t DaemonsOf(std::size_t group) const {
    return racks[group < racks.size() ? group : 0].daemons;
  }
  // Of racks, followed by the aggregators.
  std::size_t group_count() const { return racks.size() + aggregators.size(); }
  const std::string& NameOf(std::size_t group) const {
    return group < racks.size() ? racks[group].name : aggregators[group - racks.size()];
  }
  friend bool operator==(const View&, const View&) = default;
};

// The position of one daemon: a rack or an aggregator, and the daemon's number in it, from 0.
struct Place {
  std::string group;
  std::uint32_t number = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

// INVALID_ARGUMENT: the view is not complete, or too large. The message begins with the field, such
// as "rack[1].daemons is 0". Does not check the number.
absl::Status CheckView(const View& view);

// "north/0". INVALID_ARGUMENT: the message continues "place = ...".
absl::StatusOr<Place> ParsePlace(std::string_view text);
std::string ToString(const Place& place);
// All places, in the order of the view.
std::vector<Place> PlacesOf(const View& view);
// The index of the place's rack or aggregator (View::NameOf). NOT_FOUND names the place and the
// view's number.
absl::StatusOr<std::size_t> FindGroup(const View& view, const Place& place);

// "view 3: 2 racks, 4 daemons, 1 aggregator"
std::string Describe(const View& view);
// SHA-256 in hexadecimal digits of everything but the number.
std::string DigestOf(const View& view);

}  // namespace phub::view
