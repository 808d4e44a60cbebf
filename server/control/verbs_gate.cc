#include "server/control/verbs_gate.h"

#include "common/base/log.h"
#include "common/base/status_text.h"

namespace phub::server {
namespace {

// Replies from memory that is not registered are copied on their way, and counted: no reason to
// end a job.
void Register(transport::VerbsDomain& domain, std::byte* data, std::size_t bytes) {
  const auto index =
      domain.Add(data, bytes, transport::RegisteredMemory::Use::kSend, /*owner=*/nullptr);
  if (index.ok()) return;
  LogWarning("event=parameters_not_registered device={} bytes={} reason=\"{}\"",
             domain.device().name(), bytes, MessageOf(index.status()));
}

}  // namespace

ControlVerbsGate::ControlVerbsGate(ControlThread& thread, std::uint8_t transport_index,
                                   std::vector<std::shared_ptr<transport::VerbsQueue>> queues,
                                   const transport::VerbsLimits& limits)
    : thread_(thread),
      transport_index_(transport_index),
      queues_(std::move(queues)),
      limits_(limits) {}

wire::LaneRefusal ControlVerbsGate::Admit(const wire::LaneHello& hello,
                                          std::string_view peer_address) {
  const wire::LaneRefusal refusal =
      thread_.Run([&](Control& control) { return control.AdmitLane(hello); });
  if (refusal != wire::LaneRefusal::kNone) {
    LogWarning("event=lane_refused transport=verbs reason={} rank={} core={} peer={}",
               wire::ToString(refusal), hello.rank.value, hello.core.value, peer_address);
  }
  return refusal;
}

absl::StatusOr<transport::VerbsLaneParts> ControlVerbsGate::Parts(const wire::LaneHello& hello) {
  using Parts = absl::StatusOr<transport::VerbsLaneParts>;
  return thread_.Run([&](Control& control) -> Parts {
    absl::StatusOr<LaneStaging> staging = control.StagingOf(hello);
    if (!staging.ok()) return staging.status();
    const std::shared_ptr<transport::VerbsQueue>& queue = queues_[hello.core.value];
    auto domain = DomainOf(hello.incarnation, queue->device());
    if (!domain.ok()) return domain.status();
    return transport::VerbsLaneParts{.queue = queue,
                                     .domain = *std::move(domain),
                                     .staging = {.data = staging->data,
                                                 .slot_count = staging->slot_count,
                                                 .slot_bytes = staging->slot_bytes,
                                                 .owner = staging->owner},
                                     .limits = limits_};
  });
}

absl::StatusOr<std::shared_ptr<transport::VerbsDomain>> ControlVerbsGate::DomainOf(
    Incarnation incarnation, const std::shared_ptr<const transport::VerbsDevice>& device) {
  JobMemory& job = jobs_[incarnation];
  std::shared_ptr<transport::VerbsDomain>& known = job.domains[device->name()];
  if (known != nullptr) return known;
  auto made = transport::VerbsDomain::Create(device);
  if (!made.ok()) return made.status();
  known = *std::move(made);
  for (const auto& [data, bytes] : job.parameters) Register(*known, data, bytes);
  return known;
}

void ControlVerbsGate::Attach(const wire::LaneHello& hello,
                              std::unique_ptr<transport::Connection> connection,
                              std::string description) {
  thread_.Run([&](Control& control) {
    control.AttachLane(hello, std::move(connection), transport_index_, "verbs", description);
  });
}

void ControlVerbsGate::OnParameters(Incarnation incarnation, std::byte* data, std::size_t bytes) {
  JobMemory& job = jobs_[incarnation];
  job.parameters.emplace_back(data, bytes);
  for (const auto& [device, domain] : job.domains) {
    if (domain != nullptr) Register(*domain, data, bytes);
  }
}

void ControlVerbsGate::OnReleased(Incarnation incarnation) { jobs_.erase(incarnation); }

}  // namespace phub::server
