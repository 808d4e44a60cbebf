#include "server/control/context.h"

#include <string>
#include <utility>

namespace phub::server {
namespace {

// Shorter pauses do no harm, as a client sends four heartbeats per liveness timeout.
constexpr int kForgivenFraction = 8;

}  // namespace

Context::Context(const Clock& clock_given, Random& random_given, std::vector<CoreHandle> handles,
                 ControlOptions options_given)
    : clock(clock_given),
      random(random_given),
      options(std::move(options_given)),
      started_at(clock_given.Now()),
      cores(std::move(handles)),
      endpoints(cores.size(), {options.lane_host, options.lane_port}),
      ledger(options.memory_bytes_max),
      log(clock, counters),
      turns(options.turn) {
  drain.timeout = options.drain_timeout;
}

absl::Status Context::Refuse(ControlCounter counter, absl::Status status) {
  counters.Add(counter);
  log.Refusal(counter, turns.peer(), {status.message().data(), status.message().size()});
  return status;
}

void Context::Cover(const std::string& tenant, const Usage& more, Grants::Then then) {
  CoverUntil(clock.Now() + kGrantPatience, tenant, more, std::move(then));
}

void Context::CoverUntil(TimeNs deadline, const std::string& tenant, const Usage& more,
                         Grants::Then then) {
  if (grants == nullptr || ledger.GrantCovers(tenant, more) || clock.Now() >= deadline)
    return then(absl::OkStatus());
  grants->Ask(tenant, more,
              [this, deadline, tenant, more, then = std::move(then)](const absl::Status& status) {
                if (!status.ok()) return then(status);
                CoverUntil(deadline, tenant, more, then);
              });
}

SilenceGuard::SilenceGuard(const Context& context)
    : context_(context), begun_at_(context.clock.Now()) {}

SilenceGuard::~SilenceGuard() {
  const DurationNs taken = context_.clock.Now() - begun_at_;
  if (taken > context_.options.liveness_timeout / kForgivenFraction) {
    context_.forgive_silence(taken);
  }
}

}  // namespace phub::server
