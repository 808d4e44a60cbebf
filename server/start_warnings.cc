#include "server/start_warnings.h"

#include <fmt/format.h>
#include <unistd.h>

#include "common/base/log.h"

namespace phub::server {

// Anyone who takes over this host could issue certificates of any identity.
void WarnOfAuthorityKey(const Settings& given) {
  for (const std::string& path : {given.tls_client_ca, given.tls_certificate}) {
    const std::string key = path.substr(0, path.rfind('/') + 1) + "ca.key";
    if (path.empty() || access(key.c_str(), F_OK) != 0) continue;
    LogWarning(
        "event=authority_key_on_this_host path=\"{}\" reason=\"anyone who has it can impersonate "
        "any identity; keep it on another host\"",
        key);
    return;
  }
}

}  // namespace phub::server
