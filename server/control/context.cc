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
      log(clock, counters) {
  drain.timeout = options.drain_timeout;
}

absl::Status Context::Refuse(ControlCounter counter, absl::Status status) {
  counters.Add(counter);
  log.Refusal(counter, {status.message().data(), status.message().size()});
  return status;
}

void Context::RunLong(std::size_t units, const std::string& tenant, std::function<void()> work,
                      std::function<void()> then) {
  if (background != nullptr && turn.units() + units > options.turn.at_once) {
    return background->Run(tenant, std::move(work), std::move(then));
  }
  turn.Add(units);
  work();
  then();
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
