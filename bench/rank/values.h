// The values that the bench exchanges, and their expected results.
//
// Gradients and initial parameters are small integers that depend on the element's index in the
// whole model. Sums are therefore exact in any order, and an element from the wrong place or the
// wrong iteration is detected. Values depend only on the element's class, one of kClasses. The
// serial computation of any number of iterations is therefore a table of kClasses numbers, and
// checking all elements of a model takes a single pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bench/rank/arguments.h"

namespace phub::bench {

// The update: b = g at first, then b = kMomentum * b + g; p -= kLearningRate * b, where g is the
// mean of the ranks' gradients. This is torch.optim.SGD's definition.
inline constexpr double kLearningRate = 0.01;
inline constexpr double kMomentum = 0.9;

inline constexpr std::size_t kClasses = 251;

std::size_t ElementBytes(Type type);

class Values {
 public:
  Values(std::uint32_t world, Type type, Work work);

  // `first_index`: the index of the tensor's first element in the whole model.
  void FillGradients(std::uint32_t rank, std::uint64_t first_index, std::uint64_t count,
                     void* out) const;
  void FillInitial(std::uint64_t first_index, std::uint64_t count, void* out) const;  // f32

  // Advances the serial computation by one exchange of those gradients.
  void Advance();
  // Compares all elements with the serial computation: bit by bit, or, if tolerance is not 0,
  // within tolerance * max(1, |expected|). Returns the first difference, or an empty string.
  std::string Difference(std::uint64_t first_index, std::uint64_t count, const void* results,
                         double tolerance) const;

 private:
  using Table = std::array<float, kClasses>;
  const std::uint32_t world_;
  const Type type_;
  const Work work_;
  Table initial_;
  Table parameters_;
  Table momentum_{};
  Table sums_;
  bool advanced_ = false;
};

}  // namespace phub::bench
