#include "server/control/admin/stats_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "server/control/admin/list_pages.h"
#include "server/control/counters.h"
#include "server/metrics/counters.h"

namespace phub::server {
namespace {

// The limits of a page. Every page needs a sample of its own, so it is larger than those of other
// lists.
constexpr std::size_t kStatsEntriesMax = 1024;  // jobs and tenants
constexpr std::size_t kStatsPageBytes = 1 << 20;

void AddCounter(v1::GetStatsResponse& response, const std::string& name, std::uint64_t value,
                std::int32_t core = -1) {
  v1::Counter& counter = *response.add_counters();
  counter.set_name(name);
  counter.set_core(core);
  counter.set_value(value);
}

// Counters of the whole daemon.
void WriteDaemonStats(const MetricsSample& sample, v1::GetStatsResponse& response) {
  for (std::size_t core = 0; core < sample.cores.size(); ++core) {
    const auto index = static_cast<std::int32_t>(core);
    for (std::size_t i = 0; i < kCoreCounterCount; ++i) {
      AddCounter(response, fmt::format("phub_{}_total", kCoreCounterNames[i]),
                 sample.cores[core].counters[i], index);
    }
    AddCounter(response, "phub_commands_waiting", sample.cores[core].commands_waiting, index);
    for (const TransportCount& count : sample.cores[core].transport_counts)
      AddCounter(response, fmt::format("phub_{}_total", count.name), count.value, index);
  }
  for (std::size_t i = 0; i < kControlCounterCount; ++i) {
    AddCounter(response, fmt::format("phub_{}_total", kControlCounterNames[i]),
               sample.control_counters[i]);
  }
  AddCounter(response, "phub_memory_bytes", sample.memory_bytes);
  AddCounter(response, "phub_memory_bytes_max", sample.memory_limit_bytes);
  AddCounter(response, "phub_jobs", sample.jobs_running + sample.jobs_ending);
}

// Writes jobs and tenants until the page is full.
class StatsWriter {
 public:
  StatsWriter(const StatsPage& page, v1::GetStatsResponse& response)
      : page_(page), response_(response) {}

  void Write(const JobSample& job) {
    Begin(job.tenant, job.job);
    Add("phub_job_memory_bytes", job.memory_bytes);
    Add("phub_job_gradients_total", job.totals.gradients);
    Add("phub_job_gradient_bytes_total", job.totals.gradient_bytes);
    Add("phub_job_reply_bytes_total", job.totals.reply_bytes);
    Add("phub_job_rounds_total", job.totals.rounds());
    Add("phub_job_nonfinite_sums_total", job.totals.nonfinite_sums);
    Add("phub_job_nonfinite_gradients_total", job.totals.nonfinite_gradients);
    Add("phub_job_round_duration_ns_total", job.totals.round_duration_ns);
    Add("phub_job_straggler_wait_ns_total", job.totals.straggler_wait_ns);
    Add("phub_job_slots", job.slots);
    Add("phub_job_slots_used", job.slots_used);
  }
  void Write(const TenantSample& tenant) {
    Begin(tenant.tenant, "");
    Add("phub_tenant_jobs", tenant.jobs);
    Add("phub_tenant_live_workers", tenant.live_workers);
    Add("phub_tenant_memory_bytes", tenant.memory_bytes);
    Add("phub_tenant_memory_quota_bytes", tenant.memory_quota_bytes);
    Add("phub_tenant_left_memory_bytes", tenant.left_memory_bytes);
    Add("phub_tenant_gradient_bytes_total", tenant.totals.gradient_bytes);
    Add("phub_tenant_reply_bytes_total", tenant.totals.reply_bytes);
    Add("phub_tenant_rounds_total", tenant.totals.rounds());
  }
  bool full() const {
    return page_.entries_max != 0 && (entries_ >= page_.entries_max || bytes_ >= kStatsPageBytes);
  }
  absl::Status status() const { return CheckWholeList(bytes_, "counters"); }

 private:
  void Begin(const std::string& tenant, const std::string& job) {
    ++entries_;
    tenant_ = tenant;
    job_ = job;
  }
  void Add(const char* name, std::uint64_t value) {
    AddCounter(response_, name, value);
    v1::Counter& counter = *response_.mutable_counters()->rbegin();
    counter.set_tenant(tenant_);
    counter.set_job(job_);
    bytes_ += counter.ByteSizeLong();
  }

  const StatsPage& page_;
  v1::GetStatsResponse& response_;
  std::string tenant_, job_;
  std::size_t entries_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace

// "j17": after the job with this number. "tacme": after tenant acme; "t": from the first tenant.
absl::StatusOr<StatsPage> ParseStatsPage(const v1::GetStatsRequest& request) {
  StatsPage page;
  page.entries_max = std::min<std::size_t>(request.page_size(), kStatsEntriesMax);
  const std::string_view token = request.page_token();
  page.first = token.empty();
  if (token.empty()) return page;
  if (token.front() == 't') {
    page.after_tenant = std::string(token.substr(1));
    return page;
  }
  const char* const end = token.data() + token.size();
  const auto parsed = std::from_chars(token.data() + 1, end, page.after_job);
  if (token.front() != 'j' || parsed.ec != std::errc() || parsed.ptr != end)
    return absl::InvalidArgumentError("the page token is not from this daemon");
  return page;
}

absl::Status WriteStats(const MetricsSample& sample, const std::string& only_tenant,
                        const StatsPage& page, v1::GetStatsResponse& response) {
  if (page.first && only_tenant.empty()) WriteDaemonStats(sample, response);
  const auto is_wanted = [&](const std::string& tenant) {
    return only_tenant.empty() || tenant == only_tenant;
  };
  StatsWriter writer(page, response);
  std::uint64_t last_job = page.after_job;
  for (const JobSample& job : sample.jobs) {
    if (page.after_tenant || job.number <= page.after_job || !is_wanted(job.tenant)) continue;
    if (writer.full()) {
      response.set_next_page_token(fmt::format("j{}", last_job));
      return absl::OkStatus();
    }
    writer.Write(job);
    last_job = job.number;
  }
  std::string last_tenant = page.after_tenant.value_or("");
  for (const TenantSample& tenant : sample.tenants) {
    if (tenant.tenant <= last_tenant || !is_wanted(tenant.tenant)) continue;
    if (writer.full()) {
      response.set_next_page_token("t" + last_tenant);
      return absl::OkStatus();
    }
    writer.Write(tenant);
    last_tenant = tenant.tenant;
  }
  return writer.status();
}

}  // namespace phub::server
