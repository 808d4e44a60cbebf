// Groups through the C functions of phub.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/process/c_api_fixture.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using GroupPointer = std::unique_ptr<phub_group, Free<phub_group_free>>;
using GroupPoolPointer = std::unique_ptr<phub_pool, Free<phub_pool_free>>;

// Ranks 0 and 2 of a job of three, all in this thread.
class CApiGroup : public CApi {
 protected:
  void JoinThree(const char* name) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      all_[rank] = JoinAs(session_.get(), OptionsOf(name, rank, 3));
      ASSERT_NE(all_[rank], nullptr);
    }
  }
  phub_job* JobOf(std::size_t member) const { return all_[2 * member].get(); }

  void MakeGroups() {
    const std::uint32_t ranks[2] = {2, 0};
    for (std::size_t member = 0; member < 2; ++member) {
      phub_group* group = nullptr;
      phub_group_options options;
      phub_group_options_init(&options, sizeof(options));
      options.priority_class = PHUB_PRIORITY_PIPELINE;
      ASSERT_EQ(
          phub_job_new_group_with(JobOf(member), "pair", ranks, 2, &options, &group, error_.Out()),
          PHUB_OK)
          << error_.message();
      groups_[member] = GroupPointer(group);
    }
  }
  void AddPools() {
    phub_pool_options options;
    phub_pool_options_init(&options, sizeof(options));
    options.name = "pool";
    options.capacity_bytes = 4000;
    for (std::size_t member = 0; member < 2; ++member) {
      phub_pool* pool = nullptr;
      ASSERT_EQ(phub_group_add_pool(groups_[member].get(), &options, &pool, error_.Out()), PHUB_OK)
          << error_.message();
      pools_[member] = GroupPoolPointer(pool);
    }
  }
  phub_result AddSpec(std::size_t member, const phub_key_spec& spec, KeyPointer& added) {
    phub_key* key = nullptr;
    const phub_result result =
        phub_group_add_keys(groups_[member].get(), &spec, 1, &key, error_.Out());
    added = KeyPointer(key);
    return result;
  }
  static phub_key_spec SpecOf(const char* name, std::uint64_t elements) {
    phub_key_spec spec;
    phub_key_spec_init(&spec, sizeof(spec));
    spec.name = name;
    spec.element_count = elements;
    return spec;
  }
  void Remove() {
    std::thread other([&] {
      Error error;
      EXPECT_EQ(phub_group_remove(groups_[1].get(), error.Out()), PHUB_OK) << error.message();
    });
    EXPECT_EQ(phub_group_remove(groups_[0].get(), error_.Out()), PHUB_OK) << error_.message();
    other.join();
  }

  JobPointer all_[3];
  GroupPointer groups_[2];
  GroupPoolPointer pools_[2];
  std::array<std::vector<float>, 2> results_;
};

TEST_F(CApiGroup, MembersSumBroadcastAndScatterAndAreRemoved) {
  JoinThree("groups");
  for (int i = 0; i < 2; ++i) {
    MakeGroups();
    EXPECT_STREQ(phub_group_name(groups_[1].get()), "pair");
    ASSERT_EQ(phub_group_size(groups_[1].get()), 2u);
    EXPECT_EQ(phub_group_ranks(groups_[1].get())[0], 0u);
    EXPECT_EQ(phub_group_ranks(groups_[1].get())[1], 2u);
    EXPECT_EQ(phub_group_index(groups_[1].get()), 1u);
    for (std::size_t member = 0; member < 2; ++member)
      ASSERT_EQ(AddSpec(member, SpecOf("sum", 5), keys_[member]), PHUB_OK) << error_.message();
    EXPECT_STREQ(phub_key_name(keys_[0].get()), "sum of group pair");
    const HandlePointer first = Push(keys_[0].get(), 1.0f);
    const HandlePointer second = Push(keys_[1].get(), 2.0f);
    ASSERT_EQ(phub_handle_wait(first.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
    ASSERT_EQ(phub_handle_wait(second.get(), kPatience, error_.Out()), PHUB_OK);
    EXPECT_THAT(ParametersOf(keys_[0].get()), Each(3.0f));
    // The root is a rank of the job, and parts are those of members: also of the caller's memory.
    std::vector<float> sent = {1, 2, 3, 4};
    std::vector<float> received(2);
    phub_key_spec scatter = SpecOf("scatter", 4);
    scatter.movement = PHUB_SCATTER;
    scatter.root = 2;
    KeyPointer scattered[2];
    scatter.parameters = received.data();
    ASSERT_EQ(AddSpec(0, scatter, scattered[0]), PHUB_OK) << error_.message();
    scatter.parameters = nullptr;
    scatter.gradients = sent.data();
    ASSERT_EQ(AddSpec(1, scatter, scattered[1]), PHUB_OK) << error_.message();
    EXPECT_EQ(phub_key_gradients(scattered[1].get()).count, 4u);
    phub_handle* handle = nullptr;
    ASSERT_EQ(phub_key_push_pull(scattered[0].get(), &handle, error_.Out()), PHUB_OK);
    const HandlePointer third(handle);
    ASSERT_EQ(phub_key_push_pull(scattered[1].get(), &handle, error_.Out()), PHUB_OK);
    const HandlePointer fourth(handle);
    EXPECT_EQ(phub_handle_wait(third.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
    EXPECT_EQ(phub_handle_wait(fourth.get(), kPatience, error_.Out()), PHUB_OK);
    EXPECT_THAT(received, ElementsAre(1, 2));
    EXPECT_THAT(ParametersOf(scattered[1].get()), ElementsAre(3, 4));
    Remove();
    EXPECT_EQ(phub_key_push_pull(keys_[0].get(), &handle, error_.Out()), PHUB_FAILED_PRECONDITION);
    EXPECT_STREQ(phub_error_key(error_.error), "sum of group pair");
  }
}

TEST_F(CApiGroup, PoolsBelongToTheGroupAndAreRemovedWithIt) {
  JoinThree("pools");
  MakeGroups();
  AddPools();
  std::vector<HandlePointer> handles;
  const std::vector<float> values(2500, 2.0f);  // three rounds
  for (std::size_t member = 0; member < 2; ++member) {
    results_[member].resize(values.size());
    const phub_const_elements from{values.data(), values.size(), PHUB_F32, 0};
    const phub_elements to{results_[member].data(), values.size(), PHUB_F32, 0};
    phub_handle* handle = nullptr;
    ASSERT_EQ(
        phub_pool_all_reduce(pools_[member].get(), &from, &to, PHUB_SUM, &handle, error_.Out()),
        PHUB_OK)
        << error_.message();
    handles.emplace_back(handle);
  }
  for (const HandlePointer& handle : handles)
    EXPECT_EQ(phub_handle_wait(handle.get(), kPatience, error_.Out()), PHUB_OK) << error_.message();
  EXPECT_THAT(results_[1], Each(4.0f));
  EXPECT_EQ(phub_job_remove_pool(JobOf(0), pools_[0].get(), error_.Out()),
            PHUB_FAILED_PRECONDITION);
  EXPECT_THAT(error_.message(), AllOf(HasSubstr("pool pool of group pair of job pools"),
                                      HasSubstr("remove the group")));
  Remove();
  MakeGroups();
  AddPools();
}

TEST_F(CApiGroup, SeveralAreDeclaredAtOnceAndAllOrNoneAreMade) {
  JoinThree("declared");
  const std::uint32_t pair[2] = {2, 0}, rest[1] = {1};
  phub_group_spec specs[2];
  for (phub_group_spec& spec : specs) phub_group_spec_init(&spec, sizeof(spec));
  specs[0].name = "group";
  specs[0].ranks = pair;
  specs[0].count = 2;
  specs[1].name = "group";
  specs[1].ranks = rest;
  specs[1].count = 1;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    phub_group* made[2] = {};
    ASSERT_EQ(phub_job_new_groups(all_[rank].get(), specs, 2, made, error_.Out()), PHUB_OK)
        << error_.message();
    const GroupPointer first(made[0]), second(made[1]);
    EXPECT_EQ(first != nullptr, rank != 1);
    EXPECT_EQ(second != nullptr, rank == 1);
    EXPECT_EQ(phub_group_index(made[rank == 1 ? 1 : 0]), rank / 2);
  }
  phub_group* made[2] = {};
  const auto declare = [&] {
    return phub_job_new_groups(all_[0].get(), specs, 2, made, error_.Out());
  };
  EXPECT_EQ(declare(), PHUB_ALREADY_EXISTS);
  specs[0].name = "other";
  specs[1].name = "group";
  specs[1].ranks = pair;
  specs[1].count = 2;
  EXPECT_EQ(declare(), PHUB_ALREADY_EXISTS);
  specs[1].name = "third";
  const std::uint32_t beyond[1] = {3};
  specs[1].ranks = beyond;
  specs[1].count = 1;
  EXPECT_EQ(declare(), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("rank 3 must be less than world_size 3"));
  specs[1].ranks = nullptr;
  EXPECT_EQ(declare(), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("phub_job_new_groups: ranks is NULL"));
  EXPECT_EQ(made[0], nullptr);
  // Expect: the calls that failed have made no group.
  specs[1].ranks = rest;
  ASSERT_EQ(declare(), PHUB_OK) << error_.message();
  const GroupPointer other(made[0]);
  EXPECT_STREQ(phub_group_name(made[0]), "other");
}

TEST_F(CApiGroup, WrongArgumentsAreRefusedByName) {
  JoinThree("wrong");
  const std::uint32_t ranks[2] = {0, 2};
  phub_group* group = nullptr;
  const auto make = [&](std::size_t rank, const char* name, const std::uint32_t* members,
                        std::size_t count) {
    return phub_job_new_group(all_[rank].get(), name, members, count, &group, error_.Out());
  };
  EXPECT_EQ(make(0, nullptr, ranks, 2), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("phub_job_new_group: name is NULL"));
  EXPECT_EQ(make(0, "pair", nullptr, 2), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("ranks is NULL"));
  EXPECT_EQ(make(0, "pair", nullptr, 0), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(make(1, "pair", ranks, 2), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("this rank is not a member; the group has ranks 0, 2"));
  EXPECT_EQ(phub_error_own_rank(error_.error), 1);
  EXPECT_EQ(phub_job_new_group(nullptr, "pair", ranks, 2, &group, nullptr), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_job_new_group(all_[0].get(), "pair", ranks, 2, nullptr, nullptr),
            PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(group, nullptr);
  phub_group_options group_options;
  phub_group_options_init(&group_options, sizeof(group_options));
  group_options.priority_class = PHUB_PRIORITY_TENSOR + 1;
  EXPECT_EQ(
      phub_job_new_group_with(JobOf(0), "pair", ranks, 2, &group_options, &group, error_.Out()),
      PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("priority_class is 4; it must be 0 to 3"));
  EXPECT_EQ(group, nullptr);
  MakeGroups();
  EXPECT_EQ(make(0, "pair", ranks, 2), PHUB_ALREADY_EXISTS);
  phub_key_spec spec = SpecOf("moved", 4);
  spec.movement = PHUB_GATHER_TO_ONE;
  spec.root = 1;
  EXPECT_EQ(AddSpec(0, spec, keys_[0]), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("root 1 is not a member"));
  EXPECT_STREQ(phub_error_job(error_.error), "wrong");
  spec.struct_size = 4;
  EXPECT_EQ(AddSpec(0, spec, keys_[0]), PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("phub_key_spec_init"));
  phub_key* key = nullptr;
  EXPECT_EQ(phub_group_add_keys(groups_[0].get(), nullptr, 1, &key, error_.Out()),
            PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_group_add_keys(groups_[0].get(), nullptr, 0, nullptr, error_.Out()), PHUB_OK);
  EXPECT_EQ(phub_group_add_keys(nullptr, &spec, 1, &key, error_.Out()), PHUB_INVALID_ARGUMENT);
  phub_pool_options options;
  phub_pool_options_init(&options, sizeof(options));
  phub_pool* pool = nullptr;
  EXPECT_EQ(phub_group_add_pool(groups_[0].get(), &options, &pool, error_.Out()),
            PHUB_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message(), HasSubstr("phub_group_add_pool: name is NULL"));
  EXPECT_EQ(phub_group_add_pool(nullptr, &options, &pool, nullptr), PHUB_INVALID_ARGUMENT);
  EXPECT_EQ(phub_group_remove(nullptr, nullptr), PHUB_INVALID_ARGUMENT);
  // Nobody has added keys: there is nothing to wait for.
  EXPECT_EQ(phub_group_remove(groups_[0].get(), error_.Out()), PHUB_OK) << error_.message();
  EXPECT_EQ(phub_group_remove(groups_[0].get(), error_.Out()), PHUB_FAILED_PRECONDITION);
  EXPECT_THAT(error_.message(),
              HasSubstr("group pair of job wrong, rank 0: the group was removed"));
  EXPECT_STREQ(phub_group_name(nullptr), "");
  EXPECT_EQ(phub_group_size(nullptr), 0u);
  EXPECT_EQ(phub_group_ranks(nullptr), nullptr);
  EXPECT_EQ(phub_group_index(nullptr), 0u);
  phub_group_free(nullptr);
}

}  // namespace
}  // namespace phub::process
