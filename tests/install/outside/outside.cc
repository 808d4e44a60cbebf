// One worker that trains one key for a few iterations and checks every number. It uses only phub's
// installed header and does not set the language level: phub::phub sets it.
#include <phub/client.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kElements = 100'000;  // more than one chunk

int Fail(const std::string& what) {
  std::fprintf(stderr, "outside: %s\n", what.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return Fail("usage: outside ENDPOINT VERSION");
  if (std::string(phub::Version()) != argv[2])
    return Fail(std::string("the library is ") + phub::Version());
  phub::Result<phub::Session> session = phub::Connect(argv[1]);
  if (!session.ok()) return Fail(phub::ToString(session.status()));
  phub::Result<phub::Job> job = session->Join({.job = "outside", .rank = 0, .world_size = 1});
  if (!job.ok()) return Fail(phub::ToString(job.status()));
  phub::Result<phub::Key> key =
      job->AddKey("weights", phub::f32, kElements, phub::Sgd{.learning_rate = 0.5f});
  if (!key.ok()) return Fail(phub::ToString(key.status()));
  phub::Status status = job->Initialize(*key, std::vector<float>(kElements, 10.0f));
  if (!status.ok()) return Fail(phub::ToString(status));
  for (int iteration = 1; iteration <= 3; ++iteration) {
    for (float& gradient : key->gradients<float>()) gradient = 4.0f;
    status = key->PushPull().Wait();
    if (!status.ok()) return Fail(phub::ToString(status));
    const float expected = 10.0f - 2.0f * static_cast<float>(iteration);
    for (const float parameter : key->parameters<float>()) {
      if (parameter != expected)
        return Fail("iteration " + std::to_string(iteration) + ": " + std::to_string(parameter) +
                    ", expected " + std::to_string(expected));
    }
  }
  status = job->Leave();
  return status.ok() ? 0 : Fail(phub::ToString(status));
}
