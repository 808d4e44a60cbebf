// The values that the bench exchanges, and what must come of them.
//
// Gradients and first parameters are small integers drawn from the element's index in the whole
// model, so that sums are exact in whatever order they are made, and an element that comes from
// elsewhere, or from another iteration, shows. An element's values depend on one of kClasses
// classes only; so the serial computation of any number of iterations is a table of kClasses
// numbers, and every element of a model can be checked in the time that one pass over it takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bench/rank/arguments.h"

namespace phub::bench {

// Of the update: b = g at first, else b = kMomentum * b + g; p -= kLearningRate * b, where g is the
// mean of the ranks' gradients. The definition of torch.optim.SGD.
inline constexpr double kLearningRate = 0.01;
inline constexpr double kMomentum = 0.9;

inline constexpr std::size_t kClasses = 251;

std::size_t ElementBytes(Type type);

class Values {
 public:
  Values(std::uint32_t world, Type type, Work work);

  // `first_index`: of the tensor's first element in the whole model.
  void FillGradients(std::uint32_t rank, std::uint64_t first_index, std::uint64_t count,
                     void* out) const;
  void FillInitial(std::uint64_t first_index, std::uint64_t count, void* out) const;  // f32

  // The serial computation goes on by one exchange of those gradients.
  void Advance();
  // Every element must be what the serial computation has now: the same bits, or, if tolerance is
  // not 0, within tolerance * max(1, |expected|). Empty, or what is wrong.
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
