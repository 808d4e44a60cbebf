// Starts phubd's front (front.h), gives it certificates, answers its questions, and starts it again
// when it dies, hangs or needs too much memory. The listening sockets stay open in phubd, so the
// kernel queues new connections meanwhile. Running jobs are not affected, except that their
// control connections break.
//
// The front is not trusted: a packet that cannot be read ends it.
//
// Threads: one, which calls Host. The owner's thread calls the other functions; SetServing any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/tls/certificate.h"
#include "server/front/front_limits.h"
#include "server/front/packet.h"

namespace phub::server {

// What phubd counts about its front.
struct FrontCounts {
  FrontReport report;
  std::uint64_t restarts = 0;
  std::uint64_t certificates_refused = 0;
  bool any() const { return report.any() || restarts + certificates_refused > 0; }
};

class FrontSupervisor {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    // Judges the first call of a connection from memory. On success the verdict's code is 0 and
    // `upstream` is the front's end of the pair whose other end gRPC has.
    virtual FrontVerdict Judge(const FrontCall& call, Descriptor& upstream) = 0;
    virtual void OnGone(std::uint64_t connection) = 0;
    virtual void OnAllGone() = 0;  // the front has ended
    virtual void OnCounts(const FrontCounts& counts) = 0;
    // No front has served since then; 0: one serves again. False: call again later.
    virtual bool OnOutage(TimeNs since) = 0;
    // Whether control answers. Must not block.
    virtual bool Alive() = 0;
  };
  struct Options {
    std::string program;  // phubd's own executable
    TlsFiles tls = {};    // empty: no TLS; read again every few seconds
    int refresh_seconds = 2;
    DurationNs silence_max = kFrontSilenceMax;  // a front that says nothing for longer is replaced
    // A front with more memory is replaced. Each connection of an identified caller adds to it.
    std::uint64_t bytes_max = kFrontBytesMax;
  };
  // Takes the listening sockets. Returns once the front serves. `host` must outlive it.
  static absl::StatusOr<std::unique_ptr<FrontSupervisor>> Start(std::vector<Descriptor> listening,
                                                                const Options& options, Host& host);
  ~FrontSupervisor();  // Stop()
  FrontSupervisor(const FrontSupervisor&) = delete;
  FrontSupervisor& operator=(const FrontSupervisor&) = delete;

  // Returns once this was sent to the front, or after 200 ms.
  void SetServing(bool serving);
  void Drain();  // accepts no more connections
  void Stop();   // lets the front send what it still has, and ends it; idempotent

 private:
  struct Impl;
  explicit FrontSupervisor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::server
