// A core loop as control sees it: tests pop, count and answer the commands in its queues.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <vector>

#include "server/control/core_link.h"

namespace phub::server {

struct FakeCore {
  CoreQueues queues;
  CoreCounters counters;
  int wakes = 0;
  std::vector<Command> executed;
  std::vector<Command> attached;  // lanes that are not closed yet
  bool stopped = false;           // executes nothing
  bool keeps_keys = false;        // executes kRemoveKeys without answering
  bool silent_on_stalls = false;  // executes kReportStalls without answering
  std::function<void(StallReport&)> fill_stalls;
  std::function<void(const Command&)> execute_more;  // called before a command is acknowledged

  void Emit(const Event& event) { ASSERT_TRUE(queues.events.TryPush(event)); }

  // `lane` may refer to an element of `attached`.
  void CloseLane(const Command lane, transport::TransportError error, bool refused = false) {
    std::erase_if(attached,
                  [&](const Command& each) { return each.connection == lane.connection; });
    Emit({.kind = Event::Kind::kLaneClosed,
          .error = error,
          .refused = refused,
          .source = lane.owner,
          .shard = lane.shard,
          .connection = lane.connection});
  }
  void LoseLane(const Command lane, transport::TransportError error, bool refused = false) {
    Emit({.kind = Event::Kind::kFault,
          .code = FaultCode::kLaneLost,
          .error = error,
          .refused = refused,
          .source = lane.owner,
          .key = KeyIndex::Max(),
          .shard = lane.shard});
    CloseLane(lane, error, refused);
  }

  void Run() {
    Command command;
    while (!stopped && queues.commands.TryPop(command)) {
      executed.push_back(command);
      Execute(command);
      counters.commands_done.fetch_add(1, std::memory_order_release);
    }
  }

  std::vector<Command> Executed(Command::Kind kind) const {
    std::vector<Command> found;
    std::copy_if(executed.begin(), executed.end(), std::back_inserter(found),
                 [&](const Command& command) { return command.kind == kind; });
    return found;
  }

 private:
  void Execute(const Command& command) {
    if (execute_more) execute_more(command);
    if (command.kind == Command::Kind::kAttachLane) attached.push_back(command);
    if (command.kind == Command::Kind::kReportStalls && !silent_on_stalls) {
      command.report->count = 0;
      command.report->across.reset();
      if (fill_stalls) fill_stalls(*command.report);
      Emit(
          {.kind = Event::Kind::kStallsReported, .shard = command.shard, .report = command.report});
    }
    if (command.kind == Command::Kind::kRemoveKeys && !keeps_keys) {
      Emit({.kind = Event::Kind::kKeysRemoved, .shard = command.shard, .removal = command.removal});
    }
    if (command.kind != Command::Kind::kEndJob) return;
    const std::vector<Command> lanes = attached;
    for (const Command& lane : lanes) {
      if (lane.shard == command.shard) CloseLane(lane, transport::TransportError::kLocalClosed);
    }
    Emit({.kind = Event::Kind::kJobEnded, .shard = command.shard});
  }
};

}  // namespace phub::server
