#include "server/front/front.h"

#include <fmt/format.h>
#include <malloc.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "server/front/confinement.h"
#include "server/front/crowd.h"
#include "server/front/front_loop.h"
#include "server/front/packet.h"

namespace phub::server {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitUsage = 2;
constexpr int kMappedBytes = 64 << 10;
constexpr int kTrimBytes = 1 << 20;

bool IsSocket(int descriptor) {
  struct stat facts {};
  return fstat(descriptor, &facts) == 0 && S_ISSOCK(facts.st_mode);
}

}  // namespace

int RunFront() {
  if (!IsSocket(kFrontPair) || !IsSocket(kFrontListening)) {
    fmt::print(stderr, "phubd: only phubd itself uses {}\n", kFrontArgument);
    return kExitUsage;
  }
  // Ctrl-C and systemd signal all processes of phubd. The front serves until phubd has drained.
  for (const int each : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) signal(each, SIG_IGN);
  int listening = 0;
  while (listening < static_cast<int>(kFrontListeningMax) &&
         IsSocket(kFrontListening + listening)) {
    ++listening;
  }
  // Buffers that an attack needed go back to the system after it.
  mallopt(M_MMAP_THRESHOLD, kMappedBytes);
  mallopt(M_TRIM_THRESHOLD, kTrimBytes);
  OPENSSL_init_ssl(OPENSSL_INIT_LOAD_SSL_STRINGS | OPENSSL_INIT_LOAD_CRYPTO_STRINGS, nullptr);
  const CrowdLimits limits = CrowdLimitsOfProcess();
  const bool confined = Confine(kFrontListening + listening);
  FrontLoop(Descriptor(kFrontPair), kFrontListening, listening, limits).Run(confined);
  return kExitOk;
}

}  // namespace phub::server
