// What process tests of racks expect when something in them dies: who is told what, how soon, and
// that nothing is held on to. `trainers`: processes of StartTrainer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"

namespace phub::process {

using Words = std::vector<std::string>;

// All of them have come some way within the time.
void ExpectTraining(std::vector<Process>& trainers, const RackProcess& racks);
// All of them end well.
void ExpectDone(std::vector<Process>& trainers, const RackProcess& racks);
// Each but `but` ends within the liveness timeout (2 s) and what a diagnosis and a busy machine
// add, with an error that holds its words.
void ExpectVerdicts(std::vector<Process>& trainers, const std::vector<Words>& words,
                    const RackProcess& racks, std::size_t but = SIZE_MAX);
// The same words for all.
void ExpectVerdict(std::vector<Process>& trainers, const Words& words, const RackProcess& racks,
                   std::size_t but = SIZE_MAX);
// A daemon soon has no memory reserved for the job any more.
void ExpectMemoryBack(const RackProcess& racks, std::size_t daemon,
                      const std::string& job = "training",
                      const std::vector<std::string>& environment = {});
// What one daemon has counted.
std::uint64_t CountedAt(const RackProcess& racks, std::size_t daemon, const std::string& counter);

}  // namespace phub::process
