// What libphub logs: warnings and errors on standard error, unless the environment variable
// PHUB_LOG_LEVEL or the program itself says otherwise (phub_set_log_level in phub.h). Any thread.
#pragma once

#include "common/base/log.h"

namespace phub::client {

// Sets the level from PHUB_LOG_LEVEL. Does nothing after the first call or after ChooseLogLevel().
void ReadLogLevel();
void ChooseLogLevel(LogLevel level);

}  // namespace phub::client
