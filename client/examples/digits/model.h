// A small network in plain C++: 64 - 128 - 64 - 10, ReLU between layers, softmax and cross-entropy
// at the end. It does not depend on phub: parameters and gradients are spans of the caller's
// memory. The same code trains in one process (serial.cc) and in many (worker.cc).
//
// Deterministic: plain loops in a fixed order, so the same inputs give the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "client/examples/digits/data.h"

namespace digits {

struct Layer {
  std::size_t inputs;
  std::size_t outputs;
};
inline constexpr std::array<Layer, 3> kLayers = {{{kPixels, 128}, {128, 64}, {64, kClasses}}};

// Every layer has two tensors: weights, one row of `outputs` numbers per input, and biases.
inline constexpr std::size_t kTensorCount = 2 * kLayers.size();
constexpr std::size_t WeightsOf(std::size_t layer) { return 2 * layer; }
constexpr std::size_t BiasesOf(std::size_t layer) { return 2 * layer + 1; }
std::string TensorName(std::size_t tensor);  // "fc1.weight", "fc1.bias", "fc2.weight", ...
std::size_t TensorSize(std::size_t tensor);  // elements

// The initial values of a tensor; the same at every call.
std::vector<float> InitialValues(std::size_t tensor);

using Parameters = std::array<std::span<const float>, kTensorCount>;
using Gradients = std::array<std::span<float>, kTensorCount>;

struct BatchResult {
  double loss_sum = 0;  // sum over the batch's digits
  std::size_t correct = 0;
};

// Holds the activations of one batch. One thread.
class Network {
 public:
  explicit Network(std::size_t batch_size_max);

  // Forward and backward pass: computes the gradients of the batch's mean loss. Calls
  // `layer_done(layer)`, last layer first, as soon as a layer's gradients are final and its
  // parameters are no longer read. Both may then be pushed while earlier layers are computed.
  BatchResult ComputeGradients(const Parameters& parameters, std::span<const Digit* const> batch,
                               const Gradients& gradients,
                               const std::function<void(std::size_t layer)>& layer_done);

  std::size_t CountCorrect(const Parameters& parameters, std::span<const Digit> digits);

 private:
  void Forward(const Parameters& parameters, std::span<const Digit* const> batch);
  BatchResult SoftmaxLoss(std::span<const Digit* const> batch);
  void LayerGradients(std::size_t layer, std::size_t batch_size, const Gradients& gradients) const;
  void DeltasOfInputs(std::size_t layer, std::size_t batch_size, std::span<const float> weights);

  const std::size_t batch_size_max_;
  // activations_[i]: inputs of layer i, one row per digit of the batch. The last: outputs (logits).
  std::array<std::vector<float>, kLayers.size() + 1> activations_;
  // deltas_[i]: derivative of the loss with respect to activations_[i] before its ReLU.
  std::array<std::vector<float>, kLayers.size() + 1> deltas_;
};

}  // namespace digits
