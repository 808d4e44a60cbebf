#include "client/examples/digits/model.h"
#include "client/examples/digits/training.h"

namespace digits {
namespace {

using Tensors = std::vector<std::vector<float>>;

Tensors ZeroTensors() {
  Tensors tensors;
  for (std::size_t t = 0; t < kTensorCount; ++t) tensors.emplace_back(TensorSize(t), 0.0f);
  return tensors;
}

template <typename Views>
Views ViewsOf(Tensors& tensors) {
  Views views;
  for (std::size_t t = 0; t < kTensorCount; ++t) views[t] = tensors[t];
  return views;
}

float SumOfRanks(const std::vector<Tensors>& gradients, std::size_t tensor, std::size_t i,
                 std::size_t first, std::size_t count) {
  float sum = gradients[first][tensor][i];
  for (std::size_t k = 1; k < count; ++k) sum += gradients[first + k][tensor][i];
  return sum;
}

// The mean of all ranks' gradients, then one step of torch.optim.SGD. Each operation is rounded
// separately, in the order that phub documents: each rack sums its own ranks' gradients, then the
// sums of the racks are added. With two racks the order of this addition does not matter.
void Update(const Settings& settings, std::size_t iteration, const std::vector<Tensors>& gradients,
            std::size_t tensor, std::vector<float>& momentum, std::vector<float>& parameters) {
  // phub rounds hyper-parameters to the type that it computes in.
  const auto learning_rate = static_cast<float>(LearningRateAt(settings, iteration));
  const auto momentum_factor = static_cast<float>(settings.momentum);
  const auto weight_decay = static_cast<float>(settings.weight_decay);
  const auto ranks = static_cast<float>(settings.world_size);
  const std::size_t of_rack = settings.world_size / settings.racks;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    float g = SumOfRanks(gradients, tensor, i, 0, of_rack);
    if (settings.racks == 2) g += SumOfRanks(gradients, tensor, i, of_rack, of_rack);
    g = g / ranks;
    g = g + weight_decay * parameters[i];
    momentum[i] = iteration == 0 ? g : momentum_factor * momentum[i] + g;
    parameters[i] = parameters[i] - learning_rate * momentum[i];
  }
}

}  // namespace

double LearningRateAt(const Settings& settings, std::size_t iteration) {
  const bool late = iteration >= settings.iterations - settings.iterations / 4;
  return late ? settings.learning_rate / 10.0 : settings.learning_rate;
}

Trained TrainSerially(const Settings& settings, const DataSet& data) {
  Trained trained;
  for (std::size_t t = 0; t < kTensorCount; ++t) trained.tensors.push_back(InitialValues(t));
  const Parameters parameters = ViewsOf<Parameters>(trained.tensors);
  Tensors momentum = ZeroTensors();
  std::vector<Tensors> gradients(settings.world_size, ZeroTensors());
  Network network(settings.batch_size);
  Dealer dealer(data.train, settings.world_size, settings.batch_size);
  Progress progress(settings);

  for (std::size_t iteration = 0; iteration < settings.iterations; ++iteration) {
    for (std::size_t rank = 0; rank < settings.world_size; ++rank) {
      const BatchResult result =
          network.ComputeGradients(parameters, dealer.Batch(iteration, rank),
                                   ViewsOf<Gradients>(gradients[rank]), [](std::size_t) {});
      const bool last_rank = rank + 1 == settings.world_size;
      if (last_rank)
        progress.Add(iteration, result.loss_sum, result.correct, settings.batch_size,
                     settings.batch_size * settings.world_size);
    }
    for (std::size_t t = 0; t < kTensorCount; ++t)
      Update(settings, iteration, gradients, t, momentum[t], trained.tensors[t]);
  }
  trained.correct = network.CountCorrect(parameters, data.test);
  return trained;
}

}  // namespace digits
