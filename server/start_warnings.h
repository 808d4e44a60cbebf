// Warnings about a configuration that works, but probably not as meant. One thread.
#pragma once

#include "server/config/settings.h"

namespace phub::server {

// The private key of the authority lies next to the daemon's certificates.
void WarnOfAuthorityKey(const Settings& given);

}  // namespace phub::server
