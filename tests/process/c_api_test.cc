// Training through the C functions of phub.h against a real daemon: everything that the C++ API
// does, completion queues, and the fields of errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/c_api_fixture.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST_F(CApi, TrainsWithAnOptimizerAndChangesItsRate) {
  phub_optimizer sgd;
  phub_optimizer_init(&sgd, sizeof(sgd), PHUB_SGD);
  sgd.learning_rate = 0.5;
  JoinBoth("sgd", &sgd);
  EXPECT_STREQ(phub_job_name(jobs_[0].get()), "sgd");
  EXPECT_EQ(phub_job_world_size(jobs_[0].get()), 2u);
  EXPECT_NE(phub_job_created(jobs_[0].get()), 0);
  EXPECT_EQ(phub_job_created(jobs_[1].get()), 0);
  EXPECT_STREQ(phub_job_transports(jobs_[1].get()), "shm");
  const std::vector<float> initial(kElements, 8.0f);
  const phub_const_elements values{initial.data(), initial.size(), PHUB_F32, 0};
  std::thread other([this] {
    EXPECT_EQ(phub_job_initialize(jobs_[1].get(), keys_[1].get(), nullptr, nullptr), PHUB_OK);
  });
  EXPECT_EQ(phub_job_initialize(jobs_[0].get(), keys_[0].get(), &values, error_.Out()), PHUB_OK)
      << error_.message();
  other.join();
  // Receive 2 and 4 from the ranks, whose mean is 3. Expect: 8 - 0.5 * 3.
  const auto round = [this] {
    const HandlePointer first = Push(keys_[0].get(), 2.0f);
    const HandlePointer second = Push(keys_[1].get(), 4.0f);
    EXPECT_EQ(phub_handle_wait(first.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
    EXPECT_EQ(phub_handle_wait(second.get(), -1, error_.Out()), PHUB_OK) << error_.message();
    EXPECT_NE(phub_handle_test(first.get()), 0);
  };
  round();
  EXPECT_THAT(ParametersOf(keys_[1].get()), Each(6.5f));
  sgd.learning_rate = 1.0;
  for (const KeyPointer& key : keys_)
    EXPECT_EQ(phub_key_set_hyper_parameters(key.get(), &sgd, error_.Out()), PHUB_OK);
  round();
  EXPECT_THAT(ParametersOf(keys_[0].get()), Each(3.5f));
  EXPECT_EQ(phub_job_iteration(jobs_[0].get()), 2u);
  EXPECT_EQ(phub_key_iteration(keys_[0].get()), 3u);  // Initialize is a round, too
  for (const JobPointer& job : jobs_)
    EXPECT_EQ(phub_job_leave(job.get(), error_.Out()), PHUB_OK) << error_.message();
  EXPECT_EQ(phub_key_push_pull(keys_[0].get(), nullptr, nullptr), PHUB_INVALID_ARGUMENT);
}

TEST_F(CApi, BundlesBroadcastsTheCallersMemoryAndCheckpoints) {
  const TemporaryFolder folder;
  const JobPointer job = JoinAs(session_.get(), OptionsOf("bundle", 0, 1));
  phub_optimizer adam;
  phub_optimizer_init(&adam, sizeof(adam), PHUB_ADAM);
  EXPECT_EQ(adam.beta2, 0.999);
  const std::uint64_t tensors[] = {100, 28};
  phub_key_spec spec;
  phub_key_spec_init(&spec, sizeof(spec));
  spec.name = "bundle";
  spec.tensors = tensors;
  spec.tensor_count = 2;
  spec.optimizer = &adam;
  phub_key* added = nullptr;
  ASSERT_EQ(phub_job_add_keys(job.get(), &spec, 1, &added, error_.Out()), PHUB_OK)
      << error_.message();
  const KeyPointer key(added);
  EXPECT_EQ(phub_key_element_count(key.get()), 128u);
  ASSERT_EQ(phub_key_tensor_count(key.get()), 2u);
  phub_elements gradients{};
  ASSERT_EQ(phub_key_tensor(key.get(), 1, &gradients, nullptr, error_.Out()), PHUB_OK);
  EXPECT_EQ(gradients.count, 28u);
  EXPECT_EQ(phub_key_tensor(key.get(), 2, &gradients, nullptr, error_.Out()), PHUB_OUT_OF_RANGE);
  EXPECT_STREQ(phub_error_key(error_.error), "bundle");

  const std::vector<float> values(128, 3.0f);
  const phub_const_elements view{values.data(), values.size(), PHUB_F32, 0};
  phub_handle* started = nullptr;
  ASSERT_EQ(phub_job_broadcast(job.get(), key.get(), 0, &view, &started, error_.Out()), PHUB_OK);
  HandlePointer handle(started);
  EXPECT_EQ(phub_handle_wait(handle.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  EXPECT_THAT(ParametersOf(key.get()), Each(3.0f));

  std::vector<float> result(128);
  const phub_elements target{result.data(), result.size(), PHUB_F32, 0};
  ASSERT_EQ(phub_key_push_pull_with(key.get(), &view, &target, &started, error_.Out()), PHUB_OK)
      << error_.message();
  handle.reset(started);
  EXPECT_EQ(phub_handle_wait(handle.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  EXPECT_THAT(result, Each(::testing::FloatNear(3.0f - 1e-3f, 1e-6f)));
  ASSERT_EQ(phub_key_pull(key.get(), &started, error_.Out()), PHUB_OK);
  handle.reset(started);
  EXPECT_EQ(phub_handle_cancel(handle.get(), error_.Out()), PHUB_FAILED_PRECONDITION);

  std::uint64_t iteration = 0;
  ASSERT_EQ(phub_job_save_checkpoint(job.get(), (folder.path() + "/state").c_str(), &iteration,
                                     error_.Out()),
            PHUB_OK)
      << error_.message();
  EXPECT_EQ(iteration, 1u);
  ASSERT_EQ(phub_job_load_checkpoint(job.get(), (folder.path() + "/state").c_str(), &iteration,
                                     error_.Out()),
            PHUB_OK)
      << error_.message();
  const std::string copy = folder.path() + "/copy";
  ASSERT_EQ(phub_job_save_copy(job.get(), copy.c_str(), &iteration, error_.Out()), PHUB_OK)
      << error_.message();
  ASSERT_EQ(phub_job_load_copy(job.get(), copy.c_str(), &iteration, error_.Out()), PHUB_OK)
      << error_.message();
  EXPECT_EQ(iteration, 1u);
  EXPECT_EQ(phub_job_save_copy(job.get(), nullptr, &iteration, error_.Out()),
            PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_job_barrier(job.get(), error_.Out()), PHUB_OK) << error_.message();
}

TEST_F(CApi, CollectiveKeysAreRemovedOnEveryRankAndAddedAgain) {
  JoinBoth("removes");
  phub_key_spec spec;
  phub_key_spec_init(&spec, sizeof(spec));
  spec.name = "scratch";
  spec.element_count = kElements;
  spec.collective = 1;
  for (int i = 1; i <= 3; ++i) {
    KeyPointer scratch[2];
    HandlePointer handles[2];
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      phub_key* key = nullptr;
      ASSERT_EQ(phub_job_add_keys(jobs_[rank].get(), &spec, 1, &key, error_.Out()), PHUB_OK)
          << error_.message();
      scratch[rank].reset(key);
      handles[rank] = Push(key, static_cast<float>(i));
    }
    for (const HandlePointer& handle : handles)
      ASSERT_EQ(phub_handle_wait(handle.get(), kPatience, error_.Out()), PHUB_OK);
    EXPECT_THAT(ParametersOf(scratch[1].get()), Each(2.0f * static_cast<float>(i)));
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([this, rank, key = scratch[rank].get()] {
        Error error;
        EXPECT_EQ(phub_job_remove_keys(jobs_[rank].get(), &key, 1, error.Out()), PHUB_OK)
            << error.message();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    phub_handle* handle = nullptr;
    EXPECT_EQ(phub_key_push_pull(scratch[0].get(), &handle, error_.Out()),
              PHUB_FAILED_PRECONDITION);
    EXPECT_THAT(error_.message(), HasSubstr("removed with RemoveKeys"));
  }
  phub_key* const weight = keys_[0].get();
  EXPECT_EQ(phub_job_remove_keys(jobs_[0].get(), &weight, 1, error_.Out()),
            PHUB_FAILED_PRECONDITION);
  EXPECT_THAT(error_.message(), HasSubstr("key fc1.weight of job removes is not collective"));
  phub_key* const missing = nullptr;
  EXPECT_EQ(phub_job_remove_keys(jobs_[0].get(), &missing, 1, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_job_remove_keys(jobs_[0].get(), nullptr, 1, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_job_remove_keys(nullptr, nullptr, 0, error_.Out()), PHUB_INVALID_ARGUMENT);
}

TEST_F(CApi, IterationsAreSkippedOnRequest) {
  phub_job_options options = OptionsOf("skip", 0, 1);
  options.apply = PHUB_APPLY_ITERATION;
  const JobPointer job = JoinAs(session_.get(), options);
  const KeyPointer key = AddKey(job.get(), "w", nullptr, 100);
  phub_handle* started = nullptr;
  ASSERT_EQ(phub_key_push_pull_to_skip(key.get(), &started, error_.Out()), PHUB_OK);
  const HandlePointer handle(started);
  EXPECT_EQ(phub_handle_wait(handle.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  phub_iteration_outcome outcome{};
  EXPECT_EQ(phub_job_last_iteration(job.get(), &outcome, error_.Out()), PHUB_INVALID_ARGUMENT);
  outcome.struct_size = sizeof(outcome);
  ASSERT_EQ(phub_job_last_iteration(job.get(), &outcome, error_.Out()), PHUB_OK);
  EXPECT_EQ(outcome.skipped, 1u);
  EXPECT_EQ(outcome.last_skipped, 1);
}

TEST_F(CApi, SumsInFixedPointAreAnOption) {
  phub_job_options options = OptionsOf("fixed", 0, 2);
  options.sum = PHUB_SUM_FIXED;
  options.sum_block = 64;
  const JobPointer job = JoinAs(session_.get(), options);
  ASSERT_NE(job, nullptr);
  const auto refusal = [&] {
    phub_job* none = nullptr;
    EXPECT_NE(phub_session_join(session_.get(), &options, &none, error_.Out()), PHUB_OK);
    EXPECT_EQ(none, nullptr);
    return error_.message();
  };
  options.rank = 1;
  options.sum_block = 32;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("sum_block 32"), HasSubstr("with 64")));
  options.sum = 2;
  EXPECT_THAT(refusal(), HasSubstr("sum is 2; it must be 0 to 1"));
  // Expect: a program that was built before the option existed gets sums of floats.
  options.struct_size = offsetof(phub_job_options, sum);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("sum float"), HasSubstr("with fixed")));
}

TEST_F(CApi, GradientsAreCompressedAndWhatIsLeftOutIsSentLater) {
  const JobPointer job = JoinAs(session_.get(), OptionsOf("compressed", 0, 1));
  ASSERT_NE(job, nullptr);
  phub_key_spec spec;
  phub_key_spec_init(&spec, sizeof spec);
  spec.name = "w";
  spec.element_count = 4;
  spec.compression = PHUB_COMPRESSION_TOPK;
  spec.kept = 0.25;
  KeyPointer key;
  phub_key* added = nullptr;
  ASSERT_EQ(phub_job_add_keys(job.get(), &spec, 1, &added, error_.Out()), PHUB_OK)
      << error_.message();
  key.reset(added);
  auto* const gradients = static_cast<float*>(phub_key_gradients(key.get()).data);
  const auto* const sums = static_cast<const float*>(phub_key_parameters(key.get()).data);
  const auto push = [&](std::vector<float> values) {
    std::copy(values.begin(), values.end(), gradients);
    phub_handle* handle = nullptr;
    EXPECT_EQ(phub_key_push_pull(key.get(), &handle, error_.Out()), PHUB_OK) << error_.message();
    EXPECT_EQ(phub_handle_wait(handle, -1, error_.Out()), PHUB_OK) << error_.message();
    EXPECT_NE(phub_handle_cancel(handle, error_.Out()), PHUB_OK);
    EXPECT_THAT(error_.message(), HasSubstr("error feedback cannot be cancelled"));
    phub_handle_free(handle);
    EXPECT_EQ(std::vector<float>(gradients, gradients + 4), values) << "they stay as they are";
    return std::vector<float>(sums, sums + 4);
  };
  EXPECT_EQ(push({1, 2, 3, 4}), (std::vector<float>{0, 0, 0, 4}));
  EXPECT_EQ(push({1, 2, 3, 4}), (std::vector<float>{0, 0, 6, 0}));
  EXPECT_EQ(push({0, 0, 0, 0}), (std::vector<float>{0, 4, 0, 0})) << "of two equal ones the first";
  EXPECT_EQ(push({0, 0, 0, 0}), (std::vector<float>{0, 0, 0, 4}));
  spec.name = "v";
  spec.kept = 1.0;
  EXPECT_NE(phub_job_add_keys(job.get(), &spec, 1, &added, error_.Out()), PHUB_OK);
  EXPECT_THAT(error_.message(), HasSubstr("kept is 1; compression topk needs a share from"));
  spec.compression = 4;
  EXPECT_NE(phub_job_add_keys(job.get(), &spec, 1, &added, error_.Out()), PHUB_OK);
  EXPECT_THAT(error_.message(), HasSubstr("compression is 4; it must be 0 to 3"));
}

TEST_F(CApi, AQueueReportsEachRoundWhenItCompletes) {
  const JobPointer job = JoinAs(session_.get(), OptionsOf("queue", 0, 1));
  std::vector<KeyPointer> keys;
  for (int i = 0; i < 8; ++i)
    keys.push_back(AddKey(job.get(), ("key" + std::to_string(i)).c_str(), nullptr, 1000));
  phub_queue* made = nullptr;
  ASSERT_EQ(phub_queue_create(&made, error_.Out()), PHUB_OK);
  const QueuePointer queue(made);
  std::uint64_t tag = 0;
  phub_result result = PHUB_UNKNOWN;
  EXPECT_EQ(phub_queue_wait(queue.get(), 0, &tag, &result, error_.Out()), PHUB_DEADLINE_EXCEEDED);
  for (int round = 0; round < 200; ++round) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const HandlePointer handle = Push(keys[i].get(), 1.0f);
      ASSERT_EQ(phub_queue_add(queue.get(), handle.get(), i, error_.Out()), PHUB_OK);
    }
    std::vector<std::uint64_t> tags;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(phub_queue_wait(queue.get(), kPatience, &tag, &result, error_.Out()), PHUB_OK);
      EXPECT_EQ(result, PHUB_OK) << error_.message();
      tags.push_back(tag);
    }
    EXPECT_THAT(tags, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  }
  EXPECT_EQ(phub_queue_wait(queue.get(), 0, &tag, &result, error_.Out()), PHUB_DEADLINE_EXCEEDED);
}

TEST_F(CApi, AQueueReportsRoundsOfAJobThatEndsAndCanBeClosed) {
  JoinBoth("ends");
  phub_queue* made = nullptr;
  ASSERT_EQ(phub_queue_create(&made, error_.Out()), PHUB_OK);
  const QueuePointer queue(made);
  HandlePointer handle = Push(keys_[0].get(), 1.0f);
  ASSERT_EQ(phub_queue_add(queue.get(), handle.get(), 7, error_.Out()), PHUB_OK);
  handle.reset();
  // Rank 1 leaves; rank 0's round can never complete.
  jobs_[1].reset();
  std::uint64_t tag = 0;
  phub_result result = PHUB_OK;
  ASSERT_EQ(phub_queue_wait(queue.get(), kPatience, &tag, &result, error_.Out()), PHUB_OK);
  EXPECT_EQ(tag, 7u);
  EXPECT_EQ(result, PHUB_ABORTED);
  // Expect: the error names the rank at fault, not the one that waits.
  EXPECT_STREQ(phub_error_job(error_.error), "ends");
  EXPECT_STREQ(phub_error_key(error_.error), "fc1.weight");
  EXPECT_EQ(phub_error_rank(error_.error), 1) << error_.message();
  EXPECT_EQ(phub_error_own_rank(error_.error), 0);
  EXPECT_EQ(phub_job_status(jobs_[0].get(), error_.Out()), PHUB_ABORTED);
  EXPECT_EQ(phub_error_rank(error_.error), 1);

  std::thread closer([&queue] {
    Sleep(50 * kMillisecond);
    phub_queue_close(queue.get());
  });
  EXPECT_EQ(phub_queue_wait(queue.get(), -1, &tag, &result, nullptr), PHUB_CANCELLED);
  closer.join();
}

TEST_F(CApi, AQueueMayBeFreedBeforeItsRoundsComplete) {
  JoinBoth("freed");
  phub_queue* queue = nullptr;
  ASSERT_EQ(phub_queue_create(&queue, error_.Out()), PHUB_OK);
  const HandlePointer first = Push(keys_[0].get(), 1.0f);
  ASSERT_EQ(phub_queue_add(queue, first.get(), 1, error_.Out()), PHUB_OK);
  phub_queue_free(queue);
  const HandlePointer second = Push(keys_[1].get(), 2.0f);
  EXPECT_EQ(phub_handle_wait(first.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  EXPECT_EQ(phub_handle_wait(second.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  EXPECT_THAT(ParametersOf(keys_[0].get()), Each(3.0f));
}

TEST_F(CApi, ATimeoutIsReportedWithKeyJobAndRank) {
  JoinBoth("late");
  const HandlePointer handle = Push(keys_[1].get(), 1.0f);
  EXPECT_EQ(phub_handle_wait(handle.get(), 20 * kMillisecond, error_.Out()),
            PHUB_DEADLINE_EXCEEDED);
  EXPECT_STREQ(phub_error_job(error_.error), "late");
  EXPECT_STREQ(phub_error_key(error_.error), "fc1.weight");
  EXPECT_EQ(phub_error_own_rank(error_.error), 1);
  // Expect: a second push of a key in flight is refused without a handle.
  phub_handle* second = nullptr;
  EXPECT_EQ(phub_key_push_pull(keys_[1].get(), &second, error_.Out()), PHUB_FAILED_PRECONDITION);
  EXPECT_EQ(second, nullptr);
}

TEST_F(CApi, ARankThatWaitsAloneEndsAfterJoinTimeoutAndFreesItsSeat) {
  phub_job_options options = OptionsOf("alone", 1, 3);
  options.join_timeout_ms = 1500;
  const JobPointer job = JoinAs(session_.get(), options);
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(phub_job_barrier(job.get(), error_.Out()), PHUB_ABORTED);
  EXPECT_THAT(error_.message(), HasSubstr("ranks 0, 2 of 3 did not join within join_timeout"));
  // Expect: the same rank of a new run, which would be refused for its other options in the old
  // one.
  const JobPointer again = JoinAs(session_.get(), OptionsOf("alone", 1, 2));
  ASSERT_NE(again, nullptr);
  EXPECT_NE(phub_job_created(again.get()), 0);
}

}  // namespace
}  // namespace phub::process
