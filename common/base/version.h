// Which phub this is. Constants of the build.
#pragma once

namespace phub {

const char* Version();  // "0.1.0"
const char* Commit();   // of the tree it was built from, "-dirty" if it had changes; or "unknown"

}  // namespace phub
