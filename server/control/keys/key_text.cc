#include "server/control/keys/key_text.h"

#include <algorithm>
#include <cstddef>

#include "common/base/printable.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kKeysNamedMax = 3;
constexpr std::size_t kKeyNameBytesMax = 64;

template <typename NameOf>
std::string DescribeNames(std::size_t count, NameOf&& name_of) {
  std::string text = count == 1 ? "key " : "keys ";
  const std::size_t named = std::min(count, kKeysNamedMax);
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += ", ";
    text += Printable(name_of(i), kKeyNameBytesMax);
  }
  if (count > named) text += fmt::format(" and {} more", count - named);
  return text;
}

}  // namespace

std::string DescribeKeys(const KeySpecs& keys) {
  return DescribeNames(static_cast<std::size_t>(keys.size()),
                       [&](std::size_t i) { return keys[static_cast<int>(i)].name(); });
}

std::string DescribeKeys(const KeyList& keys) {
  return DescribeNames(keys.size(), [&](std::size_t i) { return keys[i].name(); });
}

std::string DescribeBatches(const Job& job, std::uint32_t first_batch, Rank rank) {
  const std::size_t first = job.batches[first_batch].first_key;
  const std::uint32_t batches = job.members[rank.value].next_batch;
  const std::size_t end =
      batches < job.batches.size() ? job.batches[batches].first_key : job.keys.size();
  return DescribeNames(end - first, [&](std::size_t i) { return job.keys[first + i].name(); });
}

}  // namespace phub::server
