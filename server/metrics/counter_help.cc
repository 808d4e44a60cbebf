// What each counter of core loops and control means, for whoever sees it on a dashboard.
#include "server/metrics/exposition.h"

namespace phub::server {
namespace {

struct Help {
  std::string_view family;
  std::string_view text;
};

constexpr Help kHelp[] = {
    // Core loops.
    {"gradients", "Gradients of chunks that core loops took in."},
    {"gradient_bytes", "Payload of the gradients taken in."},
    {"gradients_in_place", "Gradients that were summed where the worker's memory lies."},
    {"gradients_folded", "Gradients added up early because their lane had no free slot left."},
    {"rounds", "Rounds of chunks that were completed."},
    {"rounds_queued", "Rounds that waited for their job's turn, as there were several jobs."},
    {"throttles", "Times that a tenant used up its bandwidth and was made to wait."},
    {"sums_told",
     "Messages of jobs with apply=iteration that a chunk is summed, one for each rank."},
    {"decisions", "Iterations that all ranks of a job with apply=iteration decided about."},
    {"rounds_skipped", "Rounds of chunks that changed nothing, as their iteration was skipped."},
    {"replies", "Replies with parameters, one for each chunk and rank."},
    {"reply_bytes", "Payload of the replies."},
    {"replies_in_pass", "Replies written by the pass that computed them."},
    {"replies_deferred", "Replies that waited for room in their lane's window."},
    {"credits", "Staging slots given back to workers before their round was complete."},
    {"pulls", "Answers to ranks that asked for parameters again."},
    {"duplicates_staged", "Gradients pushed again while their round was open; not counted twice."},
    {"duplicates_applied", "Gradients pushed again after their round; answered, not applied."},
    {"records", "Announcements of new hyper-parameters."},
    {"snapshots", "Snapshots that core loops began to copy."},
    {"lanes_attached", "Data lanes that core loops took over."},
    {"lanes_closed", "Data lanes that ended, in order or not."},
    {"faults", "Faults that ended a job at a core loop."},
    {"staged_discarded", "Gradients thrown away because their lane was lost before their round."},
    {"messages_refused", "Messages of workers that broke the protocol, and ended their job."},
    {"partials", "Partial sums of chunks that came from other racks."},
    {"partial_bytes", "Payload of the partial sums that came from other racks."},
    {"results", "New parameters of chunks that came from other racks."},
    {"result_bytes", "Payload of the new parameters that came from other racks."},
    {"partials_sent", "Partial sums of chunks that were sent to other racks."},
    {"results_sent", "New parameters of chunks that were sent to other racks."},
    {"peer_bytes_sent", "Payload that was sent to other racks."},
    {"loop_runs", "Runs of the core loop, with or without work."},
    {"loop_blocks", "Times that the core loop went to sleep because there was nothing to do."},
    // Control: joining.
    {"joins", "Requests of workers to join a job."},
    {"joins_refused", "Requests to join that were refused."},
    {"commits", "Workers whose place in the rack was made final."},
    {"calls_refused", "Calls whose caller is not who may make them."},
    {"calls_uncommitted", "Calls of workers that had not made their place final."},
    {"reservations_lapsed", "Places that were reserved and not taken in time."},
    {"reservations_returned", "Places that were reserved and given back."},
    {"jobs_created", "Jobs that were created."},
    {"jobs_ended", "Jobs that ended in order."},
    {"jobs_failed", "Jobs that ended with a fault."},
    {"jobs_abandoned", "Jobs that ended because nobody was in them any more."},
    {"jobs_superseded", "Jobs that ended because a new run of the same name began."},
    {"jobs_ended_elsewhere",
     "Jobs that ended because another daemon, or a rank that could not take part, ended them."},
    {"jobs_evicted", "Jobs that an administrator ended."},
    {"key_batches", "Batches of keys that were accepted."},
    {"keys_added", "Keys that were added to jobs."},
    {"keys_refused", "Batches of keys that were refused."},
    // Control: lanes and shared memory.
    {"lanes_granted", "Permissions to open a data lane."},
    {"lanes_admitted", "Data lanes whose permission was right."},
    {"lanes_refused", "Data lanes, or what came to the data port instead, that were refused."},
    {"lanes_dropped", "Data lanes whose job had ended when they were admitted."},
    {"lanes_lost", "Data lanes whose loss ended a job."},
    {"batches_granted", "Permissions to map the memory of a batch of keys."},
    {"batches_fetched", "Batches of keys whose memory a worker mapped."},
    {"batches_refused", "Requests to map memory that were refused."},
    {"shared_refused", "Requests for shared memory by another process than the rank's."},
    // Control: sessions and liveness.
    {"connections_refused", "Connections to the control port closed before a call was let in."},
    {"audit_suppressed", "Records of the audit log left out because they came too fast."},
    {"barriers", "Calls of barriers."},
    {"barriers_refused", "Calls of barriers that were refused."},
    {"leaves", "Workers that left in order."},
    {"heartbeats", "Heartbeats of workers."},
    {"streams_attached", "Event streams that workers opened."},
    {"streams_detached", "Event streams that broke or were closed."},
    {"sessions_unknown", "Calls that named a session which is not known."},
    {"workers_silent", "Workers not heard of for liveness_timeout."},
    {"silence_forgiven", "Times that the daemon was late itself and let workers off."},
    {"ranks_lost", "Ranks that were lost and are awaited (on_loss=wait)."},
    {"ranks_returned", "Lost ranks whose process came back."},
    {"ranks_restarted", "Lost ranks that a new process took over."},
    {"ranks_awaited_in_vain", "Lost ranks that did not come back in time."},
    {"core_faults", "Faults that core loops reported, but for lost lanes."},
    // Control: other racks.
    {"racks_silent", "Jobs that ended because another rack's daemon was not heard of."},
    {"racks_restarted", "Times that another rack's daemon was found to have started anew."},
    {"peer_faults", "Faults of other racks' daemons that core loops reported."},
    {"peer_messages_dropped", "Messages to or of other racks' daemons dropped, as too many wait."},
    {"jobs_crowded_out", "Jobs that ended because too much of theirs waited for another rack."},
    {"load_refusals_late", "Refusals of loads from another rack that came after the next load."},
    {"peers_refused", "Messages of other racks' daemons that do not fit together with this one."},
    {"probes", "Probes of the way to another rack that this daemon measured."},
    {"probes_failed", "Probes of the way to another rack that came to no end."},
    {"probes_refused", "Probes of the way between racks that were refused."},
    {"probe_bytes", "Bytes that probes moved which this daemon measured."},
    {"surveys", "Times that this daemon had the ways between all racks measured for new jobs."},
    {"surveys_failed", "Times that the ways between all racks could not be measured."},
    {"topologies_applied", "Measured topologies that operators had applied to new jobs."},
    {"topologies_refused", "Measured topologies, of operators or of rack 0, that were refused."},
    // Control: questions and saved state.
    {"stall_reports", "Questions to core loops about who waits for whom."},
    {"version_reports", "Questions to core loops about versions of parameters."},
    {"snapshots_begun", "Snapshots that were begun."},
    {"snapshots_missed", "Snapshots whose iteration had passed already."},
    {"snapshots_refused", "Snapshots that were refused."},
    {"snapshots_read", "Snapshots that were read to their end."},
    {"snapshots_abandoned", "Snapshots given up before they were read."},
    {"snapshot_bytes", "Bytes of snapshots that were sent."},
    {"loads_begun", "Transfers of saved state into a job that were begun."},
    {"loads_refused", "Transfers of saved state that were refused."},
    {"loads_brought", "Transfers of saved state that were complete."},
    {"load_bytes", "Bytes of saved state that were received."},
};

}  // namespace

std::string_view HelpOf(std::string_view family) {
  for (const Help& help : kHelp) {
    if (help.family == family) return help.text;
  }
  return {};
}

}  // namespace phub::server
