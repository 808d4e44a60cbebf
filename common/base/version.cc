#include "common/base/version.h"

namespace phub {

const char* Version() { return PHUB_VERSION; }
const char* Commit() { return PHUB_COMMIT; }

}  // namespace phub
