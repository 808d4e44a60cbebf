#include "server/control/control.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "server/control/jobs/local_rack.h"
#include "server/control/state.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {
namespace {

// What a worker says of itself names its rank in the job; control counts from 0 in each rack.
template <typename State, typename Message>
Message InRack(State& state, Message message) {
  const Job* const job = state.FindIncarnation(message.incarnation);
  if (job != nullptr && LaneOwner::OfHello(message.rank).is_worker()) {
    message.rank.value -= job->config.rank_base;
  }
  return message;
}

}  // namespace

Control::State::State(const Clock& clock_given, Random& random_given,
                      std::vector<CoreHandle> handles, ControlOptions options_given)
    : clock(clock_given),
      random(random_given),
      options(std::move(options_given)),
      started_at(clock_given.Now()),
      rack_configuration(HashOfConfiguration(options)),
      ledger(options.memory_bytes_max),
      polled_at(started_at) {
  PHUB_CHECK(!handles.empty());
  for (CoreHandle& handle : handles) links.emplace_back(std::move(handle));
  endpoints.assign(links.size(), {options.lane_host, options.lane_port});
  if (!options.racks.empty()) {
    PHUB_CHECK(options.rack_topology != nullptr && options.rack_index < options.racks.size());
    PHUB_CHECK(options.rack_topology->members().size() == options.racks_with_ranks());
    PHUB_CHECK(options.aggregator_count == 0 ||
               options.aggregator_count == exchange::AggregatorCount(*options.rack_topology));
    PHUB_CHECK(!options.topology_is_measured || options.aggregator_count == 0);
    racks.known.resize(options.racks.size());
    racks.configuration = HashOfRacks(options, links.size());
    racks.instance = random.Next() | 1;  // 0 means unknown
  }
  PHUB_CHECK(options.rack_self < std::max<std::size_t>(1, options.rack_endpoints.size()));
}

Control::Control(const Clock& clock, Random& random, std::vector<CoreHandle> cores,
                 ControlOptions options)
    : state_(std::make_unique<State>(clock, random, std::move(cores), std::move(options))) {}

Control::~Control() = default;

void Control::SetLaneEndpoint(CoreIndex core, std::string host, std::uint16_t port) {
  PHUB_CHECK(core.value < state_->endpoints.size(), "core={}", core.value);
  state_->endpoints[core.value] = {std::move(host), port};
}

void Control::SetMemoryListener(JobMemoryListener& listener) {
  state_->memory_listener = &listener;
}
void Control::SetPageTaker(PageTaker& taker) { state_->page_taker = &taker; }

void Control::SetSharedMemoryEndpoint(std::string name, std::string boot_id) {
  PHUB_CHECK(state_->jobs.empty());
  state_->shared_memory.set_name(std::move(name));
  state_->shared_memory.set_boot_id(std::move(boot_id));
}

void Control::GetRack(const v1::GetRackRequest&, Answer<v1::Rack> answer) {
  answer(absl::OkStatus(), state_->DescribeRack());
}
void Control::Join(const v1::JoinRequest& request, std::string_view peer_address,
                   Answer<v1::JoinResponse> answer) {
  state_->Join(request, peer_address, std::move(answer));
}
void Control::Commit(const v1::CommitRequest& request, Answer<v1::CommitResponse> answer) {
  state_->Commit(request, std::move(answer));
}
void Control::AddKeys(const v1::AddKeysRequest& request, Answer<v1::AddKeysResponse> answer) {
  state_->AddKeys(request, std::move(answer));
}
void Control::OpenLanes(const v1::OpenLanesRequest& request, Answer<v1::OpenLanesResponse> answer) {
  state_->OpenLanes(request, std::move(answer));
}
void Control::Barrier(const v1::BarrierRequest& request, Answer<v1::BarrierResponse> answer) {
  state_->Barrier(request, std::move(answer));
}
void Control::Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer) {
  state_->Leave(request, std::move(answer));
}

absl::StatusOr<StreamId> Control::AttachStream(std::string_view session_id,
                                               std::shared_ptr<EventSink> sink) {
  return state_->AttachStream(session_id, std::move(sink));
}
absl::Status Control::Heartbeat(std::string_view session_id, std::uint64_t sequence) {
  return state_->Heartbeat(session_id, sequence);
}
void Control::DetachStream(std::string_view session_id, StreamId stream) {
  state_->DetachStream(session_id, stream);
}

wire::LaneRefusal Control::AdmitLane(const wire::LaneHello& hello,
                                     std::optional<PeerProcess> process, bool encrypted) {
  return state_->AdmitLane(InRack(*state_, hello), process, encrypted);
}
std::optional<wire::Nonce> Control::FindNonce(const wire::LaneHello& hello) const {
  return state_->FindNonce(InRack(*state_, hello));
}
absl::StatusOr<LaneStaging> Control::StagingOf(const wire::LaneHello& hello) {
  return state_->StagingOf(InRack(*state_, hello));
}
absl::StatusOr<transport::LaneMemory> Control::SharedLaneMemory(const wire::LaneHello& hello) {
  return state_->SharedLaneMemory(InRack(*state_, hello));
}
wire::LaneRefusal Control::AdmitBatch(const wire::SharedBatchRequest& request, PeerProcess process,
                                      transport::BatchMemory& memory) {
  return state_->AdmitBatch(InRack(*state_, request), process, memory);
}
void Control::AttachLane(const wire::LaneHello& hello,
                         std::unique_ptr<transport::Connection> connection,
                         std::uint8_t transport_index, std::string_view transport_name,
                         std::string_view peer_address) {
  std::string description = fmt::format("{} {}", transport_name, peer_address);
  const LaneOwner owner = LaneOwner::OfHello(hello.rank);
  if (owner.is_rack()) {
    return state_->AttachPeerLane(hello.incarnation, owner.rack(), hello.core,
                                  std::move(connection), transport_index, std::move(description));
  }
  state_->AttachLane(InRack(*state_, hello), std::move(connection), transport_index,
                     std::move(description));
}

void Control::SetPeerNetwork(PeerNetwork& network) { state_->racks.network = &network; }
v1::PeerEnvelope Control::MakeEnvelope(RackIndex to) const { return state_->MakeEnvelope(to); }
absl::Status Control::CheckEnvelope(const v1::PeerEnvelope& envelope) {
  return state_->CheckEnvelope(envelope);
}
void Control::OnEnvelope(const v1::PeerEnvelope& envelope, Answer<v1::PeerReceipt> answer) {
  state_->OnEnvelope(envelope, std::move(answer));
}
void Control::OnReceipt(RackIndex from, const v1::PeerReceipt& receipt) {
  state_->OnReceipt(from, receipt);
}
void Control::OnPeerRefusal(RackIndex from, std::string_view why) {
  state_->racks.known[from.value].refuses = Printable(why, kPeerWordsMax);
}
bool Control::LacksPeerLane(const wire::LaneHello& hello, RackIndex to) const {
  return state_->LacksPeerLane(hello.incarnation, to, hello.core);
}
void Control::AttachPeerLane(const wire::LaneHello& hello, RackIndex to,
                             std::unique_ptr<transport::Connection> connection,
                             std::uint8_t transport_index, std::string description) {
  state_->AttachPeerLane(hello.incarnation, to, hello.core, std::move(connection), transport_index,
                         std::move(description));
}
void Control::PeerLaneFailed(const wire::LaneHello& hello, RackIndex to, const absl::Status& why) {
  state_->PeerLaneFailed(hello.incarnation, to, hello.core, why);
}

void Control::GetServer(const v1::GetServerRequest&, Answer<v1::ServerInfo> answer) {
  state_->GetServer(std::move(answer));
}
void Control::ListJobs(const v1::ListJobsRequest& request, Answer<v1::ListJobsResponse> answer) {
  state_->ListJobs(request, std::move(answer));
}
void Control::GetJob(const v1::GetJobRequest& request, Answer<v1::JobInfo> answer) {
  state_->GetJob(request, std::move(answer));
}
void Control::ListStalls(const v1::ListStallsRequest& request,
                         Answer<v1::ListStallsResponse> answer) {
  state_->ListStalls(request, std::move(answer));
}
void Control::GetStats(const v1::GetStatsRequest&, Answer<v1::GetStatsResponse> answer) {
  state_->GetStats(std::move(answer));
}
MetricsSample Control::Sample() const { return state_->Sample(); }

void Control::DrainServer(const v1::DrainServerRequest& request, Answer<v1::ServerInfo> answer) {
  state_->DrainServer(request, std::move(answer));
}
void Control::UndrainServer(const v1::UndrainServerRequest&, Answer<v1::ServerInfo> answer) {
  state_->UndrainServer(std::move(answer));
}
void Control::EvictJob(const v1::EvictJobRequest& request, Answer<v1::JobInfo> answer) {
  state_->EvictJob(request, std::move(answer));
}
void Control::GetJobVersions(const v1::GetJobVersionsRequest& request,
                             Answer<v1::GetVersionsResponse> answer) {
  state_->GetJobVersions(request, std::move(answer));
}
void Control::BeginSnapshot(const v1::BeginSnapshotRequest& request, Answer<v1::Snapshot> answer) {
  state_->BeginSnapshot(request, std::move(answer));
}
absl::Status Control::ReadSnapshot(const v1::ReadSnapshotRequest& request,
                                   std::shared_ptr<SnapshotSink> sink) {
  return state_->ReadSnapshot(request, std::move(sink));
}
void Control::SnapshotPartSent(std::string_view snapshot_id, const SnapshotSink* sink) {
  state_->SnapshotPartSent(snapshot_id, sink);
}
void Control::CancelSnapshot(std::string_view snapshot_id, const SnapshotSink* sink) {
  state_->CancelSnapshot(snapshot_id, sink);
}

void Control::GetVersions(const v1::GetVersionsRequest& request,
                          Answer<v1::GetVersionsResponse> answer) {
  state_->GetVersions(request, std::move(answer));
}
absl::StatusOr<LoadId> Control::BeginLoad(const v1::LoadStateRequest& first) {
  return state_->BeginLoad(first);
}
absl::Status Control::LoadPart(LoadId load, const v1::LoadStateRequest& part) {
  return state_->LoadPart(load, part);
}
void Control::FinishLoad(LoadId load, Answer<v1::LoadStateResponse> answer) {
  state_->FinishLoad(load, std::move(answer));
}
void Control::CancelLoad(LoadId load) { state_->CancelLoad(load); }
void Control::GetLoadedState(const v1::GetLoadedStateRequest& request,
                             Answer<v1::LoadedState> answer) {
  state_->GetLoadedState(request, std::move(answer));
}

void Control::Poll() { state_->Poll(); }
TimeNs Control::NextDeadline() { return state_->NextDeadline(); }
void Control::Drain(DurationNs grace) { state_->Drain(grace); }
void Control::SetDrainTimeout(DurationNs timeout) { state_->drain_timeout = timeout; }
bool Control::Drained() const { return state_->draining && state_->jobs.empty(); }
std::uint64_t Control::memory_bytes() const { return state_->ledger.used_bytes(); }
std::size_t Control::job_count() const { return state_->jobs.size(); }

}  // namespace phub::server
