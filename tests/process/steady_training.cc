#include "tests/process/steady_training.h"

#include <utility>

#include "common/base/clock.h"

namespace phub::process {

SteadyTraining::SteadyTraining(std::vector<std::string> endpoints, const JobOptions& job,
                               DurationNs pause)
    : endpoints_(std::move(endpoints)), job_(job), pause_(pause) {
  for (std::uint32_t rank = 0; rank < job_.world_size; ++rank) {
    JobOptions own = job_;
    own.rank = rank;
    const std::string& endpoint = endpoints_[rank * endpoints_.size() / job_.world_size];
    ranks_.push_back(
        std::async(std::launch::async, [this, endpoint, own] { return Train(endpoint, own); }));
  }
}

bool SteadyTraining::WaitFor(std::uint64_t iteration) const {
  for (int i = 0; i < 3000 && iteration_ < iteration; ++i) Sleep(10 * kMillisecond);
  return iteration_ >= iteration;
}

std::string SteadyTraining::Finish() {
  last_ = iteration_ + 20;
  std::vector<Trained> trained;
  for (auto& rank : ranks_) trained.push_back(rank.get());
  for (const Trained& each : trained) {
    if (!each.problem.empty()) return each.problem;
  }
  JobOptions undisturbed = job_;
  undisturbed.job += "-undisturbed";
  const Trained expected = TrainUndisturbed(endpoints_, undisturbed, last_);
  if (!expected.problem.empty()) return expected.problem;
  for (const Trained& each : trained) {
    if (each.parameters != expected.parameters) return "the parameters are wrong";
  }
  return "";
}

bool SteadyTraining::GoesOnFor(DurationNs time) const {
  const std::uint64_t before = iteration_;
  Sleep(time * 3 / 4);
  const std::uint64_t middle = iteration_;
  Sleep(time / 4);
  return before < middle && middle < iteration_;
}

Trained SteadyTraining::Train(const std::string& endpoint, const JobOptions& job) {
  Result<Trainer> trainer = Trainer::Start(endpoint, job);
  if (!trainer.ok()) return {.parameters = {}, .problem = ToString(trainer.status())};
  while (trainer->iteration() < last_) {
    if (Status status = trainer->Iterate(); !status.ok()) {
      return {.parameters = {}, .problem = ToString(status)};
    }
    if (job.rank == 0) iteration_ = trainer->iteration();
    Sleep(pause_);
  }
  return {.parameters = trainer->Parameters(), .problem = {}};
}

}  // namespace phub::process
