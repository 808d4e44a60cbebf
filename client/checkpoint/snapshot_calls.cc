#include "client/checkpoint/snapshot_calls.h"

#include <utility>

#include "client/checkpoint/outage_wait.h"
#include "client/checkpoint/transfer.h"
#include "client/checkpoint/version_pages.h"
#include "common/base/printable.h"

namespace phub::client {

std::vector<CheckpointDaemon> SpreadOverRacks(const std::vector<CheckpointDaemon>& daemons,
                                              const Versions& versions) {
  std::vector<CheckpointDaemon> spread;
  for (std::size_t i = 0; i < daemons.size(); ++i) {
    const auto& racks = versions[i].racks();
    if (racks.empty() || daemons[i].rack) spread.push_back(daemons[i]);
    for (int rack = 0; rack < racks.size() && !daemons[i].rack; ++rack) {
      CheckpointDaemon& daemon = spread.emplace_back(daemons[i]);
      daemon.endpoint = Printable(racks[rack]);
      daemon.rack = static_cast<std::uint32_t>(rack);
    }
  }
  return spread;
}

absl::StatusOr<Versions> AskVersions(Daemons daemons, const SaveRequest& request,
                                     const TransferOptions& options) {
  v1::GetJobVersionsRequest question;
  question.set_tenant(request.tenant);
  question.set_job(request.job);
  question.set_page_size(kKeysPerPage);
  Versions versions;
  for (const CheckpointDaemon& daemon : daemons) {
    ChooseRack(daemon, question);
    v1::GetVersionsResponse& all = versions.emplace_back();
    do {
      question.set_first_key(all.next_key());
      grpc::ClientContext context;
      Prepare(context, options);
      v1::GetVersionsResponse page;
      const grpc::Status status = daemon.admin->GetJobVersions(&context, question, &page);
      if (!status.ok()) return FromGrpc(status, daemon.endpoint);
      if (absl::Status added = AddPage(page, all); !added.ok()) return added;
    } while (all.next_key() != 0);
  }
  return versions;
}

std::vector<std::string> IdsOf(const Snapshots& snapshots) {
  std::vector<std::string> ids;
  for (const v1::Snapshot& snapshot : snapshots) ids.push_back(snapshot.snapshot_id());
  return ids;
}

void GiveBack(Daemons daemons, const std::vector<std::string>& ids,
              const TransferOptions& options) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    v1::ReadSnapshotRequest request;
    ChooseRack(daemons[i], request);
    request.set_snapshot_id(ids[i]);
    request.set_give_back(true);
    grpc::ClientContext context;
    Prepare(context, options);
    const auto reader = daemons[i].admin->ReadSnapshot(&context, request);
    v1::SnapshotPart part;
    while (reader->Read(&part)) continue;
    reader->Finish();
  }
}

absl::StatusOr<Snapshots> BeginSnapshots(Daemons daemons, const SaveRequest& request,
                                         const std::string& saver, const Boundary& boundary,
                                         const TransferOptions& options) {
  v1::BeginSnapshotRequest question;
  question.set_saver(saver);
  question.set_without_keys(true);
  question.set_tenant(request.tenant);
  question.set_job(request.job);
  question.set_incarnation(request.incarnation);
  for (std::size_t key = 0; key < boundary.targets.size(); ++key) {
    v1::SnapshotTarget& target = *question.add_targets();
    target.set_key_index(static_cast<std::uint32_t>(key));
    target.set_reductions(boundary.targets[key]);
  }
  Snapshots snapshots;
  for (const CheckpointDaemon& daemon : daemons) {
    grpc::ClientContext context;
    Prepare(context, options);
    ChooseRack(daemon, question);
    v1::Snapshot snapshot;
    const grpc::Status status = daemon.admin->BeginSnapshot(&context, question, &snapshot);
    if (!status.ok()) {
      GiveBack(daemons, IdsOf(snapshots), options);
      return FromGrpc(status, daemon.endpoint);
    }
    question.set_incarnation(snapshot.incarnation());  // the other daemons must have the same run
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

absl::Status ReportSave(Daemons daemons, const SaveRequest& request, std::uint64_t iteration,
                        const std::vector<std::string>& ids, const TransferOptions& options) {
  const v1::SavedState where = WhereSaved(iteration, request.directory);
  OutageWait outage(options);
  absl::Status told;
  for (std::size_t i = 0; i < daemons.size(); ++i) {
    v1::ReportSavedStateRequest report;
    ChooseRack(daemons[i], report);
    report.set_tenant(request.tenant);
    report.set_job(request.job);
    report.set_snapshot_id(ids[i]);
    report.set_directory(where.directory());
    report.set_host(where.host());
    absl::Status answer;
    do {
      grpc::ClientContext context;
      Prepare(context, options);
      v1::ReportSavedStateResponse response;
      answer = FromGrpc(daemons[i].admin->ReportSavedState(&context, report, &response),
                        daemons[i].endpoint);
    } while (outage.Pause(answer, {.phase = TransferProgress::Phase::kSyncing}));
    outage.Over();
    told.Update(answer);
  }
  return told;
}

}  // namespace phub::client
