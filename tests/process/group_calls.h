// Groups of jobs whose ranks are all in one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "phub/client.h"
#include "phub/group.h"

namespace phub::process {

// A gradient's element. The order of addition decides the bits of a sum of these.
inline float OrderedValue(std::uint32_t rank, std::size_t element, int round) {
  const float large = (rank % 2 == 0 ? 1.0e8f : -1.0e8f);
  return large + 0.37f * static_cast<float>(7 * rank + element % 101) + static_cast<float>(round);
}

// The group on each of its members, in the order of `ranks`. Fewer: the test has failed.
inline std::vector<Group> MakeGroup(std::vector<Job>& jobs, const std::string& name,
                                    const std::vector<std::uint32_t>& ranks) {
  std::vector<Group> groups;
  for (const std::uint32_t rank : ranks) {
    auto group = jobs[rank].NewGroup(name, ranks);
    EXPECT_TRUE(group.ok()) << ToString(group.status());
    if (group.ok()) groups.push_back(*std::move(group));
  }
  return groups;
}

// The same key of a group on each of its members. Fewer: the test has failed.
inline std::vector<Key> AddToGroup(std::vector<Group>& groups, const std::string& name,
                                   ElementType type, std::uint64_t elements,
                                   const KeyOptions& options = {}) {
  std::vector<Key> keys;
  for (Group& group : groups) {
    auto key = group.AddKey(name, type, elements, options);
    EXPECT_TRUE(key.ok()) << ToString(key.status());
    if (key.ok()) keys.push_back(*std::move(key));
  }
  return keys;
}

}  // namespace phub::process
