// phubctl server drain and undrain, and job evict, against workers that train.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/rack_process.h"
#include "tests/process/trainer.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

constexpr DurationNs kPatience = 60 * kSecond;

class Draining : public ::testing::Test {
 protected:
  Draining() : rack_(2, {"--cores", "1", "--pin", "off"}) {}
  void SetUp() override { ASSERT_TRUE(rack_.serving()) << rack_.Outputs(); }

  void Train() {
    trainers_ = StartTrainers({.endpoint = rack_.endpoint(0),
                               .job = "training",
                               .world_size = 2,
                               .iterations = 1'000'000,
                               .more = {"--pause-ms", "1"},
                               .environment = {"PHUB_LOG_LEVEL=info"}});
    for (Process& trainer : trainers_)
      ASSERT_TRUE(WaitForIteration(trainer, 10, kPatience)) << trainer.Outputs();
  }
  std::string TryAnotherJob() {
    return TrainUndisturbed(rack_.endpoint(0), {.job = "another"}, 3).problem;
  }
  // Both workers end with an error that contains these words.
  void ExpectVerdict(DurationNs timeout, const std::vector<std::string>& words) {
    for (Process& trainer : trainers_) {
      ASSERT_EQ(trainer.Wait(timeout), Exit::WithCode(1)) << trainer.Outputs();
      for (const std::string& word : words) EXPECT_THAT(VerdictOf(trainer), HasSubstr(word));
    }
  }

  RackProcess rack_;
  std::vector<Process> trainers_;
};

TEST_F(Draining, NewJobsAreRefusedAndWhatIsLeftAtTheDeadlineFailsByName) {
  Train();
  // Expect: commands that end jobs ask for confirmation if they run on a terminal.
  const Finished unasked = rack_.Ask(1, {"server", "drain", "--deadline", "6s"});
  EXPECT_EQ(unasked.exit, Exit::WithCode(2));
  EXPECT_THAT(unasked.error, HasSubstr("1 job(s) that are not done within 6"));
  EXPECT_THAT(unasked.error, HasSubstr("--yes"));
  const Finished drained = rack_.Ask(1, {"server", "drain", "--deadline", "6s", "--yes"});
  ASSERT_EQ(drained.exit, Exit::WithCode(0)) << drained.error;
  EXPECT_THAT(drained.output, HasSubstr("draining"));
  EXPECT_THAT(rack_.Ask(0, {"server", "list"}).output, HasSubstr("draining: "));
  // Expect: the job learns of the drain and continues; another job is refused, with its name and
  // the time left.
  for (Process& trainer : trainers_) {
    EXPECT_TRUE(trainer.WaitForOutput("event=daemon_draining", kPatience)) << trainer.Outputs();
    EXPECT_TRUE(WaitForIteration(trainer, IterationsOf(trainer) + 20, kPatience));
  }
  const std::string refusal = TryAnotherJob();
  EXPECT_THAT(refusal, HasSubstr(rack_.endpoint(1)));
  EXPECT_THAT(refusal, HasSubstr("drain"));
  EXPECT_THAT(refusal, ::testing::ContainsRegex("[0-9.]+ m?s"));
  ExpectVerdict(kPatience, {"training", "drain", "in time"});
  // Expect: the daemon stays drained until it is undrained.
  EXPECT_THAT(TryAnotherJob(), HasSubstr("drain"));
  EXPECT_EQ(rack_.Ask(1, {"server", "undrain"}).exit, Exit::WithCode(0));
  EXPECT_EQ(TryAnotherJob(), "") << rack_.Outputs();
}

TEST_F(Draining, AJobSurvivesADrainThatIsTakenBack) {
  Train();
  ASSERT_EQ(rack_.Ask(0, {"server", "drain", "--deadline", "4s", "--yes"}).exit, Exit::WithCode(0));
  const std::string refusal = TryAnotherJob();
  EXPECT_THAT(refusal, HasSubstr("drain"));
  ASSERT_EQ(rack_.Ask(0, {"server", "undrain"}).exit, Exit::WithCode(0));
  for (Process& trainer : trainers_) {
    EXPECT_TRUE(trainer.WaitForOutput("event=daemon_undrained", kPatience)) << trainer.Outputs();
    EXPECT_FALSE(trainer.Wait(5 * kSecond / 2).has_value()) << trainer.Outputs();
  }
  EXPECT_EQ(TryAnotherJob(), "") << rack_.Outputs();
}

TEST_F(Draining, AnEvictedJobEndsAtAllItsWorkersWithTheReason) {
  Train();
  const Finished evicted =
      rack_.Ask(1, {"job", "evict", "training", "--yes", "--reason", "rack 7 is moved"});
  EXPECT_EQ(evicted.exit, Exit::WithCode(0)) << evicted.error;
  ExpectVerdict(kPatience, {"training", "evicted", "rack 7 is moved"});
  for (const std::size_t daemon : {0u, 1u})
    EXPECT_THAT(rack_.Ask(daemon, {"job", "get", "training", "-o", "json"}).output,
                HasSubstr("\"memory_bytes\": \"0\""));
  // Expect: the name is free.
  Train();
}

}  // namespace
}  // namespace phub::process
