#include "tests/process/rack_expectations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace phub::process {

using ::testing::HasSubstr;

namespace {

constexpr DurationNs kTrainerPatience = 60 * kSecond;
constexpr DurationNs kNoticeLimit = 60 * kSecond;
constexpr DurationNs kMemoryLimit = 60 * kSecond;

}  // namespace

void ExpectTraining(std::vector<Process>& trainers, const RackProcess& racks) {
  for (Process& trainer : trainers) {
    ASSERT_TRUE(WaitForIteration(trainer, 20, kTrainerPatience))
        << trainer.Outputs() << racks.Outputs();
  }
}

void ExpectDone(std::vector<Process>& trainers, const RackProcess& racks) {
  for (Process& trainer : trainers) {
    EXPECT_EQ(trainer.Wait(kTrainerPatience), Exit::WithCode(0))
        << trainer.Outputs() << racks.Outputs();
  }
}

void ExpectVerdicts(std::vector<Process>& trainers, const std::vector<Words>& words,
                    const RackProcess& racks, std::size_t but) {
  ASSERT_EQ(words.size(), trainers.size());
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + kNoticeLimit;
  for (std::size_t i = 0; i < trainers.size(); ++i) {
    if (i == but) continue;
    const auto exit = trainers[i].Wait(std::max<DurationNs>(0, deadline - clock.Now()));
    ASSERT_TRUE(exit.has_value()) << "hangs: " << trainers[i].Outputs() << racks.Outputs();
    EXPECT_EQ(exit, Exit::WithCode(1)) << trainers[i].Outputs();
    for (const std::string& word : words[i]) EXPECT_THAT(VerdictOf(trainers[i]), HasSubstr(word));
  }
}

void ExpectVerdict(std::vector<Process>& trainers, const Words& words, const RackProcess& racks,
                   std::size_t but) {
  ExpectVerdicts(trainers, std::vector<Words>(trainers.size(), words), racks, but);
}

void ExpectMemoryBack(const RackProcess& racks, std::size_t daemon, const std::string& job,
                      const std::vector<std::string>& environment) {
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + kMemoryLimit;
  Finished answer;
  do {
    answer = racks.Ask(daemon, {"job", "get", job, "-o", "json"}, environment);
    if (answer.output.find("\"memory_bytes\": \"0\"") != std::string::npos) return;
  } while (clock.Now() < deadline);
  ADD_FAILURE() << racks.endpoint(daemon) << ": " << answer.output << answer.error;
}

std::uint64_t CountedAt(const RackProcess& racks, std::size_t daemon, const std::string& counter) {
  const std::string stats = racks.Ask(daemon, {"stats", "--all"}).output;
  const std::size_t at = stats.find(counter);
  if (at == std::string::npos) return 0;
  return std::stoull(stats.substr(stats.rfind(' ', stats.find('\n', at)) + 1));
}

}  // namespace phub::process
