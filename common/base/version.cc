#include "common/base/version.h"

namespace phub {

const char* BuildVersion() { return PHUB_VERSION; }
const char* BuildCommit() { return PHUB_COMMIT; }

}  // namespace phub
