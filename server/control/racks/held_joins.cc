// Ranks that wait until rack 0 has opened their job.
#include <algorithm>
#include <utility>

#include "common/base/printable.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_opening.h"
#include "server/control/racks/topology_survey.h"
#include "server/control/ranks/joins.h"

namespace phub::server {
namespace {

constexpr std::size_t kHeldMax = 4096;
constexpr std::size_t kHeldBytesMax = 256 << 20;  // each has its job's plan

const std::string& TenantOf(const v1::JoinRequest& request) {
  static const std::string fallback = kDefaultTenant;
  return request.tenant().empty() ? fallback : request.tenant();
}

}  // namespace

v1::PeerJob JobOf(const v1::JoinRequest& request, const JobSettings& settings) {
  v1::PeerJob job;
  job.set_tenant(TenantOf(request));
  job.set_job(request.job());
  *job.mutable_options() = request.options();
  for (const std::uint32_t count : settings.daemon_cores) job.add_daemon_cores(count);
  job.mutable_options()->set_chunk_bytes(settings.chunk_bytes);
  job.mutable_options()->set_staging_bytes_per_lane(settings.staging_bytes_per_lane);
  // Which rack's default it is would else depend on who comes first.
  if (settings.on_loss == LossPolicy::kWait) {
    job.mutable_options()->set_wait_timeout_ns(settings.wait_timeout);
  }
  job.set_created_by(request.rank());
  return job;
}

// A rank that asks again has another connection than before, and hears by that one.
absl::Status RackOpening::Hold(HeldJoin held) {
  const auto is_same = [&](const HeldJoin& each) {
    return TenantOf(each.request) == TenantOf(held.request) &&
           each.request.job() == held.request.job() && each.request.rank() == held.request.rank() &&
           each.request.host() == held.request.host() && each.request.pid() == held.request.pid();
  };
  const auto earlier = std::find_if(racks_.held.begin(), racks_.held.end(), is_same);
  if (earlier != racks_.held.end()) {
    const Answer<v1::JoinResponse> answer = std::move(earlier->answer);
    racks_.held.erase(earlier);
    answer(absl::CancelledError("the rank asked again"), {});
  }
  std::size_t bytes = held.request.ByteSizeLong();
  for (const HeldJoin& each : racks_.held) bytes += each.request.ByteSizeLong();
  if (racks_.held.size() >= kHeldMax || bytes > kHeldBytesMax) {
    return context_.Refuse(
        ControlCounter::joins_refused_capacity,
        absl::ResourceExhaustedError(fmt::format(
            "job {} was not opened: {} ranks wait already until {} opens their jobs",
            held.request.job(), racks_.held.size(), context_.options.DescribeRack(RackIndex{0}))));
  }
  racks_.held.push_back(std::move(held));
  return absl::OkStatus();
}

// A rank came, and there is no such job here: of another rack than 0. Or, of rack 0, an older run
// waits here to hear that other racks' ranks have left, or the topology is not measured yet; it is
// asked as any other, and waits, too.
void RackOpening::AskToOpen(const v1::JoinRequest& request, std::string_view peer_address,
                            const JobSettings& settings, Answer<v1::JoinResponse> answer_given) {
  HeldJoin held{
      .request = request,
      .peer_address = std::string(peer_address),
      .answer = std::move(answer_given),
      .deadline = context_.clock.Now() + kHeldTimeouts * context_.options.liveness_timeout,
      .asked_instance = {}};
  held.request.set_tenant(TenantOf(held.request));
  if (survey_.AwaitsSurvey()) {  // nobody waits for what will be refused
    if (absl::Status status = joins_.CheckRoom(held.request); !status.ok()) {
      return held.answer(status, {});
    }
  }
  v1::PeerMessage message;
  *message.mutable_request() = JobOf(held.request, settings);
  const Incarnation incarnation{held.request.incarnation()};
  message.set_incarnation(incarnation.value);
  const v1::PeerJob& job = message.request();
  const Answer<v1::JoinResponse> answer = held.answer;
  if (job.ByteSizeLong() > kPeerMessageBytesMax) {
    return answer(context_.Refuse(
                      ControlCounter::joins_refused_plan,
                      absl::InvalidArgumentError(fmt::format(
                          "job {}: as it is asked for it has {} bytes, and at most {} go to other "
                          "racks",
                          job.job(), job.ByteSizeLong(), kPeerMessageBytesMax))),
                  {});
  }
  if (const absl::Status status = Hold(std::move(held)); !status.ok()) return answer(status, {});
  // One request is enough for all ranks that wait, unless rack 0 has forgotten it.
  const std::uint64_t instance = racks_.known[0].instance;
  const bool asked = std::any_of(racks_.held.begin(), racks_.held.end(), [&](const HeldJoin& each) {
    return TenantOf(each.request) == job.tenant() && each.request.job() == job.job() &&
           each.request.incarnation() == incarnation.value && each.asked_instance == instance;
  });
  if (asked) return;
  racks_.held.back().asked_instance = instance;
  if (context_.options.rack_index == 0) return messages_.Defer(RackIndex{0}, message);
  messages_.SendToRack(RackIndex{0}, incarnation, std::move(message));
}

void RackOpening::RefuseHeld(const v1::PeerRefused& refused, Incarnation incarnation) {
  absl::Status status(static_cast<absl::StatusCode>(refused.code()), refused.message());
  if (status.ok())
    status = absl::InternalError(refused.message());  // no rank may take it for a yes
  for (HeldJoin& held : TakeHeld(refused.tenant(), refused.job(), incarnation)) {
    held.answer(status, {});
  }
}

// It is here now.
void RackOpening::JoinHeld(const v1::PeerJob& job, Incarnation incarnation) {
  for (HeldJoin& held : TakeHeld(job.tenant(), job.job(), incarnation)) {
    joins_.Join(held.request, held.peer_address, std::move(held.answer));
  }
}

std::list<HeldJoin> RackOpening::TakeHeld(const std::string& tenant, const std::string& job,
                                          Incarnation incarnation) {
  // Ranks know the run from the rack's first daemon, but for those that are there.
  const std::uint64_t asked_for = context_.options.is_anchor() ? 0 : incarnation.value;
  std::list<HeldJoin> taken;
  for (auto held = racks_.held.begin(); held != racks_.held.end();) {
    const auto next = std::next(held);
    if (TenantOf(held->request) == tenant && held->request.job() == job &&
        held->request.incarnation() == asked_for) {
      taken.splice(taken.end(), racks_.held, held);
    }
    held = next;
  }
  return taken;
}

TimeNs RackOpening::PatienceOf(const HeldJoin& held) const {
  return held.deadline + (survey_.MayBeMeasuring() ? kSurveyPatience : 0);
}

std::string RackOpening::WhyNotOpened() const {
  const std::string opener = context_.options.DescribeRack(RackIndex{0});
  if (survey_.MayBeMeasuring()) {
    return fmt::format(
        "{} has not opened it, and may still have the topology of the racks "
        "measured; try again",
        opener);
  }
  if (context_.options.rack_index == 0) {
    return fmt::format("an older run of it is not over at {}; try again", opener);
  }
  return fmt::format(
      "{}, which opens jobs that span racks, does not answer; is its phubd running?{}", opener,
      DescribeTrouble(racks_.known[0]));
}

}  // namespace phub::server
