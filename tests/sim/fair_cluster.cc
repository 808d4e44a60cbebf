#include "tests/sim/fair_cluster.h"

#include <algorithm>

#include "common/base/check.h"
#include "tests/sim/fair_transport.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;
// The invariants of the whole loop are checked once in so many runs: after each run, the checks
// would take most of the test's time.
constexpr std::uint64_t kRunsPerCheck = 64;

}  // namespace

TimeNs WorkClock::Now() const {
  if (counters_ == nullptr) return slept_;
  const auto times = [this](CoreCounter counter, double ns) {
    return ns * static_cast<double>(counters_->Get(counter));
  };
  double work = times(CoreCounter::loop_runs, static_cast<double>(model_.run_ns));
  work +=
      static_cast<double>(model_.message_ns) * static_cast<double>(transport_->messages_taken());
  work += model_.ns_per_payload_byte * static_cast<double>(transport_->bytes_taken());
  work += times(CoreCounter::replies, static_cast<double>(model_.reply_ns));
  work += times(CoreCounter::reply_bytes, model_.ns_per_reply_byte);
  work += times(CoreCounter::lanes_closed, static_cast<double>(model_.lane_closed_ns));
  work += static_cast<double>(model_.command_ns) *
          static_cast<double>(counters_->commands_done.load(std::memory_order_relaxed));
  return slept_ + static_cast<TimeNs>(work);
}

FairJob::FairJob(CoreLoop& loop, FairTransport& transport, const FairJobOptions& options,
                 std::uint64_t incarnation)
    : loop_(loop), transport_(transport), options_(options), workers_(options.ranks) {
  config_.incarnation = Incarnation{incarnation};
  config_.membership_epoch = MembershipEpoch{1};
  config_.world_size = options.ranks;
  config_.chunk_bytes = options.chunk_bytes;
  config_.slots_per_lane = options.slots;
  config_.on_loss = LossPolicy::kWait;
  config_.tenant = options.tenant;
  config_.share = options.share;
  shard_ = MakeJobShard(config_);
  KeyShardSpec key;
  const std::uint32_t elements = options.chunk_bytes / sizeof(float);
  for (std::uint32_t i = 0; i < options.chunks; ++i) {
    key.chunks.push_back({elements, std::uint64_t{i} * elements});
  }
  parameters_.resize(std::size_t{options.chunks} * options.chunk_bytes);
  key.parameters = {parameters_.data(), parameters_.data()};
  batch_ = MakeKeyBatch(config_, {&key, 1});
  Order({.kind = Command::Kind::kAddJob, .shard = shard_.get()});
  Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = batch_.get()});
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    workers_[rank].staging.resize(StagingBytesPerLane(config_));
    AttachLane(rank);
  }
}

FairJob::~FairJob() = default;

void FairJob::AttachLane(std::uint32_t rank) {
  Worker& worker = workers_[rank];
  transport_.SetNextHearer(
      [this, rank](const wire::MessageHeader& header) { OnMessage(rank, header); });
  Order({.kind = Command::Kind::kAttachLane,
         .owner = Rank{rank},
         .shard = shard_.get(),
         .connection = &transport_.endpoint(),
         .staging = worker.staging.data()});
  worker.lane = transport_.last_adopted();
  worker.free_slots.clear();
  for (std::uint32_t slot = 0; slot < options_.slots; ++slot) worker.free_slots.push_back(slot);
  worker.slot_of.assign(options_.chunks, kNone);
  // Chunks without an answer are pushed again.
  if (worker.is_answered.empty()) worker.is_answered.assign(options_.chunks, false);
  worker.next_chunk = 0;
}

void FairJob::Reconnect() {
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    transport_.Break(workers_[rank].lane);
    AttachLane(rank);
  }
}

// A run of the loop executes the command, and is charged for it.
void FairJob::Order(const Command& command) {
  PHUB_CHECK(loop_.queues().commands.TryPush(command));
  loop_.RunOnce();
  loop_.CheckInvariants();
}

void FairJob::OnMessage(std::uint32_t rank, const wire::MessageHeader& header) {
  Worker& worker = workers_[rank];
  const std::uint32_t chunk = header.chunk.value;
  if (options_.repeats) return worker.free_slots.push_back(header.slot.value);
  const std::uint32_t slot = std::exchange(worker.slot_of[chunk], kNone);
  if (slot != kNone) worker.free_slots.push_back(slot);
  if (header.kind != wire::MessageKind::kParameters) return;
  if (worker.is_answered[chunk] || header.iteration.value != iteration_) return;
  worker.is_answered[chunk] = true;
  if (--unanswered_ == 0) whole_ = true;
}

void FairJob::PushOne(std::uint32_t rank) {
  Worker& worker = workers_[rank];
  const std::uint32_t chunk = worker.next_chunk++;
  if (!worker.is_answered[chunk]) Send(rank, chunk);
}

void FairJob::Send(std::uint32_t rank, std::uint32_t chunk) {
  Worker& worker = workers_[rank];
  const std::uint32_t slot = worker.free_slots.back();
  worker.free_slots.pop_back();
  worker.slot_of[chunk] = slot;
  wire::MessageHeader header;
  header.kind = wire::MessageKind::kGradient;
  header.incarnation = config_.incarnation;
  header.membership_epoch = config_.membership_epoch;
  header.chunk = ChunkIndex{chunk};
  header.iteration = Iteration{iteration_};
  header.slot = SlotIndex{slot};
  header.hyper_version = HyperVersion{1};
  header.payload_bytes = options_.chunk_bytes;
  bytes_pushed_ += options_.chunk_bytes;
  transport_.Send(worker.lane, header);
}

void FairJob::Push(TimeNs now) {
  if (over_ || now < next_push_) return;
  if (options_.repeats) {
    for (std::uint32_t rank = 0; rank + 1 < options_.ranks; ++rank) {
      while (!workers_[rank].free_slots.empty()) Send(rank, 0);
    }
    return;
  }
  if (whole_) {  // the whole iteration has been answered by now
    whole_ = false;
    exchange_times_.push_back(now - begun_at_);
    ++iteration_;
    begun_at_ = 0;
    next_push_ = now + options_.think_ns;
    if (options_.think_ns > 0) return;
  }
  if (begun_at_ == 0) {
    begun_at_ = now;
    unanswered_ = options_.chunks * options_.ranks;
    for (Worker& worker : workers_) {
      worker.next_chunk = 0;
      worker.is_answered.assign(options_.chunks, false);
    }
  }
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    Worker& worker = workers_[rank];
    while (worker.next_chunk < options_.chunks && !worker.free_slots.empty()) PushOne(rank);
  }
}

void FairJob::SetShare(const TenantShare& share) {
  Order({.kind = Command::Kind::kSetShare, .shard = shard_.get(), .share = share});
}

void FairJob::End() {
  over_ = true;
  Order({.kind = Command::Kind::kEndJob, .shard = shard_.get()});
}

void FairJob::ForgetMeasurements() {
  exchange_times_.clear();
  bytes_pushed_ = 0;
}

FairCluster::FairCluster(const WorkModel& model)
    : clock_(model), transport_(std::make_unique<FairTransport>()), transports_{transport_.get()} {
  loop_ = std::make_unique<CoreLoop>(CoreIndex{0}, clock_, transports_);
  clock_.Watch(loop_->counters(), *transport_);
}

FairCluster::~FairCluster() = default;

FairJob& FairCluster::Add(const FairJobOptions& options) {
  jobs_.push_back(std::make_unique<FairJob>(*loop_, *transport_, options, next_incarnation_++));
  return *jobs_.back();
}

void FairCluster::TakeEvents() {
  Event event;
  while (loop_->queues().events.TryPop(event)) {
    PHUB_CHECK(event.kind != Event::Kind::kFault, "fault={}", ToString(event.code));
    if (event.kind != Event::Kind::kJobEnded) continue;
    std::erase_if(jobs_, [&](const auto& job) { return &job->shard() == event.shard; });
  }
}

void FairCluster::RunFor(DurationNs duration) {
  const TimeNs end = now() + duration;
  while (now() < end) {
    if (on_run) on_run();
    TimeNs next = std::min(end, loop_->NextTimer());
    for (const auto& job : jobs_) {
      job->Push(now());
      if (!job->over() && job->next_push() > now()) next = std::min(next, job->next_push());
    }
    const bool worked = loop_->RunOnce();
    if (++runs_ % kRunsPerCheck == 0) loop_->CheckInvariants();
    TakeEvents();
    if (!worked && transport_->Arm() && next > now()) clock_.Sleep(next - now());
  }
}

void FairCluster::ForgetMeasurements() {
  for (const auto& job : jobs_) job->ForgetMeasurements();
}

DurationNs Percentile(std::vector<DurationNs> values, double part) {
  PHUB_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto index = static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5);
  return values[index];
}

}  // namespace phub::server
