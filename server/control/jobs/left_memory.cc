#include "server/control/jobs/left_memory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "common/base/last_use.h"
#include "server/control/jobs/job.h"

namespace phub::server {
namespace {

constexpr DurationNs kCheckInterval = 100 * kMillisecond;
// Processes that exit right after their job are not worth a line in the log.
constexpr DurationNs kLogAfter = 10 * kSecond;
// How many descriptors that the kernel would not watch are tried again in one check.
constexpr std::size_t kRetriesMax = 16;

using Owner = std::pair<std::string, std::string>;  // tenant, job

}  // namespace

struct LeftMemory::Remains {
  struct Memory {
    Owner owner;
    std::uint64_t bytes = 0;
    bool charged = false;
  };
  struct Unwatched {
    Descriptor memfd;
    Memory memory;
  };
  struct Charge {
    std::uint64_t bytes = 0;
    TimeNs since = 0;
    bool logged = false;
  };
  explicit Remains(LastUse kernel) : last_use(std::move(kernel)) {}

  void Add(Descriptor memfd, const Owner& owner, std::size_t bytes);
  void WatchAgain();
  void TakeUnused();
  void Forget(int number);

  std::mutex mutex;  // protects everything here
  LastUse last_use;
  std::map<int, Memory> watched;
  std::vector<int> fresh;            // watched, but not charged yet
  std::vector<Unwatched> unwatched;  // kept open, so never unused, until the kernel watches them
  std::map<Owner, Charge> charges;
  std::set<Owner> changed;  // charges that the ledger does not have yet
};

void LeftMemory::Remains::Add(Descriptor memfd, const Owner& owner, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const absl::StatusOr<int> number = last_use.Watch(memfd);
  if (number.ok()) {
    watched[*number] = {.owner = owner, .bytes = bytes};
    fresh.push_back(*number);
    return;
  }
  charges[owner].bytes += bytes;
  changed.insert(owner);
  unwatched.push_back({std::move(memfd), {.owner = owner, .bytes = bytes, .charged = true}});
}

void LeftMemory::Remains::WatchAgain() {
  for (std::size_t i = 0; i < kRetriesMax && !unwatched.empty(); ++i) {
    const absl::StatusOr<int> number = last_use.Watch(unwatched.back().memfd);
    if (!number.ok()) return;
    watched[*number] = std::move(unwatched.back().memory);
    unwatched.pop_back();
  }
}

void LeftMemory::Remains::Forget(int number) {
  const auto found = watched.find(number);
  if (found == watched.end()) return;
  const Memory& memory = found->second;
  if (memory.charged) {
    charges[memory.owner].bytes -= memory.bytes;
    changed.insert(memory.owner);
  }
  watched.erase(found);
}

void LeftMemory::Remains::TakeUnused() {
  std::vector<int> unused;
  const bool complete = last_use.Take(unused);
  for (const int number : unused) Forget(number);
  if (complete) return;
  const std::set<int> left = last_use.Watched();
  std::vector<int> missing;
  for (const auto& [number, memory] : watched) {
    if (!left.contains(number)) missing.push_back(number);
  }
  for (const int number : missing) Forget(number);
}

LeftMemory::LeftMemory(Context& context) : context_(context) {}
LeftMemory::~LeftMemory() = default;

absl::Status LeftMemory::Start() {
  absl::StatusOr<LastUse> kernel = LastUse::Create();
  if (!kernel.ok()) return kernel.status();
  remains_ = std::make_shared<Remains>(*std::move(kernel));
  return absl::OkStatus();
}

SharedMemory::ReleaseHook LeftMemory::HookOf(const Account& account) const {
  if (remains_ == nullptr) return {};
  return [remains = remains_, owner = Owner{account.tenant, account.job}](
             Descriptor memfd, std::size_t bytes) { remains->Add(std::move(memfd), owner, bytes); };
}

void LeftMemory::Check() {
  if (remains_ == nullptr) return;
  const TimeNs now = context_.clock.Now();
  checked_at_ = now;
  const std::lock_guard lock(remains_->mutex);
  if (remains_->watched.empty() && remains_->unwatched.empty() && remains_->changed.empty()) return;
  remains_->WatchAgain();
  remains_->TakeUnused();
  for (const int number : std::exchange(remains_->fresh, {})) {
    const auto found = remains_->watched.find(number);
    if (found == remains_->watched.end()) continue;
    found->second.charged = true;
    remains_->charges[found->second.owner].bytes += found->second.bytes;
    remains_->changed.insert(found->second.owner);
  }
  for (const Owner& owner : std::exchange(remains_->changed, {})) {
    Remains::Charge& charge = remains_->charges[owner];
    context_.ledger.SetLeft(owner.first, owner.second, charge.bytes);
    if (charge.since == 0) charge.since = now;
    if (charge.bytes > 0) continue;
    if (charge.logged) {
      context_.log.Info("event=memory_unmapped tenant={} job=\"{}\"", owner.first, owner.second);
    }
    remains_->charges.erase(owner);
  }
  for (auto& [owner, charge] : remains_->charges) {
    if (charge.logged || now - charge.since < kLogAfter) continue;
    charge.logged = true;
    context_.log.Warning(
        "event=memory_still_mapped tenant={} job=\"{}\" memory_bytes={} since_s={}", owner.first,
        owner.second, charge.bytes, (now - charge.since) / kSecond);
  }
}

TimeNs LeftMemory::NextCheck() const {
  if (remains_ == nullptr) return kNever;
  const std::lock_guard lock(remains_->mutex);
  const bool idle =
      remains_->watched.empty() && remains_->unwatched.empty() && remains_->changed.empty();
  return idle ? kNever : checked_at_ + kCheckInterval;
}

}  // namespace phub::server
