// Pools and pooled keys through the C functions of phub.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/c_api_fixture.h"
#include "tests/support/eventually.h"

namespace phub::process {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using PoolPointer = std::unique_ptr<phub_pool, Free<phub_pool_free>>;

class CApiPool : public CApi {
 protected:
  void JoinJobs(const char* name) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      jobs_[rank] = JoinAs(session_.get(), OptionsOf(name, rank, 2));
      ASSERT_NE(jobs_[rank], nullptr);
    }
  }
  // Of 3 rounds of 1000 elements of type f32.
  void AddPools() {
    phub_pool_options options;
    phub_pool_options_init(&options, sizeof(options));
    EXPECT_EQ(options.capacity_bytes, std::uint64_t{4} << 20);
    EXPECT_EQ(options.timeout_ms, 30 * 60 * 1000);
    options.name = "pool";
    options.capacity_bytes = 4000;
    options.depth = 3;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      phub_pool* pool = nullptr;
      ASSERT_EQ(phub_job_add_pool(jobs_[rank].get(), &options, &pool, error_.Out()), PHUB_OK)
          << error_.message();
      pools_[rank] = PoolPointer(pool);
    }
  }
  // Three rounds, whose handles have one item in a queue.
  HandlePointer StartLong(std::uint32_t rank) {
    values_[rank].assign(2500, static_cast<float>(rank + 1));
    results_[rank].assign(2500, 0.0f);
    const phub_const_elements values{values_[rank].data(), 2500, PHUB_F32, 0};
    const phub_elements results{results_[rank].data(), 2500, PHUB_F32, 0};
    phub_handle* handle = nullptr;
    EXPECT_EQ(phub_pool_all_reduce(pools_[rank].get(), &values, &results, PHUB_SUM, &handle,
                                   error_.Out()),
              PHUB_OK)
        << error_.message();
    return HandlePointer(handle);
  }

  PoolPointer pools_[2];
  std::vector<float> values_[2], results_[2];
};

TEST_F(CApiPool, AnOperationOfSeveralRoundsIsOneItemOfAQueue) {
  JoinJobs("pools");
  AddPools();
  phub_queue* made = nullptr;
  ASSERT_EQ(phub_queue_create(&made, error_.Out()), PHUB_OK);
  const QueuePointer queue(made);
  const auto wait = [&](std::int64_t timeout, std::uint64_t& tag) {
    phub_result result = PHUB_UNKNOWN;
    const phub_result waited = phub_queue_wait(queue.get(), timeout, &tag, &result, error_.Out());
    return waited == PHUB_OK ? result : waited;
  };
  std::uint64_t tag = 0;
  EXPECT_EQ(phub_pool_would_wait(pools_[0].get(), nullptr), 0);
  const HandlePointer first = StartLong(0);
  ASSERT_EQ(phub_queue_add(queue.get(), first.get(), 7, error_.Out()), PHUB_OK);
  EXPECT_NE(phub_pool_would_wait(pools_[0].get(), nullptr), 0);
  EXPECT_EQ(wait(0, tag), PHUB_DEADLINE_EXCEEDED);
  // The daemon may not have received the gradient yet.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(phub_handle_explain(first.get(), error_.Out()), PHUB_DEADLINE_EXCEEDED);
    return std::string(error_.message()).find("it waits for rank 1") != std::string::npos;
  })) << error_.message();
  EXPECT_EQ(phub_handle_cancel(first.get(), error_.Out()), PHUB_FAILED_PRECONDITION);
  const HandlePointer second = StartLong(1);
  EXPECT_EQ(wait(kPatience, tag), PHUB_OK) << error_.message();
  EXPECT_EQ(tag, 7u);
  EXPECT_THAT(results_[0], Each(3.0f));
  EXPECT_EQ(wait(0, tag), PHUB_DEADLINE_EXCEEDED);  // no second item
  EXPECT_EQ(phub_handle_wait(second.get(), kPatience, error_.Out()), PHUB_OK);
  EXPECT_EQ(phub_handle_explain(second.get(), error_.Out()), PHUB_OK);
  // A handle that is complete is reported at once.
  ASSERT_EQ(phub_queue_add(queue.get(), second.get(), 8, error_.Out()), PHUB_OK);
  EXPECT_EQ(wait(0, tag), PHUB_OK);
  EXPECT_EQ(tag, 8u);
  // The job ends in the middle of an operation.
  const HandlePointer third = StartLong(0);
  ASSERT_EQ(phub_queue_add(queue.get(), third.get(), 9, error_.Out()), PHUB_OK);
  EXPECT_EQ(phub_job_leave(jobs_[0].get(), nullptr), PHUB_DEADLINE_EXCEEDED);
  EXPECT_EQ(wait(kPatience, tag), PHUB_CANCELLED);
  EXPECT_EQ(tag, 9u);
  EXPECT_STREQ(phub_error_job(error_.error), "pools");
  // A queue that nobody waits for any more.
  jobs_[1].reset();
  ASSERT_EQ(phub_queue_add(queue.get(), third.get(), 10, error_.Out()), PHUB_OK);
}

TEST_F(CApiPool, ABroadcastCopiesTheRootsValues) {
  JoinJobs("broadcast");
  AddPools();
  HandlePointer handles[2];
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    values_[rank].assign(2500, static_cast<float>(rank + 1));
    const phub_elements values{values_[rank].data(), 2500, PHUB_F32, 0};
    phub_handle* handle = nullptr;
    ASSERT_EQ(phub_pool_broadcast(pools_[rank].get(), &values, 1, &handle, error_.Out()), PHUB_OK)
        << error_.message();
    handles[rank] = HandlePointer(handle);
  }
  for (const HandlePointer& handle : handles)
    ASSERT_EQ(phub_handle_wait(handle.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  EXPECT_THAT(values_[0], Each(2.0f));
  EXPECT_THAT(values_[1], Each(2.0f));
  phub_handle* handle = nullptr;
  const phub_elements values{values_[0].data(), 2500, PHUB_F32, 0};
  EXPECT_EQ(phub_pool_broadcast(pools_[0].get(), &values, 2, &handle, error_.Out()),
            PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("root is 2, but its ranks are 0 to 1"));
  EXPECT_EQ(phub_pool_broadcast(pools_[0].get(), nullptr, 0, &handle, error_.Out()),
            PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_pool_broadcast(nullptr, &values, 0, &handle, error_.Out()), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(handle, nullptr);
}

TEST_F(CApiPool, PoolsAreRemovedByAllRanks) {
  JoinJobs("removed");
  AddPools();
  std::thread other([&] {
    Error error;
    EXPECT_EQ(phub_job_remove_pool(jobs_[1].get(), pools_[1].get(), error.Out()), PHUB_OK)
        << error.message();
  });
  EXPECT_EQ(phub_job_remove_pool(jobs_[0].get(), pools_[0].get(), error_.Out()), PHUB_OK)
      << error_.message();
  other.join();
  AddPools();
}

TEST_F(CApiPool, WrongArgumentsOfPoolsAreRefusedByName) {
  JoinJobs("wrong");
  phub_pool_options options{};
  options.name = "pool";
  phub_pool* pool = nullptr;
  const auto add = [&] { return phub_job_add_pool(jobs_[0].get(), &options, &pool, error_.Out()); };
  EXPECT_EQ(add(), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("phub_pool_options_init"));
  phub_pool_options_init(&options, sizeof(options));
  EXPECT_EQ(add(), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("name is NULL"));
  options.name = "pool";
  options.depth = 100;
  EXPECT_EQ(add(), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("depth is 100"));
  EXPECT_EQ(pool, nullptr);
  AddPools();
  float value = 1.0f;
  float result = 0.0f;
  const phub_const_elements values{&value, 1, PHUB_F32, 0};
  const phub_elements results{&result, 1, PHUB_F32, 0};
  phub_handle* handle = nullptr;
  const auto start = [&](const phub_const_elements* from, std::int32_t operation) {
    return phub_pool_all_reduce(pools_[0].get(), from, &results, operation, &handle, error_.Out());
  };
  EXPECT_EQ(start(nullptr, PHUB_SUM), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("values is NULL"));
  EXPECT_EQ(start(&values, 9), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("operation is 9"));
  const phub_const_elements unknown{&value, 1, 99, 0};
  EXPECT_EQ(start(&unknown, PHUB_SUM), PHUB_INVALID_ARGUMENT);
  EXPECT_STREQ(phub_error_job(error_.error), "wrong");
  EXPECT_EQ(phub_error_own_rank(error_.error), 0);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(phub_pool_all_reduce(nullptr, &values, &results, 0, &handle, nullptr),
            PHUB_INVALID_ARGUMENT);
  phub_pool_free(nullptr);
}

TEST_F(CApiPool, PooledKeysReduceAndOlderProgramsDoNotKnowThem) {
  JoinJobs("keys");
  phub_handle* handles[2] = {};
  std::int64_t results[2][3] = {};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    phub_key_spec spec;
    phub_key_spec_init(&spec, sizeof(spec));
    spec.name = "slot";
    spec.type = PHUB_U8;
    spec.element_count = 100;
    spec.collective = 1;
    spec.pooled = 1;
    phub_key* key = nullptr;
    ASSERT_EQ(phub_job_add_keys(jobs_[rank].get(), &spec, 1, &key, error_.Out()), PHUB_OK)
        << error_.message();
    keys_[rank] = KeyPointer(key);
    const std::int64_t sent[2][3] = {{1, 2, 3}, {3, 2, 1}};
    static std::int64_t memory[2][3];
    std::copy_n(sent[rank], 3, memory[rank]);
    const phub_const_elements gradients{memory[rank], 3, PHUB_I64, 0};
    const phub_elements parameters{results[rank], 3, PHUB_I64, 0};
    EXPECT_EQ(
        phub_key_all_reduce(key, &gradients, nullptr, PHUB_MAX, 5, &handles[rank], error_.Out()),
        PHUB_INVALID_ARGUMENT);
    ASSERT_EQ(phub_key_all_reduce(key, &gradients, &parameters, PHUB_MAX, 5, &handles[rank],
                                  error_.Out()),
              PHUB_OK)
        << error_.message();
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const HandlePointer handle(handles[rank]);
    EXPECT_EQ(phub_handle_wait(handle.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
    EXPECT_THAT(results[rank], ::testing::ElementsAre(3, 2, 3));
  }
  // What follows the struct of an older program is not read.
  phub_key_spec older;
  phub_key_spec_init(&older, sizeof(older));
  older.name = "older";
  older.element_count = 7;
  older.pooled = 1;
  older.struct_size = offsetof(phub_key_spec, pooled);
  phub_key* key = nullptr;
  ASSERT_EQ(phub_job_add_keys(jobs_[0].get(), &older, 1, &key, error_.Out()), PHUB_OK)
      << error_.message();
  phub_key_free(key);
}

}  // namespace
}  // namespace phub::process
