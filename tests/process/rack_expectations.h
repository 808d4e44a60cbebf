// What process tests of racks expect when a process dies: each worker's error, the time until it
// arrives, and that all memory is freed. `trainers`: processes of StartTrainer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"

namespace phub::process {

using Words = std::vector<std::string>;

// All trainers make progress in time.
void ExpectTraining(std::vector<Process>& trainers, const RackProcess& racks);
// All trainers succeed.
void ExpectDone(std::vector<Process>& trainers, const RackProcess& racks);
// Each trainer except `but` ends with an error that contains its words. The time limit is the
// liveness timeout (2 s), plus the diagnosis and the delays of a busy machine.
void ExpectVerdicts(std::vector<Process>& trainers, const std::vector<Words>& words,
                    const RackProcess& racks, std::size_t but = SIZE_MAX);
// The same words for all trainers.
void ExpectVerdict(std::vector<Process>& trainers, const Words& words, const RackProcess& racks,
                   std::size_t but = SIZE_MAX);
// A daemon soon has no memory reserved for the job any more.
void ExpectMemoryBack(const RackProcess& racks, std::size_t daemon,
                      const std::string& job = "training",
                      const std::vector<std::string>& environment = {});
// The value of one daemon's counter.
std::uint64_t CountedAt(const RackProcess& racks, std::size_t daemon, const std::string& counter);

}  // namespace phub::process
