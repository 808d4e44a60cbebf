#include "bench/rank/training_job.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "bench/rank/layer.h"
#include "bench/rank/run_rank.h"

namespace phub::bench {
namespace {

// Larger than any cache, in elements. Each layer's pass uses the next part.
constexpr std::uint64_t kActivationElements = std::uint64_t{32} << 20;

std::int64_t Now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void SleepUntil(std::int64_t time_ns) {
  if (Now(CLOCK_MONOTONIC) >= time_ns) return;
  timespec until{};
  until.tv_sec = time_ns / 1'000'000'000;
  until.tv_nsec = time_ns % 1'000'000'000;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace

TrainingJob::TrainingJob(const RankArguments& arguments, const Values& values, Exchanger& exchanger)
    : arguments_(arguments), exchanger_(exchanger), expected_(arguments.element_count()) {
  if (arguments.type != Type::kF32) Fail("--schedule other than exchange needs --type f32");
  if (arguments.work != Work::kUpdate) Fail("--schedule other than exchange needs --work update");
  if (arguments.schedule == Schedule::kOverlap && !exchanger.can_overlap())
    Fail("this system cannot exchange single tensors, so it cannot run --schedule overlap");
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < arguments.sizes.size(); ++i) {
    const std::uint64_t size = arguments.sizes[i];
    layers_.push_back(
        {size, expected_.data() + first, static_cast<float*>(exchanger.gradients(i))});
    values.FillGradients(arguments.rank, first, size, expected_.data() + first);
    if (arguments.compute == Compute::kDevice)
      std::memcpy(layers_.back().gradients, layers_.back().expected, size * sizeof(float));
    first += size;
  }
  const std::uint64_t largest = *std::max_element(arguments.sizes.begin(), arguments.sizes.end());
  if (arguments.compute == Compute::kMemory)
    activations_.assign(std::max(kActivationElements, largest), 0.0F);
}

void TrainingJob::Iterate() {
  const bool overlaps = arguments_.schedule == Schedule::kOverlap;
  const std::int64_t begin_ns = Now(CLOCK_MONOTONIC);
  device_free_ns_ = begin_ns;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const auto* parameters = static_cast<const float*>(exchanger_.results(i));
    Timed([&] { Backward(layers_[i], parameters); });
    if (overlaps) exchanger_.Start(i);
  }
  const std::int64_t backward_end_ns = Now(CLOCK_MONOTONIC);
  if (arguments_.schedule == Schedule::kSerial) exchanger_.Exchange();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::int64_t wait_begin_ns = i == 0 ? backward_end_ns : Now(CLOCK_MONOTONIC);
    if (overlaps) exchanger_.Wait(i);
    const std::int64_t waited_ns = Now(CLOCK_MONOTONIC) - wait_begin_ns;
    times_.wait_ns += waited_ns;
    if (i == 0) times_.first_wait_ns += waited_ns;
    const auto* parameters = static_cast<const float*>(exchanger_.results(i));
    Timed([&] { Forward(layers_[i], parameters); });
  }
  if (arguments_.compute == Compute::kDevice) SleepUntil(device_free_ns_);
  ++times_.iterations;
}

template <typename Computation>
void TrainingJob::Timed(const Computation& computation) {
  const std::int64_t begin_ns = Now(CLOCK_MONOTONIC);
  const std::int64_t cpu_begin_ns = Now(CLOCK_THREAD_CPUTIME_ID);
  computation();
  times_.compute_cpu_ns += Now(CLOCK_THREAD_CPUTIME_ID) - cpu_begin_ns;
  times_.compute_ns += Now(CLOCK_MONOTONIC) - begin_ns;
}

// Every layer takes equally long. (Most parameters of a convolutional network are in its last
// layers, but its computation is spread evenly.) Backward takes twice as long as forward.
std::int64_t TrainingJob::DeviceNs(int parts) const {
  return static_cast<std::int64_t>(arguments_.device_us) * 1000 * parts /
         (3 * static_cast<std::int64_t>(layers_.size()));
}

void TrainingJob::Backward(const Layer& layer, const float* parameters) {
  if (arguments_.compute == Compute::kDevice) {
    device_free_ns_ += DeviceNs(2);
    return SleepUntil(device_free_ns_);  // the gradients must be complete before they are sent
  }
  const float* base = layer.expected;
  for (std::uint32_t pass = 0; pass < arguments_.compute_passes; ++pass) {
    BackwardLayer(base, NextActivations(layer.size), parameters, layer.gradients, layer.size);
    base = layer.gradients;
  }
}

void TrainingJob::Forward(const Layer& layer, const float* parameters) {
  if (arguments_.compute == Compute::kDevice) {
    // The layer begins when the device has finished the previous layer and the parameters are
    // there.
    device_free_ns_ = std::max(device_free_ns_, Now(CLOCK_MONOTONIC)) + DeviceNs(1);
    return;
  }
  for (std::uint32_t pass = 0; pass < arguments_.compute_passes; ++pass)
    ForwardLayer(parameters, NextActivations(layer.size), layer.size);
}

float* TrainingJob::NextActivations(std::uint64_t count) {
  if (activations_.size() - cursor_ < count) cursor_ = 0;
  float* const next = activations_.data() + cursor_;
  cursor_ += count;
  return next;
}

void TrainingJob::VerifyGradients() const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (std::memcmp(layer.gradients, layer.expected, layer.size * sizeof(float)) != 0)
      Fail("the computed gradients of tensor " + std::to_string(i) + " are wrong");
  }
}

}  // namespace phub::bench
