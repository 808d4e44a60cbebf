#include "server/control/key_specs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::uint64_t kElementBytes = sizeof(float);
// Far more than any machine holds, and small enough that sums of sizes cannot overflow.
constexpr std::uint64_t kKeyElementsMax = std::uint64_t{1} << 40;
static_assert(kKeyElementsMax * kElementBytes <= UINT64_MAX / kKeysPerJobMax / 8);

bool Finite(const v1::HyperParameters& values) {
  return std::isfinite(values.learning_rate()) && std::isfinite(values.momentum()) &&
         std::isfinite(values.dampening()) && std::isfinite(values.weight_decay());
}

absl::Status CheckKey(const v1::KeySpec& key, std::size_t number) {
  if (!IsName(key.name())) {
    return absl::InvalidArgumentError(fmt::format(
        "key {}: the name must have 1 to {} bytes and no control characters; it has {} bytes",
        number, kNameBytesMax, key.name().size()));
  }
  if (key.element_count() == 0 || key.element_count() > kKeyElementsMax) {
    return absl::InvalidArgumentError(fmt::format("key {}: element_count is {}, must be 1 to {}",
                                                  key.name(), key.element_count(),
                                                  kKeyElementsMax));
  }
  if (key.type() != v1::ELEMENT_TYPE_F32) {
    return absl::InvalidArgumentError(
        fmt::format("key {}: element type number {} is not known to this daemon; it knows f32",
                    key.name(), static_cast<int>(key.type())));
  }
  if (key.operation() != v1::OPERATION_SUM && key.operation() != v1::OPERATION_MEAN) {
    return absl::InvalidArgumentError(
        fmt::format("key {}: operation number {} is not known to this daemon; it knows sum, mean",
                    key.name(), static_cast<int>(key.operation())));
  }
  if (key.optimizer() != v1::OPTIMIZER_NONE && key.optimizer() != v1::OPTIMIZER_SGD &&
      key.optimizer() != v1::OPTIMIZER_MOMENTUM) {
    return absl::InvalidArgumentError(fmt::format(
        "key {}: optimizer number {} is not known to this daemon; it knows none, sgd, momentum",
        key.name(), static_cast<int>(key.optimizer())));
  }
  if (!Finite(key.hyper_parameters())) {
    return absl::InvalidArgumentError(
        fmt::format("key {}: a hyper-parameter is not finite", key.name()));
  }
  return absl::OkStatus();
}

const char* OptimizerName(v1::OptimizerKind kind) {
  switch (kind) {
    case v1::OPTIMIZER_NONE: return "no optimizer";
    case v1::OPTIMIZER_SGD: return "sgd";
    case v1::OPTIMIZER_MOMENTUM: return "momentum";
    default: return "an unknown optimizer";
  }
}

const char* OperationName(v1::Operation operation) {
  switch (operation) {
    case v1::OPERATION_SUM: return "sum";
    case v1::OPERATION_MEAN: return "mean";
    default: return "an unknown operation";
  }
}

bool SameBits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

std::string HyperParameterText(const char* name, float value) {
  return fmt::format("{} {:.9g}", name, value);
}

// What two keys say differently, as two phrases; both empty if they are equal.
struct Phrases {
  std::string first;
  std::string other;
};
Phrases Compare(const v1::KeySpec& a, const v1::KeySpec& b) {
  if (a.name() != b.name() || a.element_count() != b.element_count()) {
    const std::string other = fmt::format("{} elements", b.element_count());
    return {fmt::format("\"{}\" {} elements", a.name(), a.element_count()),
            a.name() == b.name()
                ? other
                : fmt::format("\"{}\" {}", IsName(b.name()) ? b.name() : "?", other)};
  }
  const auto phrase = [&](const std::string& x, const std::string& y) {
    return Phrases{fmt::format("\"{}\" {}", a.name(), x), y};
  };
  if (a.type() != b.type()) {
    return phrase(fmt::format("type number {}", static_cast<int>(a.type())),
                  fmt::format("type number {}", static_cast<int>(b.type())));
  }
  if (a.operation() != b.operation()) {
    return phrase(OperationName(a.operation()), OperationName(b.operation()));
  }
  if (a.optimizer() != b.optimizer()) {
    return phrase(OptimizerName(a.optimizer()), OptimizerName(b.optimizer()));
  }
  const v1::HyperParameters& x = a.hyper_parameters();
  const v1::HyperParameters& y = b.hyper_parameters();
  const auto values = [&](const char* name, float mine, float theirs) {
    return phrase(HyperParameterText(name, mine), HyperParameterText(name, theirs));
  };
  if (!SameBits(x.learning_rate(), y.learning_rate())) {
    return values("learning_rate", x.learning_rate(), y.learning_rate());
  }
  if (!SameBits(x.momentum(), y.momentum())) return values("momentum", x.momentum(), y.momentum());
  if (!SameBits(x.dampening(), y.dampening())) {
    return values("dampening", x.dampening(), y.dampening());
  }
  if (!SameBits(x.weight_decay(), y.weight_decay())) {
    return values("weight_decay", x.weight_decay(), y.weight_decay());
  }
  return {};
}

}  // namespace

std::uint64_t KeyBytes(const v1::KeySpec& key) { return key.element_count() * kElementBytes; }

absl::Status CheckKeys(const Job& job, const KeySpecs& keys, std::size_t core_count) {
  if (keys.empty()) {
    return absl::InvalidArgumentError(fmt::format("job {}: the batch holds no keys", job.name()));
  }
  const std::size_t key_count = static_cast<std::size_t>(keys.size());
  if (key_count > kKeysPerJobMax - job.keys.size()) {
    return absl::InvalidArgumentError(
        fmt::format("job {}: {} keys and {} more are over the limit of {} keys; bundle small "
                    "tensors into one key",
                    job.name(), job.keys.size(), key_count, kKeysPerJobMax));
  }
  std::uint64_t chunks = 0;
  for (const std::uint32_t count : job.chunk_counts) chunks += count;
  std::set<std::string> names;
  for (std::size_t i = 0; i < key_count; ++i) {
    const v1::KeySpec& key = keys[static_cast<int>(i)];
    if (absl::Status status = CheckKey(key, job.keys.size() + i); !status.ok()) return status;
    if (job.key_names.contains(key.name()) || !names.insert(key.name()).second) {
      return absl::InvalidArgumentError(
          fmt::format("key {} is in job {} already", key.name(), job.name()));
    }
    chunks += ChunkCount(KeyBytes(key), job.settings.chunk_bytes);
  }
  if (chunks > kChunksPerShardMax * core_count) {
    return absl::InvalidArgumentError(fmt::format(
        "job {}: its keys make {} chunks of {} bytes, over the limit of {}; use a larger "
        "chunk_bytes",
        job.name(), chunks, job.settings.chunk_bytes, kChunksPerShardMax * core_count));
  }
  return absl::OkStatus();
}

std::string DifferenceInKeys(const Job& job, std::uint32_t batch, const KeySpecs& keys, Rank rank) {
  const BatchRecord& record = job.batches[batch];
  const std::string first = DescribeRankBriefly(job, record.first);
  const std::string other = DescribeRankBriefly(job, rank);
  const std::size_t count = static_cast<std::size_t>(keys.size());
  for (std::size_t i = 0; i < std::min(count, record.keys.size()); ++i) {
    const Phrases phrases = Compare(record.keys[i], keys[static_cast<int>(i)]);
    if (phrases.first.empty()) continue;
    return fmt::format("key {}: {} says {}, {} says {}", record.first_key + i, first, phrases.first,
                       other, phrases.other);
  }
  if (count == record.keys.size()) return {};
  return fmt::format("batch {}: {} adds {} keys, {} adds {}", batch, first, record.keys.size(),
                     other, count);
}

std::vector<std::vector<KeyShardSpec>> CutForCores(
    const Job& job, const KeySpecs& keys, const std::vector<std::vector<CoreIndex>>& placement,
    std::size_t core_count) {
  std::vector<std::vector<KeyShardSpec>> parts(core_count);
  for (std::size_t i = 0; i < placement.size(); ++i) {
    const v1::KeySpec& key = keys[static_cast<int>(i)];
    KeyShardSpec spec;
    spec.key = KeyIndex{static_cast<std::uint32_t>(job.keys.size() + i)};
    spec.reduction = key.operation() == v1::OPERATION_MEAN ? Reduction::kMean : Reduction::kSum;
    spec.optimizer = key.optimizer() == v1::OPTIMIZER_MOMENTUM ? Optimizer::kMomentum
                     : key.optimizer() == v1::OPTIMIZER_SGD    ? Optimizer::kSgd
                                                               : Optimizer::kNone;
    spec.hyper_parameters.learning_rate = key.hyper_parameters().learning_rate();
    spec.hyper_parameters.momentum = key.hyper_parameters().momentum();
    spec.hyper_parameters.dampening = key.hyper_parameters().dampening();
    spec.hyper_parameters.weight_decay = key.hyper_parameters().weight_decay();
    for (std::vector<KeyShardSpec>& part : parts) part.push_back(spec);
    for (std::size_t chunk = 0; chunk < placement[i].size(); ++chunk) {
      const std::uint64_t bytes = ChunkBytes(KeyBytes(key), job.settings.chunk_bytes, chunk);
      parts[placement[i][chunk].value].back().chunk_elements.push_back(
          static_cast<std::uint32_t>(bytes / kElementBytes));
    }
  }
  return parts;
}

}  // namespace phub::server
