#include "client/session/delayed_join.h"

#include <algorithm>
#include <string>

#include "common/base/log.h"
#include "common/base/printable.h"

namespace phub::client {
namespace {

constexpr DurationNs kNoticeInterval = 30 * kSecond;
constexpr DurationNs kQuestionTimeout = 2 * kSecond;  // the join's answer waits as long
constexpr std::size_t kReasonBytesMax = 2048;

void SayWhy(const JoinSettings& settings, DaemonLink& link, CallWaiter& waiter, TimeNs since) {
  v1::GetRackRequest request;
  request.set_tenant(settings.tenant);
  request.set_job(settings.options.job);
  const auto rack = waiter.Await<v1::Rack>([&](auto done) {
    link.channel->Call<rpc::GetRack>(request, std::min(kQuestionTimeout, settings.call_timeout),
                                     std::move(done));
  });
  std::string reason = rack.ok() ? Printable(rack->waits_for(), kReasonBytesMax) : "";
  if (reason.empty()) reason = "the daemon has not answered the call yet";
  LogWarning("event=join_delayed job={} rank={} daemon={} waiting_s={:.0f} reason=\"{}\"",
             settings.options.job, settings.options.rank, link.endpoint.ToString(),
             static_cast<double>(SystemClock().Now() - since) / kSecond, reason);
}

}  // namespace

absl::StatusOr<v1::JoinResponse> CallJoin(const JoinSettings& settings, DaemonLink& link,
                                          const v1::JoinRequest& request, CallWaiter& waiter) {
  const TimeNs since = SystemClock().Now();
  return waiter.AwaitWithNotices<v1::JoinResponse>(
      [&](auto done) {
        link.channel->Call<rpc::Join>(request, settings.call_timeout, std::move(done));
      },
      settings.notice_after, kNoticeInterval, [&] { SayWhy(settings, link, waiter, since); });
}

}  // namespace phub::client
