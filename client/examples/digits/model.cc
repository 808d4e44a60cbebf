#include "client/examples/digits/model.h"

#include <algorithm>
#include <cmath>

#include "client/examples/digits/random.h"

namespace digits {
namespace {

constexpr std::uint64_t kWeightSeed = 7;

// output += factor * input: the inner loop of the forward pass and of the weights' gradients.
void AddScaled(float factor, const float* input, std::size_t count, float* output) {
  for (std::size_t i = 0; i < count; ++i) output[i] += factor * input[i];
}

std::size_t IndexOfMax(std::span<const float> values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

std::string TensorName(std::size_t tensor) {
  return "fc" + std::to_string(tensor / 2 + 1) + (tensor % 2 == 0 ? ".weight" : ".bias");
}

std::size_t TensorSize(std::size_t tensor) {
  const Layer layer = kLayers[tensor / 2];
  return tensor % 2 == 0 ? layer.inputs * layer.outputs : layer.outputs;
}

std::vector<float> InitialValues(std::size_t tensor) {
  std::vector<float> values(TensorSize(tensor), 0.0f);
  if (tensor % 2 == 1) return values;  // biases start at zero
  // Kaiming uniform initialization: keeps the variance through ReLU layers.
  const float limit = std::sqrt(6.0f / static_cast<float>(kLayers[tensor / 2].inputs));
  Random random(kWeightSeed + tensor);
  for (float& value : values) value = (2.0f * random.Uniform() - 1.0f) * limit;
  return values;
}

Network::Network(std::size_t batch_size_max) : batch_size_max_(batch_size_max) {
  for (std::size_t i = 0; i <= kLayers.size(); ++i) {
    const std::size_t width = i == 0 ? kLayers[0].inputs : kLayers[i - 1].outputs;
    activations_[i].resize(batch_size_max * width);
    deltas_[i].resize(batch_size_max * width);
  }
}

void Network::Forward(const Parameters& parameters, std::span<const Digit* const> batch) {
  for (std::size_t n = 0; n < batch.size(); ++n)
    std::copy(batch[n]->pixels.begin(), batch[n]->pixels.end(), &activations_[0][n * kPixels]);
  for (std::size_t layer = 0; layer < kLayers.size(); ++layer) {
    const auto [inputs, outputs] = kLayers[layer];
    const bool last = layer + 1 == kLayers.size();
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const float* input = &activations_[layer][n * inputs];
      float* output = &activations_[layer + 1][n * outputs];
      std::copy_n(parameters[BiasesOf(layer)].data(), outputs, output);
      for (std::size_t i = 0; i < inputs; ++i)
        AddScaled(input[i], &parameters[WeightsOf(layer)][i * outputs], outputs, output);
      if (last) continue;
      for (std::size_t o = 0; o < outputs; ++o) output[o] = std::max(output[o], 0.0f);
    }
  }
}

// Cross-entropy of softmax(logits). The derivative with respect to a logit is (probability -
// target) / batch size.
BatchResult Network::SoftmaxLoss(std::span<const Digit* const> batch) {
  BatchResult result;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    const std::span<const float> logits(&activations_.back()[n * kClasses], kClasses);
    float* delta = &deltas_.back()[n * kClasses];
    const std::size_t best = IndexOfMax(logits);
    float sum = 0.0f;
    for (std::size_t c = 0; c < kClasses; ++c) {
      delta[c] = std::exp(logits[c] - logits[best]);
      sum += delta[c];
    }
    const std::size_t label = batch[n]->label;
    result.loss_sum += std::log(sum) - (logits[label] - logits[best]);
    result.correct += best == label ? 1 : 0;
    for (std::size_t c = 0; c < kClasses; ++c) {
      const float target = c == label ? 1.0f : 0.0f;
      delta[c] = (delta[c] / sum - target) / static_cast<float>(batch.size());
    }
  }
  return result;
}

void Network::LayerGradients(std::size_t layer, std::size_t batch_size,
                             const Gradients& gradients) const {
  const auto [inputs, outputs] = kLayers[layer];
  const std::span<float> weights = gradients[WeightsOf(layer)];
  const std::span<float> biases = gradients[BiasesOf(layer)];
  std::fill(weights.begin(), weights.end(), 0.0f);
  std::fill(biases.begin(), biases.end(), 0.0f);
  for (std::size_t n = 0; n < batch_size; ++n) {
    const float* input = &activations_[layer][n * inputs];
    const float* delta = &deltas_[layer + 1][n * outputs];
    AddScaled(1.0f, delta, outputs, biases.data());
    for (std::size_t i = 0; i < inputs; ++i)
      AddScaled(input[i], delta, outputs, &weights[i * outputs]);
  }
}

void Network::DeltasOfInputs(std::size_t layer, std::size_t batch_size,
                             std::span<const float> weights) {
  const auto [inputs, outputs] = kLayers[layer];
  for (std::size_t n = 0; n < batch_size; ++n) {
    const float* output_delta = &deltas_[layer + 1][n * outputs];
    for (std::size_t i = 0; i < inputs; ++i) {
      const std::size_t at = n * inputs + i;
      float sum = 0.0f;
      if (activations_[layer][at] > 0.0f) {  // otherwise the ReLU's derivative is 0
        for (std::size_t o = 0; o < outputs; ++o) sum += weights[i * outputs + o] * output_delta[o];
      }
      deltas_[layer][at] = sum;
    }
  }
}

BatchResult Network::ComputeGradients(const Parameters& parameters,
                                      std::span<const Digit* const> batch,
                                      const Gradients& gradients,
                                      const std::function<void(std::size_t)>& layer_done) {
  Forward(parameters, batch);
  const BatchResult result = SoftmaxLoss(batch);
  for (std::size_t layer = kLayers.size(); layer-- > 0;) {
    LayerGradients(layer, batch.size(), gradients);
    // Reads the layer's weights, so it must run before layer_done().
    if (layer > 0) DeltasOfInputs(layer, batch.size(), parameters[WeightsOf(layer)]);
    layer_done(layer);
  }
  return result;
}

std::size_t Network::CountCorrect(const Parameters& parameters, std::span<const Digit> digits) {
  std::size_t correct = 0;
  std::vector<const Digit*> batch;
  for (std::size_t first = 0; first < digits.size(); first += batch.size()) {
    batch.clear();
    for (const Digit& digit :
         digits.subspan(first, std::min(batch_size_max_, digits.size() - first)))
      batch.push_back(&digit);
    Forward(parameters, batch);
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const std::span<const float> logits(&activations_.back()[n * kClasses], kClasses);
      correct += IndexOfMax(logits) == batch[n]->label ? 1 : 0;
    }
  }
  return correct;
}

}  // namespace digits
