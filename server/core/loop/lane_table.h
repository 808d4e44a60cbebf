// Maps a connection to its lane: one table of fixed size for each transport of a core loop. Core
// loop's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "common/transport/transport.h"
#include "server/core/job_shard.h"
#include "server/core/lane_owner.h"

namespace phub::server {

class LaneTable {
 public:
  struct Place {
    JobShard* shard = nullptr;
    LaneOwner owner;
    transport::Connection* connection = nullptr;
    bool current = false;  // false: the rank has a newer lane, and this one only closes
  };

  explicit LaneTable(std::size_t connections_max = kConnectionsMax) : rows_(connections_max) {}

  // Null if the id does not (or no longer) belong to a lane.
  const Place* Find(transport::ConnectionId id) const {
    if (id.index >= rows_.size()) return nullptr;
    const Row& row = rows_[id.index];
    return row.place.shard != nullptr && row.generation == id.generation ? &row.place : nullptr;
  }
  void Insert(transport::ConnectionId id, const Place& place) {
    PHUB_CHECK(id.index < rows_.size(), "connection={}", id.index);
    PHUB_CHECK(rows_[id.index].place.shard == nullptr, "connection={}", id.index);
    PHUB_CHECK(place.shard != nullptr && place.owner != LaneOwner(), "connection={}", id.index);
    rows_[id.index] = {id.generation, place};
    ++used_;
  }
  void Erase(transport::ConnectionId id) {
    PHUB_CHECK(Find(id) != nullptr, "connection={}", id.index);
    rows_[id.index].place = {};
    --used_;
  }
  // The rank has a new lane; this one stays in the table only until it has closed.
  void Replace(transport::ConnectionId id) {
    PHUB_CHECK(Find(id) != nullptr, "connection={}", id.index);
    rows_[id.index].place.current = false;
  }

  std::size_t used() const { return used_; }  // rows that belong to a lane

  static constexpr std::size_t kConnectionsMax = 16384;  // lanes of one core loop and transport

 private:
  struct Row {
    std::uint32_t generation = 0;
    Place place;
  };
  std::vector<Row> rows_;
  std::size_t used_ = 0;
};

}  // namespace phub::server
