// Which phub this is. Constants of the build. (phub::Version() is libphub's own.)
#pragma once

namespace phub {

const char* BuildVersion();  // "0.1.0"
// Of the tree it was built from, with "-dirty" if it had changes; or "unknown".
const char* BuildCommit();

}  // namespace phub
