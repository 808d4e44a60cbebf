// phub_group_*, phub_job_new_group and phub_job_new_groups.
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "client/c_api/structs.h"

using namespace phub::c_api;  // NOLINT: this file has functions of phub.h only
using phub::Status;

void phub_group_options_init(phub_group_options* options, size_t struct_size) {
  Initialize(options, struct_size, phub_group_options{});
}

phub_result phub_job_new_group(phub_job* job, const char* name, const uint32_t* ranks, size_t count,
                               phub_group** group, phub_error** error) {
  return phub_job_new_group_with(job, name, ranks, count, nullptr, group, error);
}

phub_result phub_job_new_group_with(phub_job* job, const char* name, const uint32_t* ranks,
                                    size_t count, const phub_group_options* options,
                                    phub_group** group, phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_new_group", "job");
    if (name == nullptr) return NullArgument("phub_job_new_group", "name");
    if (ranks == nullptr && count > 0) return NullArgument("phub_job_new_group", "ranks");
    if (group == nullptr) return NullArgument("phub_job_new_group", "group");
    std::optional<phub::PriorityClass> priority_class;
    if (options != nullptr) {
      phub_group_options values{};
      Status status = Read(options, "phub_group_options", sizeof(phub_group_options), values);
      if (status.ok()) status = ReadPriorityClass(values.priority_class, priority_class);
      if (!status.ok()) return status;
    }
    phub::Result<phub::Group> made = job->job.NewGroup(
        name, {ranks, count}, priority_class.value_or(phub::PriorityClass::kData));
    if (!made.ok()) return made.status();
    *group = new phub_group{*std::move(made), job->job.name(), job->job.rank()};
    return Status();
  });
}

void phub_group_spec_init(phub_group_spec* spec, size_t struct_size) {
  Initialize(spec, struct_size, phub_group_spec{});
}

phub_result phub_job_new_groups(phub_job* job, const phub_group_spec* specs, size_t count,
                                phub_group** groups, phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_new_groups", "job");
    if (specs == nullptr && count > 0) return NullArgument("phub_job_new_groups", "specs");
    if (groups == nullptr && count > 0) return NullArgument("phub_job_new_groups", "groups");
    std::vector<phub::GroupSpec> given;
    const auto* at = reinterpret_cast<const unsigned char*>(specs);
    for (size_t i = 0; i < count; ++i) {
      phub_group_spec values{};
      Status status = Read(at, "phub_group_spec", sizeof(phub_group_spec), values);
      if (!status.ok()) return status;
      if (values.name == nullptr) return NullArgument("phub_job_new_groups", "name");
      if (values.ranks == nullptr && values.count > 0)
        return NullArgument("phub_job_new_groups", "ranks");
      std::optional<phub::PriorityClass> priority_class;
      status = ReadPriorityClass(values.priority_class, priority_class);
      if (!status.ok()) return status;
      given.push_back({values.name,
                       {values.ranks, values.ranks + values.count},
                       priority_class.value_or(phub::PriorityClass::kData)});
      size_t struct_size = 0;
      std::memcpy(&struct_size, at, sizeof(struct_size));
      at += struct_size;
    }
    phub::Result<std::vector<phub::Group>> made = job->job.NewGroups(given);
    if (!made.ok()) return made.status();
    auto next = made->begin();
    for (size_t i = 0; i < count; ++i) {
      groups[i] = nullptr;
      const std::vector<uint32_t>& ranks = given[i].ranks;
      if (std::find(ranks.begin(), ranks.end(), job->job.rank()) == ranks.end()) continue;
      groups[i] = new phub_group{std::move(*next++), job->job.name(), job->job.rank()};
    }
    return Status();
  });
}

void phub_group_free(phub_group* group) { delete group; }

const char* phub_group_name(const phub_group* group) {
  return group == nullptr ? "" : group->group.name().c_str();
}
size_t phub_group_size(const phub_group* group) {
  return group == nullptr ? 0 : group->group.ranks().size();
}
const uint32_t* phub_group_ranks(const phub_group* group) {
  return group == nullptr ? nullptr : group->group.ranks().data();
}
uint32_t phub_group_index(const phub_group* group) {
  return group == nullptr ? 0 : group->group.index();
}

phub_result phub_group_add_keys(phub_group* group, const phub_key_spec* specs, size_t count,
                                phub_key** keys, phub_error** error) {
  return Run(group, error, [&] {
    if (group == nullptr) return NullArgument("phub_group_add_keys", "group");
    if (count == 0) return Status();
    if (specs == nullptr) return NullArgument("phub_group_add_keys", "specs");
    if (keys == nullptr) return NullArgument("phub_group_add_keys", "keys");
    std::vector<phub::KeySpec> given;
    const std::span<const uint32_t> ranks = group->group.ranks();
    const Membership members{.ranks = ranks,
                             .count = static_cast<uint32_t>(ranks.size()),
                             .index = group->group.index()};
    if (Status status = ReadKeySpecs(specs, count, members, given); !status.ok()) return status;
    return Deliver(group->group.AddKeys(given), keys);
  });
}

phub_result phub_group_add_pool(phub_group* group, const phub_pool_options* options,
                                phub_pool** pool, phub_error** error) {
  return Run(group, error, [&] {
    if (group == nullptr) return NullArgument("phub_group_add_pool", "group");
    if (options == nullptr) return NullArgument("phub_group_add_pool", "options");
    if (pool == nullptr) return NullArgument("phub_group_add_pool", "pool");
    phub::PoolOptions given;
    if (Status status = ReadPoolOptions("phub_group_add_pool", options, given); !status.ok())
      return status;
    phub::Result<phub::Pool> added = phub::Pool::Add(group->group, given);
    if (!added.ok()) return added.status();
    *pool = new phub_pool{*std::move(added), group->job, group->own_rank};
    return Status();
  });
}

phub_result phub_group_remove(phub_group* group, phub_error** error) {
  return Run(group, error, [&] {
    return group == nullptr ? NullArgument("phub_group_remove", "group") : group->group.Remove();
  });
}
