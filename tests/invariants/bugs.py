"""One seeded bug for each invariant of docs/internals/invariants.md: what to replace in which file,
and the tests that should fail, in the order in which they are tried."""

from dataclasses import dataclass

CORE = ("core_loop_test", "swarm_fast")
FAIR = ("fairness_test", "core_loop_test", "swarm_fast")
CONTROL = ("control_test", "swarm_fast")
LANES = ("transport_test", "conformance_test")
RINGS = ("conformance_test", "shm_test")
VERBS = ("verbs_test",)


@dataclass(frozen=True)
class Bug:
    invariant: str
    what: str  # in a few words
    path: str
    old: str  # occurs once in the file
    new: str
    tests: tuple[str, ...]


BARRIERS = "server/control/ranks/barriers.cc"
ENDING = "server/control/jobs/ending.cc"
JOB_TABLE = "server/control/jobs/job_table.cc"
KEYS = "server/control/keys/keys.cc"
LEDGER = "server/tenant/ledger.cc"
PEER_LANES = "server/control/racks/peer_lanes.cc"
SEATS = "server/control/ranks/seats.cc"
AGGREGATE = "server/core/aggregate/aggregate.cc"
EXCHANGE = "server/core/exchange/exchange.cc"
FAIR_QUEUE = "server/core/schedule/fair_queue.cc"
OF_LANES = "server/core/loop/lanes.cc"
TABLE = "common/transport/connection_table.h"
RING_SENDER = "common/transport/shm/ring_sender.cc"
VERBS_SENDER = "common/transport/verbs/verbs_sender.h"
VERBS_ROOM = "common/transport/verbs/verbs_room.cc"
VERBS_RECEIVER = "common/transport/verbs/verbs_receiver.cc"

BUGS = (
    Bug("S1", "a gradient that leaves its round stays counted", AGGREGATE,
        "  --chunk.staged_count;\n", "", CORE),
    Bug("S2", "a chunk keeps the slot that it gave back", AGGREGATE,
        "  chunk.staged_slot[member] = kNoSlot;\n", "", CORE),
    Bug("S3", "a slot that is free again stays counted", "server/core/aggregate/lane_room.cc",
        "  --lane.slots_used;\n", "", CORE),
    Bug("S4", "a chunk that a full lane of another rank holds is not folded",
        "server/core/aggregate/aggregate.h",
        "if (HeldByFullLane(shard, chunk)) fold(chunk);",
        "if (false && HeldByFullLane(shard, chunk)) fold(chunk);", CORE),
    Bug("S5", "credits that have left stay counted", "server/core/reply/reply.cc",
        "  shard.reply_backlog -= static_cast<std::uint32_t>(posted);\n", "", CORE),
    Bug("S6", "a lane has one reply more than its window", "server/core/reply/window.h",
        "kYieldingReplies);\n  return lane.replies_posted < limit;",
        "kYieldingReplies);\n  return lane.replies_posted <= limit;", CORE),
    Bug("S7", "what waited for a lost lane is kept", OF_LANES,
        "  replies_.Forget(shard, rank);\n", "", CORE),
    Bug("S8", "a sum that is applied still counts as decided",
        "server/core/rounds/whole_iteration.cc", "  --iteration.applying_count;\n", "", CORE),
    Bug("S9", "a round that has had its turn still counts as waiting", FAIR_QUEUE,
        "    chunk.is_queued = false;\n", "", CORE),
    Bug("S10", "a chunk that was copied is still awaited",
        "server/core/checkpoint/shard_checkpoint.cc",
        "  --image.chunks_left;\n", "", CORE),
    Bug("S11", "a rank that was answered is answered with the next round, too",
        "server/core/reply/reply.cc", "if (!TestAndClear(chunk.wants_reply, member)) continue;",
        "if (!Test(chunk.wants_reply, member)) continue;", CORE),
    Bug("S12", "a rank that left is not counted", "server/core/rounds/departed.cc",
        "  ++shard.departed_count;\n", "", CORE),
    Bug("S13", "a stream does not learn of pushes over tcp", "server/core/rounds/intake.cc",
        "  sums_.OnPushed(shard, chunk);\n", "", CORE),
    Bug("E1", "the slot of a partial stays open while the partial lies there", EXCHANGE,
        "overwrites it.\n  shard.exchange->peers[from.value].landing[header.slot.value] = {};\n",
        "overwrites it.\n", CORE),
    Bug("E2", "the slot of new parameters stays open after them", EXCHANGE,
        "awaits_result = false;\n  shard.exchange->peers[from.value]"
        ".landing[header.slot.value] = {};\n", "awaits_result = false;\n", CORE),
    Bug("E3", "a partial is noted as the next child's", EXCHANGE,
        "  state.arrived |= std::uint64_t{1} << child;\n",
        "  state.arrived |= std::uint64_t{2} << child;\n", CORE),
    Bug("E4", "a sum that went up still counts as the own one", EXCHANGE,
        "state.local = state.has_terms = false;", "state.has_terms = false;", CORE),
    Bug("E5", "the terms of a round are those of the round before", EXCHANGE,
        "state.local = state.has_terms = false;", "state.local = false;", CORE),
    Bug("E6", "a round whose last part is the own sum stays", EXCHANGE,
        "  NotePart(shard, state, shard.exchange->plan.self);\n"
        "  return Advance(shard, chunk, state);\n",
        "  NotePart(shard, state, shard.exchange->plan.self);\n  return {};\n", CORE),
    Bug("E7", "a message that found room stays counted as waiting",
        "server/core/exchange/peer_messages.cc", "  NoteNotWaiting(*shard.exchange, level);\n", "",
        CORE),
    Bug("E8", "a message that waits is not noted", "server/core/exchange/peer_messages.cc",
        "  NoteWaits(shard, to, entry, true);\n", "", CORE),
    Bug("E9", "chunks do not know their numbers between racks",
        "server/core/exchange/shard_exchange.cc",
        "    exchange.chunks()[chunk.number] = &chunk;\n",
        "    exchange.chunks()[chunk.number] = &chunk;\n    chunk.number = first;\n", CORE),
    Bug("E10", "a round does not end at racks that pass its result on",
        "server/core/exchange/exchange.cc",
        "  } else {\n    NoteRound(shard, state, Part::kEnds);\n", "  } else {\n", CORE),
    Bug("L1", "a lane does not keep its new connection", OF_LANES,
        "  lane.connection = id;\n", "", CORE),
    Bug("L2", "a lane that has closed stays counted", OF_LANES,
        "  --shard.lanes_open;\n", "", CORE),
    Bug("F1", "a tenant's iteration lacks what its jobs push", FAIR_QUEUE,
        "  job.tenant->iteration_bytes += bytes;\n", "", CORE),
    Bug("F2", "a throttled tenant keeps its turn", FAIR_QUEUE,
        "throttled_, &tenant);\n  Leave(tenants_, tenant);\n", "throttled_, &tenant);\n", FAIR),
    Bug("F3", "a job whose lanes were held is counted when it is gone",
        "server/core/loop/turns.cc", "  if (shard.turn.held) --held_count_;\n", "", FAIR),
    Bug("T1", "a stopped core loop is run once more by the thread that stopped it",
        "server/core_thread.cc",
        "  if (thread_.joinable()) thread_.join();\n",
        "  if (thread_.joinable()) {\n    thread_.join();\n    loop_.RunOnce();\n  }\n",
        ("server_config_test",)),
    Bug("P1", "a message that was given back counts as lent", "common/transport/message_pool.h",
        "    lent_[index] = false;\n", "", LANES),
    Bug("C1", "a connection does not learn its new place", TABLE,
        "    entries_[last].served_index = entry.served_index;\n", "", LANES),
    Bug("C2", "a ready connection enters the ring twice", TABLE,
        "    if (entry.in_ready) return;\n", "", LANES),
    Bug("Q1", "what was not reported is forgotten with what has not left",
        "common/transport/stream/sender.h", "    tail_ = written_;\n", "    tail_ = reported_;\n",
        LANES),
    Bug("Q2", "bytes of a request that left are counted for the next",
        "common/transport/stream/sender.cc", "    front_sent_ -= at(written_).bytes();\n", "",
        LANES),
    Bug("R1", "what was read behind a payload is overestimated",
        "common/transport/stream/receiver.cc", "  stash_end_ = io.bytes - of_payload;\n",
        "  stash_end_ = io.bytes;\n", LANES),
    Bug("R2", "a piece of a payload is not counted", "common/transport/shm/ring_receiver.cc",
        "  payload_have_ += count;\n", "  payload_have_ += count + 1;\n", RINGS),
    Bug("G1", "a record more than the ring has is put into it", RING_SENDER,
        "put_.records - taken_.records == ring_.record_count;",
        "put_.records - taken_.records == ring_.record_count + 1;", RINGS),
    Bug("G2", "a record that is forgotten counts as put", RING_SENDER,
        "  tail_ = written_;\n  front_recorded_ = false;\n", "  tail_ = written_;\n", RINGS),
    Bug("G3", "a receiver skips a record", "common/transport/shm/ring_receiver.cc",
        "  ++taken_.records;\n", "  taken_.records += 2;\n", RINGS),
    Bug("V1", "a message more than the peer's window leaves", VERBS_SENDER,
        "messages_sent_ - messages_taken_ < peer_.messages_max",
        "messages_sent_ - messages_taken_ <= peer_.messages_max", VERBS),
    Bug("V2", "work requests that are done stay counted", VERBS_ROOM,
        "  done_ = signal.posted;\n", "", VERBS),
    Bug("V3", "copies are counted as done before they have left", VERBS_ROOM,
        "  outbox_done_ = signal.outbox;\n", "  outbox_done_ = outbox_put_ + 64;\n", VERBS),
    Bug("V4", "units are reported to the peer before they are taken", VERBS_RECEIVER,
        "  units_told_ = units_taken_;\n", "  units_told_ = units_arrived_ + 1;\n", VERBS),
    Bug("J1", "the shards of a released job stay in the table", JOB_TABLE,
        "  for (const auto& shard : job.shards) shard_owners_.erase(shard.get());\n",
        "  (void)job;\n", CONTROL),
    Bug("J2", "every job gets the same incarnation", JOB_TABLE,
        "    const Incarnation drawn{context_.random.Next()};\n",
        "    const Incarnation drawn{1};\n    return drawn;\n", CONTROL),
    Bug("J3", "a job that ends normally still counts as running", ENDING,
        "  job.state = Job::State::kEnded;\n", "", CONTROL),
    Bug("J4", "a released job keeps its shards", ENDING,
        "  jobs_.ForgetShards(job);\n  job.shards.clear();\n", "", CONTROL),
    Bug("J5", "the memory of keys is reserved, but not recorded", KEYS,
        "  job.memory_bytes += build.bytes;\n", "", CONTROL),
    Bug("J6", "new keys are not counted", KEYS,
        "  job.key_count = job.keys.size();\n", "", CONTROL),
    Bug("J7", "a batch counts as sent before it has pages", KEYS,
        "    if (pages == PrefaultState::kWaiting) return;\n",
        "    if (pages == PrefaultState::kWaiting) {\n      ++job.batches_handed_out;\n"
        "      return;\n    }\n", CONTROL),
    Bug("J8", "the diagnosis of a failed job continues", ENDING,
        "  job.diagnosis.reset();\n", "", CONTROL),
    Bug("J9", "a job across racks has no exchange", "server/control/ranks/joins.cc",
        "  job->exchange = std::move(racks.exchange);\n", "", CONTROL),
    Bug("J10", "a job that a rank has joined still counts as abandoned", SEATS,
        "    job.nobody_since = 0;\n    context_.counters.Add(ControlCounter::commits);\n",
        "    context_.counters.Add(ControlCounter::commits);\n", CONTROL),
    Bug("M1", "a seat that is free again keeps its session", SEATS,
        "  member = std::move(empty);\n",
        "  member.lanes = std::move(empty.lanes);\n  member.state = Member::State::kAwaited;\n",
        CONTROL),
    Bug("M2", "a rank is present without having committed its place", SEATS,
        "std::exchange(member.committed, true)",
        "std::exchange(member.committed, bool(member.committed))", CONTROL),
    Bug("M3", "the reason for an absence is not kept", "server/control/jobs/presence.cc",
        "  member.absence = std::move(absence);\n", "", CONTROL),
    Bug("M4", "a seat that is free again has no lanes", SEATS,
        "  empty.lanes = std::move(member.lanes);\n", "", CONTROL),
    Bug("M5", "a closed lane keeps its staging memory", "server/control/lanes/lanes.cc",
        "  std::erase_if(place.staging_in_use,\n"
        "                [&](const auto& in_use) { return in_use.first == event.connection; });\n",
        "", CONTROL),
    Bug("M6", "a repeated batch counts as a new one", KEYS,
        "if (batch == member.next_batch) ++member.next_batch;", "++member.next_batch;", CONTROL),
    Bug("M7", "a barrier completes before the one in front of it", BARRIERS,
        "    const std::uint64_t sequence = job.barriers_done++;\n",
        "    const std::uint64_t sequence = job.barriers_done;\n    job.barriers_done += 2;\n",
        CONTROL),
    Bug("N1", "every session belongs to rank 0", "server/control/jobs/sessions.cc",
        "  sessions_[member.session_id] = {&job, rank};\n",
        "  sessions_[member.session_id] = {&job, Rank{0}};\n", CONTROL),
    Bug("N2", "the session of a freed seat stays known", SEATS,
        "  sessions_.ForgetSessions(member);\n", "", CONTROL),
    Bug("A1", "a tenant with jobs can be removed", LEDGER,
        "  if (found->second.used.jobs > 0) {\n",
        "  if (found->second.used.jobs > 0 && false) {\n", ("ledger_test", *CONTROL)),
    Bug("A2", "memory that is given back stays charged to the tenant", LEDGER,
        "  holder.used.memory_bytes -= bytes;\n", "", CONTROL),
    Bug("A3", "memory that is given back stays counted", LEDGER,
        "  used_bytes_ -= bytes;\n", "", CONTROL),
    Bug("A4", "a job that has ended stays charged to the grant", LEDGER,
        "  if (found->second.charges.job) --holder.charged.jobs;\n", "", ("ledger_test", *CONTROL)),
    Bug("X1", "an attached lane has no description", PEER_LANES,
        "  place.description = std::move(description);\n", "  (void)description;\n", CONTROL),
    Bug("X2", "a rack is ready before it has its lanes", PEER_LANES,
        "      if (place.connection == nullptr) return false;\n",
        "      (void)place;\n", CONTROL),
    Bug("X3", "a lost rank of another rack is recorded under every policy",
        "server/control/racks/rack_waiting.cc",
        "return job.settings.on_loss == LossPolicy::kWait && rank < job.config",
        "return rank < job.config", CONTROL),
    Bug("X4", "the run has an exchange of its own", "server/control/ranks/joins.cc",
        "  job->exchange = std::move(racks.exchange);\n",
        "  job->exchange = std::make_shared<JobExchange>();\n"
        "  job->exchange->plan = racks.exchange->plan;\n", CONTROL),
    Bug("X5", "a run fails and its job goes on", "server/control/racks/peer_envelopes.cc",
        "      ending_.Fail(*job, std::move(run.put_off));\n", "", CONTROL),
    Bug("X6", "a deferred fault is forgotten", PEER_LANES,
        "if (Has(steps, RackAction::kPutFaultOff)) run.put_off",
        "if (Has(steps, RackAction::kPutFaultOff) && false) run.put_off", CONTROL),
    Bug("X7", "a rack reports that its ranks have left when the first one has",
        "server/control/racks/rack_jobs.cc", "std::ranges::all_of(job.members, has_left)",
        "std::ranges::any_of(job.members, has_left)", CONTROL),
)
