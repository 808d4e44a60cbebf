// The work of a snapshot on all of its keys and chunks. Any thread that has the contents for
// itself; without control's lock if there are many keys.
#pragma once

#include <memory>
#include <vector>

#include "server/control/checkpoint/checkpoints.h"

namespace phub::server {

using VersionReports = std::vector<std::unique_ptr<VersionReport>>;  // [core]

void MapContents(SnapshotContents& contents);
void DescribeBegun(SnapshotContents& contents, const VersionReports& reports);
// All keys in one message, for clients that do not read them in parts.
void DescribeKeys(SnapshotContents& contents);
void DescribeCopied(SnapshotContents& contents,
                    const std::vector<std::shared_ptr<CheckpointImage>>& images);

}  // namespace phub::server
