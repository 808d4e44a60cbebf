// One rank. Only this file of the program uses phub.
#include <phub/client.h>

#include <array>
#include <cstdio>
#include <string>

#include "client/examples/digits/model.h"
#include "client/examples/digits/training.h"

namespace digits {
namespace {

phub::Momentum OptimizerAt(const Settings& settings, std::size_t iteration) {
  return {.learning_rate = LearningRateAt(settings, iteration),
          .momentum = settings.momentum,
          .weight_decay = settings.weight_decay};
}

// Adds one key per tensor, so that each tensor can be pushed as soon as its gradient is ready. One
// round trip adds all keys.
phub::Result<std::vector<phub::Key>> AddKeys(phub::Job& job, const Settings& settings) {
  std::vector<phub::KeySpec> specs;
  for (std::size_t t = 0; t < kTensorCount; ++t)
    specs.push_back({.name = TensorName(t),
                     .element_count = TensorSize(t),
                     .optimizer = OptimizerAt(settings, 0)});
  return job.AddKeys(specs);
}

// Trains from iteration `first`, which is 0 unless this process replaces one that died.
phub::Status TrainIterations(const Settings& settings, std::size_t rank, std::size_t first,
                             const DataSet& data, Network& network, std::vector<phub::Key>& keys) {
  // The network works in phub's own memory: nothing is copied on this side.
  Parameters parameters;
  Gradients gradients;
  for (std::size_t t = 0; t < kTensorCount; ++t) {
    parameters[t] = keys[t].parameters<float>();
    gradients[t] = keys[t].gradients<float>();
  }
  Dealer dealer(data.train, settings.world_size, settings.batch_size);
  Settings shown = settings;
  shown.quiet = settings.quiet || rank != 0;
  Progress progress(shown);

  std::array<phub::Handle, kTensorCount> updates;
  for (std::size_t iteration = first; iteration < settings.iterations; ++iteration) {
    if (iteration > 0 &&
        LearningRateAt(settings, iteration) != LearningRateAt(settings, iteration - 1)) {
      for (phub::Key& key : keys) {
        phub::Status status = key.SetHyperParameters(OptimizerAt(settings, iteration));
        if (!status.ok()) return status;
      }
    }
    // The last layer's gradients are sent while the first layer's are still being computed.
    const BatchResult result = network.ComputeGradients(
        parameters, dealer.Batch(iteration, rank), gradients, [&](std::size_t layer) {
          updates[WeightsOf(layer)] = keys[WeightsOf(layer)].PushPull();
          updates[BiasesOf(layer)] = keys[BiasesOf(layer)].PushPull();
        });
    for (const phub::Handle& update : updates) {
      phub::Status status = update.Wait();  // until the new parameters have arrived
      if (!status.ok()) return status;
    }
    progress.Add(iteration, result.loss_sum, result.correct, settings.batch_size,
                 settings.batch_size * settings.world_size);
  }
  return {};
}

phub::TransportChoice ChoiceOf(const std::string& transport) {
  if (transport == "tcp") return phub::TransportChoice::kTcp;
  if (transport == "shm") return phub::TransportChoice::kSharedMemory;
  if (transport == "verbs") return phub::TransportChoice::kVerbs;
  return phub::TransportChoice::kAuto;
}

phub::Status Train(const Settings& settings, const Place& place, const DataSet& data,
                   Trained& trained) {
  phub::Result<phub::Session> session = phub::Connect(place.endpoint);
  if (!session.ok()) return session.status();
  phub::JobOptions options = {.job = place.job,
                              .rank = static_cast<std::uint32_t>(place.rank),
                              .world_size = static_cast<std::uint32_t>(settings.world_size)};
  if (place.restart) {  // if a worker dies, the others wait until it is restarted
    options.on_loss = phub::LossPolicy::kWait;
    options.restart = true;
  }
  options.transport = ChoiceOf(place.transport);
  options.plan = place.plan;
  if (place.apply_iteration) options.apply = phub::Apply::kIteration;
  options.clip_norm = place.clip_norm;
  options.skip_nonfinite = place.skip_nonfinite;
  phub::Result<phub::Job> job = session->Join(options);
  if (!job.ok()) return job.status();
  trained.transports = job->transports();
  phub::Result<std::vector<phub::Key>> keys = AddKeys(*job, settings);
  if (!keys.ok()) return keys.status();
  for (std::size_t t = 0; t < kTensorCount; ++t) {
    // Sets the values of rank 0 everywhere. In a resumed process the keys already have values.
    phub::Status status = job->Initialize((*keys)[t], InitialValues(t));
    if (!status.ok()) return status;
  }
  const std::size_t first = job->iteration();
  if (job->resumed()) std::fprintf(stderr, "resumed at iteration %zu\n", first);

  Network network(settings.batch_size);
  phub::Status status = TrainIterations(settings, place.rank, first, data, network, *keys);
  if (!status.ok()) return status;
  Parameters parameters;
  for (std::size_t t = 0; t < kTensorCount; ++t) {
    const std::span<const float> values = (*keys)[t].parameters<float>();
    trained.tensors.emplace_back(values.begin(), values.end());
    parameters[t] = values;
  }
  trained.correct = network.CountCorrect(parameters, data.test);
  if (place.apply_iteration && place.rank == 0 && !settings.quiet) {
    const phub::IterationOutcome last = job->last_iteration();
    std::fprintf(stderr, "%zu iterations, %zu skipped\n", static_cast<std::size_t>(last.decided),
                 static_cast<std::size_t>(last.skipped));
    if (place.clip_norm > 0.0) std::fprintf(stderr, "the last norm was %.3g\n", last.norm);
  }
  return job->Leave();
}

}  // namespace

bool TrainAsWorker(const Settings& settings, const Place& place, const DataSet& data,
                   Trained& trained, std::string& error) {
  const phub::Status status = Train(settings, place, data, trained);
  if (!status.ok()) error = phub::ToString(status);
  return status.ok();
}

}  // namespace digits
