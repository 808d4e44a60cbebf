#include "server/core/ingest/records.h"

#include <algorithm>
#include <cstring>

namespace phub::server::ingest {
namespace {

RecordVersion Newest(const KeyState& key) {
  RecordVersion newest{};
  for (const KeyState::Record& record : key.records) newest = std::max(newest, record.version);
  return newest;
}

// Bits, not values: -0 and 0 differ in what they do to a sum.
bool SameBits(const wire::HyperParameters& a, const wire::HyperParameters& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

RecordVerdict AcceptRecord(KeyState& key, RecordVersion version, Rank rank,
                           const wire::HyperParameters& values) {
  const RecordVersion newest = Newest(key);
  if (version.value == 0 || version.value > newest.value + 1 ||
      version.value + kRecordsPerKey <= newest.value) {
    return {FaultCode::kRecordRange, rank};
  }
  KeyState::Record& record = key.records[version.value % kRecordsPerKey];
  if (record.version == version) {
    if (SameBits(record.values, values)) return {};
    return {FaultCode::kRecordMismatch, record.announced_by};
  }
  record = {version, rank, values};
  return {};
}

const KeyState::Record* FindRecord(const KeyState& key, RecordVersion version) {
  const KeyState::Record& record = key.records[version.value % kRecordsPerKey];
  return version.value != 0 && record.version == version ? &record : nullptr;
}

}  // namespace phub::server::ingest
