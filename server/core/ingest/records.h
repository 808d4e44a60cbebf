// Hyper-parameter records of a key: which versions are known, and whether ranks agree on them.
//
// A record is announced on a lane before the first gradient that names it. A rank starts a key's
// round t+1 only after every chunk of the key has answered t, and that needs every rank's push of
// t; so at most two versions of a key are in use at once, and a ring of kRecordsPerKey is enough.
// Core loop's thread.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::ingest {

struct RecordVerdict {
  FaultCode fault = FaultCode::kNone;
  Rank other{};  // kRecordMismatch: who announced the version first
};

// Takes what `rank` announced. kRecordRange: version 0, or older than the ring still holds, or a
// jump that would drop versions in use. kRecordMismatch: somebody announced other values.
RecordVerdict AcceptRecord(KeyState& key, RecordVersion version, Rank rank,
                           const wire::HyperParameters& values);

// The record of that version, or null if it is not known.
const KeyState::Record* FindRecord(const KeyState& key, RecordVersion version);

}  // namespace phub::server::ingest
