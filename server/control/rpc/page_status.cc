#include "server/control/rpc/page_status.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/plan/draw.h"
#include "common/plan/forest_json.h"
#include "phub/v1/tenants.pb.h"
#include "server/control/admin/admin.h"
#include "server/control/admin/tenants.h"
#include "server/control/control.h"
#include "server/control/rpc/tenant_info.h"

namespace phub::server {
namespace {

// While control is busy, viewers wait at most this long.
constexpr std::chrono::seconds kPatience{5};
constexpr ControlThread::Turn kTurn{TurnKind::kMetrics, "page"};
constexpr std::uint32_t kPageSize = 128;

// Control may answer in a later turn, from another thread.
absl::StatusOr<v1::ListJobsResponse> ReadJobPage(ControlThread& control,
                                                 const std::string& page_token) {
  using Page = absl::StatusOr<v1::ListJobsResponse>;
  const auto promise = std::make_shared<std::promise<Page>>();
  std::future<Page> page = promise->get_future();
  v1::ListJobsRequest request;
  request.set_page_size(kPageSize);
  request.set_page_token(page_token);
  control.Run(kTurn, [&](Control& under_lock) {
    under_lock.admin().ListJobs(
        request, [promise](const absl::Status& status, v1::ListJobsResponse response) {
          status.ok() ? promise->set_value(std::move(response)) : promise->set_value(status);
        });
  });
  if (page.wait_for(kPatience) != std::future_status::ready)
    return absl::DeadlineExceededError("control is busy");
  return page.get();
}

absl::StatusOr<v1::ListJobsResponse> ReadJobs(ControlThread& control) {
  v1::ListJobsResponse jobs;
  std::size_t bytes = 0;
  do {
    auto page = ReadJobPage(control, jobs.next_page_token());
    if (!page.ok()) return page.status();
    bytes += page->ByteSizeLong();
    for (v1::JobInfo& job : *page->mutable_jobs()) jobs.add_jobs()->Swap(&job);
    jobs.set_next_page_token(page->next_page_token());
  } while (!jobs.next_page_token().empty() && jobs.jobs_size() < kJobsShownMax &&
           bytes < kJobBytesShownMax);
  return jobs;
}

v1::ListTenantsResponse ReadTenants(ControlThread& control, const Directory& directory) {
  v1::ListTenantsResponse tenants;
  std::string after;
  do {
    after = control.Run(kTurn, [&](Control& under_lock) {
      const std::size_t count = under_lock.tenants().tenants_per_page();
      const std::vector<Tenant> found = directory.TenantsAfter(after, count);
      const PushedBytes pushed = under_lock.tenants().PushedBytes(found);
      under_lock.turns().Add(found.size());
      for (const Tenant& tenant : found)
        *tenants.add_tenants() = DescribeTenant(under_lock, tenant, pushed);
      return found.size() < count ? std::string() : found.back().name;
    });
  } while (!after.empty() && tenants.tenants_size() < kTenantsShownMax);
  tenants.set_next_page_token(after);
  return tenants;
}

absl::StatusOr<std::string> JsonOf(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok())
    return absl::InternalError("some text of the status is not valid UTF-8");
  return json;
}

}  // namespace

absl::StatusOr<std::string> ReadPageStatus(ControlThread& control, const Directory& directory,
                                           std::span<const std::string> racks) {
  const auto server = JsonOf(
      control.Run(kTurn, [](Control& under_lock) { return under_lock.admin().DescribeServer(); }));
  if (!server.ok()) return server.status();
  const auto tenants = JsonOf(ReadTenants(control, directory));
  if (!tenants.ok()) return tenants.status();
  const auto listed = ReadJobs(control);
  if (!listed.ok()) return listed.status();
  const auto jobs = JsonOf(*listed);
  if (!jobs.ok()) return jobs.status();
  return fmt::format("{{\"server\":{},\"racks\":{},\"tenant_list\":{},\"job_list\":{}}}\n", *server,
                     nlohmann::json(std::vector<std::string>(racks.begin(), racks.end())).dump(),
                     *tenants, *jobs);
}

absl::StatusOr<std::string> DrawPlanOf(ControlThread& control, const std::string& tenant,
                                       const std::string& job) {
  const auto plan = control.Run(
      kTurn, [&](Control& under_lock) { return under_lock.admin().PlanOf(tenant, job); });
  if (!plan.ok()) return plan.status();
  const auto forest = plan::ParseForestJson(*plan->topology, plan->text);
  if (!forest.ok()) return forest.status();
  return plan::DrawForest(*plan->topology, *forest, "");
}

}  // namespace phub::server
