// The help of each counter of core loops and control, for dashboards.
#include "server/metrics/exposition.h"

namespace phub::server {
namespace {

struct Help {
  std::string_view family;
  std::string_view text;
};

constexpr Help kHelp[] = {
    // Core loops.
    {"gradients", "Gradients of chunks that core loops received."},
    {"gradient_bytes", "Payload of the received gradients."},
    {"gradients_in_place",
     "Gradients that were summed directly from memory shared with the worker."},
    {"gradients_folded", "Gradients folded early because their lane had no free slot."},
    {"rounds", "Completed rounds of chunks."},
    {"rounds_queued", "Rounds that waited for their job's turn on a shared core loop."},
    {"throttles", "Times that a tenant used up its bandwidth and was throttled."},
    {"sums_told", "Notifications to a rank that a chunk is summed (apply=iteration)."},
    {"decisions", "Iterations that all ranks decided about (apply=iteration)."},
    {"rounds_skipped",
     "Rounds of chunks that changed nothing because their iteration was skipped."},
    {"replies", "Replies with parameters, one for each chunk and rank."},
    {"reply_bytes", "Payload of the replies."},
    {"replies_in_pass", "Replies written by the same pass that computed the parameters."},
    {"replies_deferred", "Replies that waited for room in their lane's send window."},
    {"credits", "Staging slots given back to workers before their round was complete."},
    {"pulls", "Parameters sent to ranks that asked for them without a push."},
    {"duplicates_staged",
     "Gradients pushed again before their round was complete; not summed twice."},
    {"duplicates_applied",
     "Gradients pushed again after their round; answered, but not applied twice."},
    {"records", "Announcements of new hyper-parameters."},
    {"snapshots", "Snapshots that core loops started to copy."},
    {"lanes_attached", "Data lanes that core loops took over."},
    {"lanes_closed", "Data lanes that closed, normally or because of an error."},
    {"faults", "Faults on a core loop that ended a job."},
    {"staged_discarded",
     "Gradients discarded because their lane was lost before they were summed."},
    {"messages_refused",
     "Messages of workers or racks that broke the protocol and ended their job."},
    {"partials", "Partial sums of chunks received from other racks."},
    {"partial_bytes", "Payload of the partial sums received from other racks."},
    {"results", "New parameters of chunks received from other racks."},
    {"result_bytes", "Payload of the new parameters received from other racks."},
    {"partials_sent", "Partial sums of chunks sent to other racks."},
    {"results_sent", "New parameters of chunks sent to other racks."},
    {"peer_bytes_sent", "Payload sent to other racks."},
    {"events_delayed",
     "Events of the core loop that waited because control did not take them; training continues."},
    {"loop_runs", "Runs of the core loop, with or without work."},
    {"loop_blocks", "Times that the core loop blocked because it had no work."},
    // Control: joining.
    {"joins", "Requests to join a job."},
    {"joins_refused", "Requests to join a job that were refused."},
    {"commits", "Workers that committed their place in a job."},
    {"calls_refused", "Calls refused for lack of permission."},
    {"calls_uncommitted", "Calls refused because the worker had not committed its place."},
    {"reservations_lapsed", "Reserved places that expired before a worker committed them."},
    {"reservations_returned", "Reserved places that were given back."},
    {"jobs_created", "Jobs that were created."},
    {"jobs_ended", "Jobs that ended normally."},
    {"jobs_failed", "Jobs that ended with a fault."},
    {"jobs_abandoned", "Jobs that ended because they had no workers any more."},
    {"jobs_superseded", "Jobs that ended because a new run with the same name started."},
    {"jobs_ended_elsewhere",
     "Jobs that another daemon, or a rank that could not take part, ended."},
    {"jobs_evicted", "Jobs that an administrator ended."},
    {"key_batches", "Batches of keys that were accepted."},
    {"keys_added", "Keys that were added to jobs."},
    {"keys_refused", "Batches of keys that were refused."},
    // Control: lanes and shared memory.
    {"lanes_granted", "Granted permissions to open a data lane."},
    {"lanes_admitted", "Data lanes admitted with a valid permission."},
    {"lanes_refused", "Data lanes, and other connections to the data port, that were refused."},
    {"lanes_dropped", "Data lanes closed on admission because their job or request was obsolete."},
    {"lanes_lost", "Lost data lanes that ended a job."},
    {"batches_granted", "Granted permissions to map the memory of a batch of keys."},
    {"batches_fetched", "Batches of keys whose memory a worker mapped."},
    {"batches_refused", "Requests to map the memory of a batch of keys that were refused."},
    {"shared_refused", "Requests for shared memory from a process that is not the rank's."},
    // Control: sessions and liveness.
    {"connections_refused",
     "Connections to the control port closed before a call of an identified caller."},
    {"control_stalls", "Times that control did not answer for 3 s or longer; training continued."},
    {"front_restarts", "Times that the front of the control port was started again."},
    {"certificates_refused",
     "Changed certificate files of the control plane that cannot be used; the previous ones stay."},
    {"audit_suppressed", "Records left out of the audit log because they came too fast."},
    {"barriers", "Barrier calls."},
    {"barriers_refused", "Barrier calls that were refused."},
    {"leaves", "Workers that left their job normally."},
    {"heartbeats", "Heartbeats received from workers."},
    {"streams_attached", "Event streams that workers opened."},
    {"streams_detached", "Event streams that broke or were closed."},
    {"events_replaced", "Events for workers that a newer one replaced before it was sent."},
    {"sessions_unknown", "Calls that named an unknown session."},
    {"workers_silent", "Workers that sent nothing for liveness_timeout."},
    {"lanes_silent", "Lanes on which a worker sent nothing, although its other lanes work."},
    {"silence_forgiven",
     "Times that the daemon itself was delayed and extended workers' deadlines."},
    {"ranks_lost", "Lost ranks that a job waits for (on_loss=wait)."},
    {"ranks_returned", "Lost ranks whose process came back."},
    {"ranks_restarted", "Lost ranks that a new process took over."},
    {"ranks_awaited_in_vain", "Lost ranks that did not come back in time."},
    {"joins_awaited_in_vain", "Jobs that ended because ranks did not join within join_timeout."},
    {"core_faults", "Faults that core loops reported, except lost lanes."},
    // Control: other racks.
    {"racks_silent", "Times that a job heard nothing from another rack for liveness_timeout."},
    {"racks_restarted", "Jobs that ended because another rack's daemon was restarted."},
    {"peer_faults", "Faults of other racks' daemons that core loops reported."},
    {"peer_messages_dropped",
     "Messages to or from other racks' daemons dropped because a queue was full."},
    {"jobs_crowded_out",
     "Jobs that ended because too many of their messages to a rack were queued."},
    {"load_refusals_late",
     "Refusals of loads by another rack that arrived after the next load began."},
    {"peers_refused", "Messages from other racks' daemons that contradict this daemon's setup."},
    {"probes", "Successful probes of the path to another rack by this daemon."},
    {"probes_failed", "Failed probes of the path to another rack by this daemon."},
    {"probes_refused", "Probes of the path between racks that were refused."},
    {"probe_bytes", "Bytes that this daemon's successful probes sent and received."},
    {"surveys", "Successful measurements of the paths between all racks for new jobs."},
    {"surveys_failed", "Failed measurements of the paths between all racks."},
    {"topologies_applied", "Measured topologies that operators applied to new jobs."},
    {"topologies_refused", "Measured topologies from operators or from rack 0 that were refused."},
    // Control: reports and checkpoints.
    {"stall_reports", "Requests to core loops for a report of stalled rounds."},
    {"version_reports", "Requests to core loops for a report of parameter versions."},
    {"snapshots_begun", "Snapshots that were started."},
    {"snapshots_missed", "Snapshots whose iteration had already passed."},
    {"snapshots_refused", "Snapshots that were refused."},
    {"snapshots_read", "Snapshots that were read completely."},
    {"snapshots_abandoned", "Snapshots abandoned before they were read completely."},
    {"snapshot_bytes", "Snapshot bytes sent."},
    {"loads_begun", "Loads of a checkpoint that were started."},
    {"loads_refused", "Loads of a checkpoint that were refused."},
    {"loads_brought", "Loads of a checkpoint that were completed."},
    {"load_bytes", "Checkpoint bytes received."},
};

}  // namespace

std::string_view HelpOf(std::string_view family) {
  for (const Help& help : kHelp) {
    if (help.family == family) return help.text;
  }
  return {};
}

}  // namespace phub::server
