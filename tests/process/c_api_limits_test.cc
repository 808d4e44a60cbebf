// The C functions of phub.h: wrong arguments, other versions of the structs, logs, and forked
// children.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "tests/process/c_api_fixture.h"

namespace phub::process {
namespace {
bool in_forked_child = false;
}  // namespace
}  // namespace phub::process

// The leak checker calls it at exit. In a forked child it would report what only the stacks of the
// parent's threads, such as gRPC's, refer to.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return phub::process::in_forked_child; }

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

TEST_F(CApi, WrongArgumentsAreRefusedByName) {
  phub_job* job = nullptr;
  phub_job_options options{};
  options.job = "wrong";
  EXPECT_EQ(phub_session_join(session_.get(), &options, &job, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("phub_job_options_init"));
  options = OptionsOf("wrong", 3, 2);
  EXPECT_EQ(phub_session_join(session_.get(), &options, &job, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_STREQ(phub_error_job(error_.error), "wrong");
  EXPECT_EQ(phub_error_rank(error_.error), 3);
  options = OptionsOf("wrong", 0, 1);
  options.transport = 9;
  EXPECT_EQ(phub_session_join(session_.get(), &options, &job, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("transport is 9"));
  EXPECT_EQ(phub_session_join(nullptr, &options, &job, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_connect("nowhere", nullptr, nullptr, nullptr), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_handle_wait(nullptr, 0, nullptr), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_handle_explain(nullptr, nullptr), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_job_explain_barrier(nullptr, nullptr), PHUB_INVALID_ARGUMENT);

  const JobPointer joined = JoinAs(session_.get(), OptionsOf("right", 0, 1));
  phub_optimizer sgd;
  phub_optimizer_init(&sgd, sizeof(sgd), PHUB_SGD);
  sgd.learning_rate = 1.0;
  sgd.momentum = 0.9;
  phub_key_spec spec;
  phub_key_spec_init(&spec, sizeof(spec));
  spec.name = "w";
  spec.element_count = 10;
  spec.optimizer = &sgd;
  phub_key* key = nullptr;
  EXPECT_EQ(phub_job_add_keys(joined.get(), &spec, 1, &key, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("momentum is 0.9"));
  sgd.momentum = 0.0;
  spec.type = 12;
  EXPECT_EQ(phub_job_add_keys(joined.get(), &spec, 1, &key, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("key w: type is 12"));
  EXPECT_EQ(key, nullptr);
}

TEST_F(CApi, OptimizersOfOlderProgramsHaveNoAlpha) {
  struct Older {
    phub_optimizer values;  // without the last member
    double guard;
  } older;
  constexpr std::size_t kOlderSize = offsetof(phub_optimizer, alpha);
  older.values.alpha = 7.0;
  phub_optimizer_init(&older.values, kOlderSize, PHUB_ADAM);
  EXPECT_EQ(older.values.alpha, 7.0);
  phub_key_spec spec;
  phub_key_spec_init(&spec, sizeof(spec));
  spec.name = "w";
  spec.element_count = 10;
  spec.optimizer = &older.values;
  const JobPointer job = JoinAs(session_.get(), OptionsOf("older", 0, 1));
  phub_key* key = nullptr;
  EXPECT_EQ(phub_job_add_keys(job.get(), &spec, 1, &key, error_.Out()), PHUB_OK)
      << error_.message();
  phub_key_free(key);

  phub_optimizer now;
  phub_optimizer_init(&now, sizeof(now), PHUB_RMSPROP_MOMENTUM);
  EXPECT_EQ(now.alpha, 0.99);
  now.kind = 1000;
  spec.name = "x";
  spec.optimizer = &now;
  EXPECT_EQ(phub_job_add_keys(job.get(), &spec, 1, &key, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("kind is 1000; it must be 0 to "));
}

TEST_F(CApi, StructsOfNewerProgramsAreReadIfTheirNewFieldsAreUnused) {
  struct Newer {
    phub_job_options options;
    std::int64_t added;
  } newer;
  phub_job_options_init(&newer.options, sizeof(newer));
  EXPECT_EQ(newer.added, 0);
  EXPECT_EQ(newer.options.leave_timeout_ms, 5000);
  newer.options.job = "newer";
  newer.added = 1;
  phub_job* job = nullptr;
  EXPECT_EQ(phub_session_join(session_.get(), &newer.options, &job, error_.Out()),
            PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("install a newer"));
  newer.added = 0;
  ASSERT_EQ(phub_session_join(session_.get(), &newer.options, &job, error_.Out()), PHUB_OK)
      << error_.message();
  phub_job_free(job);
}

TEST_F(CApi, KeysMoveAndOlderProgramsKnowOnlyTheFirstMovement) {
  phub_handle* handles[2];
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    jobs_[rank] = JoinAs(session_.get(), OptionsOf("moves", rank, 2));
    ASSERT_NE(jobs_[rank], nullptr);
    phub_key_spec specs[3];
    for (phub_key_spec& spec : specs) {
      phub_key_spec_init(&spec, sizeof(spec));
      spec.element_count = 6;
    }
    specs[0].name = "gathered";
    specs[1].name = "scattered";
    specs[2].name = "from_root";
    specs[0].movement = 7;
    phub_key* keys[3];
    EXPECT_EQ(phub_job_add_keys(jobs_[rank].get(), specs, 3, keys, error_.Out()),
              PHUB_INVALID_ARGUMENT);
    EXPECT_THAT(error_.message(), HasSubstr("key gathered: movement is 7"));
    specs[0].movement = PHUB_GATHER;
    specs[1].movement = PHUB_REDUCE_SCATTER;
    specs[2].movement = PHUB_SCATTER;
    specs[2].root = 2;
    EXPECT_EQ(phub_job_add_keys(jobs_[rank].get(), specs, 3, keys, error_.Out()),
              PHUB_INVALID_ARGUMENT);
    EXPECT_THAT(error_.message(), HasSubstr("key from_root: root is 2"));
    // Memory that the caller gives has as many elements as this rank sends and receives.
    static float memory[2][9];
    specs[2].root = 1;
    specs[2].gradients = rank == 1 ? memory[rank] : nullptr;
    specs[2].parameters = memory[rank] + 6;
    ASSERT_EQ(phub_job_add_keys(jobs_[rank].get(), specs, 3, keys, error_.Out()), PHUB_OK)
        << error_.message();
    EXPECT_EQ(phub_key_gradients(keys[0]).count, 3u);
    EXPECT_EQ(phub_key_parameters(keys[1]).count, 3u);
    EXPECT_EQ(phub_key_gradients(keys[2]).count, rank == 1 ? 6u : 0u);
    EXPECT_EQ(phub_key_parameters(keys[2]).count, 3u);
    keys_[rank] = KeyPointer(keys[0]);
    phub_key_free(keys[1]);
    phub_key_free(keys[2]);
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    handles[rank] = Push(keys_[rank].get(), static_cast<float>(rank + 1)).release();
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(phub_handle_wait(handles[rank], -1, error_.Out()), PHUB_OK) << error_.message();
    EXPECT_THAT(ParametersOf(keys_[rank].get()), ::testing::ElementsAre(1, 1, 1, 2, 2, 2));
    phub_handle_free(handles[rank]);
  }
  // A program that was compiled before there were movements: what follows its struct is not read.
  phub_key_spec older;
  phub_key_spec_init(&older, sizeof(older));
  older.name = "older";
  older.element_count = 7;
  older.struct_size = offsetof(phub_key_spec, movement);
  older.movement = PHUB_GATHER;
  phub_key* key = nullptr;
  ASSERT_EQ(phub_job_add_keys(jobs_[0].get(), &older, 1, &key, error_.Out()), PHUB_OK)
      << error_.message();
  EXPECT_EQ(phub_key_gradients(key).count, 7u);
  phub_key_free(key);
}

struct Lines {
  std::mutex mutex;
  std::vector<std::string> lines;
};

TEST_F(CApi, LogLinesGoToTheCallbackFromTheChosenLevelOn) {
  Lines seen;
  phub_set_log_callback(
      [](void* context, std::int32_t level, const char* line) {
        auto* const lines = static_cast<Lines*>(context);
        const std::lock_guard lock(lines->mutex);
        lines->lines.push_back(std::to_string(level) + " " + line);
      },
      &seen);
  EXPECT_EQ(phub_set_log_level(5, error_.Out()), PHUB_INVALID_ARGUMENT);
  ASSERT_EQ(phub_set_log_level(PHUB_LOG_WARNING, error_.Out()), PHUB_OK);
  JoinAs(session_.get(), OptionsOf("quiet", 0, 1));
  EXPECT_THAT(seen.lines, ::testing::IsEmpty());
  ASSERT_EQ(phub_set_log_level(PHUB_LOG_INFO, error_.Out()), PHUB_OK);
  JoinAs(session_.get(), OptionsOf("loud", 0, 1));
  phub_set_log_callback(nullptr, nullptr);
  ASSERT_EQ(phub_set_log_level(PHUB_LOG_WARNING, error_.Out()), PHUB_OK);
  EXPECT_THAT(seen.lines, Contains(AllOf(HasSubstr("1 event=lane_opened"), HasSubstr("job=loud"))));
}

// Runs `body` in a forked child. Returns its exit status, or -1 if it hangs.
template <typename Body>
int InChild(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    in_forked_child = true;
    body();
  }
  int status = 0;
  for (int i = 0; i < 500; ++i) {
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    Sleep(10 * kMillisecond);
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

TEST_F(CApi, AForkedChildIsRefusedAndDisturbsNothing) {
  JoinBoth("forked");
  HandlePointer pending = Push(keys_[0].get(), 1.0f);
  const int status = InChild([&] {
    phub_handle* handle = nullptr;
    phub_session* session = nullptr;
    phub_job* job = nullptr;
    const phub_job_options options = OptionsOf("child", 0, 1);
    int wrong = 0;
    wrong += phub_handle_wait(pending.get(), -1, nullptr) != PHUB_FAILED_PRECONDITION;
    wrong += phub_key_push_pull(keys_[1].get(), &handle, nullptr) != PHUB_FAILED_PRECONDITION;
    wrong += phub_job_barrier(jobs_[0].get(), nullptr) != PHUB_FAILED_PRECONDITION;
    wrong += phub_job_leave(jobs_[0].get(), nullptr) != PHUB_FAILED_PRECONDITION;
    wrong += phub_job_status(jobs_[0].get(), nullptr) != PHUB_FAILED_PRECONDITION;
    wrong += phub_session_join(session_.get(), &options, &job, nullptr) != PHUB_FAILED_PRECONDITION;
    wrong += phub_connect("127.0.0.1:1", nullptr, &session, nullptr) != PHUB_FAILED_PRECONDITION;
    pending.reset();
    for (int rank = 0; rank < 2; ++rank) {
      keys_[rank].reset();
      jobs_[rank].reset();
    }
    session_.reset();
    std::exit(wrong);  // with destructors of static objects, gRPC's among them
  });
  EXPECT_EQ(status, 0);
  const HandlePointer second = Push(keys_[1].get(), 2.0f);
  EXPECT_EQ(phub_handle_wait(pending.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  EXPECT_EQ(phub_handle_wait(second.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  EXPECT_EQ(phub_job_status(jobs_[0].get(), error_.Out()), PHUB_OK) << error_.message();
  EXPECT_THAT(ParametersOf(keys_[0].get()), Each(3.0f));
}

TEST(CApiNames, ResultsAndVersions) {
  EXPECT_STREQ(phub_version(), "0.1.0");
  EXPECT_STREQ(phub_result_name(PHUB_FAILED_PRECONDITION), "FAILED_PRECONDITION");
  EXPECT_STREQ(phub_result_name(99), "UNKNOWN");
  EXPECT_EQ(phub_error_result(nullptr), PHUB_OK);
  EXPECT_STREQ(phub_error_message(nullptr), "");
  EXPECT_EQ(phub_error_rank(nullptr), -1);
}

}  // namespace
}  // namespace phub::process
