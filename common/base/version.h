// Version and commit of this build. (phub::Version() is libphub's public function.)
#pragma once

namespace phub {

const char* BuildVersion();  // "0.1.0"
// The commit of the source tree, with "-dirty" if the tree had local changes; or "unknown".
const char* BuildCommit();

}  // namespace phub
