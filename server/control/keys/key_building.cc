// How a batch of keys is built: planned, admitted, allocated, entered.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/jobs/grant_needs.h"
#include "server/control/keys/key_specs.h"
#include "server/control/keys/keys.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

// Keys and their chunks are placed, laid out and allocated one by one. Counts chunks as if all
// elements had the largest type; the counts of elements are not checked yet.
std::size_t UnitsOf(const KeySpecs& keys, std::uint32_t chunk_bytes) {
  constexpr std::uint64_t kChunksPerUnit = 8;
  constexpr std::uint64_t kKeyUnitsMax = std::uint64_t{1} << 32;
  const std::uint64_t elements_per_unit = kChunksPerUnit * chunk_bytes / kElementBytesMax;
  std::uint64_t units = 0;
  for (const v1::KeySpec& key : keys)
    units += 1 + std::min(kKeyUnitsMax, key.element_count() / elements_per_unit);
  return units;
}

absl::Status Over(const Job& job) {
  return absl::AbortedError(job.fault.message().empty()
                                ? fmt::format("job {} has ended", job.name())
                                : job.fault.message());
}

}  // namespace

// Builds the next batch of a job in steps: without the lock, except for its admission and its entry
// into the job. One batch at a time; other calls that need it wait in job.key_waiters. The job's
// record stays until the build is over, even if the job ends.
void Keys::StartBuild(Job& job, const std::shared_ptr<KeyBuild>& build, const Done& done) {
  PHUB_CHECK(job.key_build == nullptr, "job={}", job.name());
  job.key_build = build;
  const std::size_t units = UnitsOf(*build->given, build->chunk_bytes);
  context_.turns.RunLong(
      units, job.account.tenant,
      [build] {
        PlanKeys(*build);
        build->given.reset();
      },
      [this, &job, units, build, done] {
        if (!build->status.ok() || !job.running())
          return GoOnBuilding(job, build, units, done, build->status);
        const bool counts = build->only_here || ChargesOf(context_.options, job.settings).keys;
        const Usage more = {.memory_bytes = build->bytes,
                            .keys = counts ? build->placement.size() : 0};
        context_.Cover(job.account.tenant, more,
                       [this, &job, units, build, done](const absl::Status& covered) {
                         if (!covered.ok()) build->refusal = ControlCounter::keys_refused_quota;
                         GoOnBuilding(job, build, units, done, OfJob(job.name(), covered));
                       });
      });
}

// The batch is planned, and this daemon's grant of the tenant's quotas covers it, or not.
void Keys::GoOnBuilding(Job& job, const std::shared_ptr<KeyBuild>& build, std::size_t units,
                        const Done& done, absl::Status status) {
  if (!job.running()) return FinishBuild(job, done, Over(job));
  if (status.ok()) status = Admit(job, *build);
  if (!status.ok()) return FinishBuild(job, done, context_.Refuse(build->refusal, status));
  context_.turns.RunLong(
      units, job.account.tenant, [build] { BuildKeys(*build); },
      [this, &job, build, done] {
        if (!job.running()) {  // the job's account is closed as a whole
          job.unwanted.push_back(build);
          return FinishBuild(job, done, Over(job));
        }
        absl::Status entered = Enter(job, *build);
        if (!entered.ok() && job.running()) entered = context_.Refuse(build->refusal, entered);
        FinishBuild(job, done, entered);
      });
}

void Keys::FinishBuild(Job& job, const Done& done, const absl::Status& status) {
  const std::shared_ptr<KeyBuild> build = std::move(job.key_build);
  job.key_build = nullptr;
  const std::vector<std::function<void()>> waiters = std::exchange(job.key_waiters, {});
  if (status.ok() && build->for_racks) peer_racks_.TellOfKeys(job, *build->for_racks);
  done(status);
  for (const std::function<void()>& waiter : waiters) waiter();
}

}  // namespace phub::server
