// What every rank program of the bench does: fill gradients, exchange and verify, warm up, exchange
// and take the time, verify again, write it all down. A system adds how it exchanges.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "bench/rank/arguments.h"
#include "bench/rank/values.h"

namespace phub::bench {

// One system's way to exchange the gradients of one rank. One thread. Whatever fails calls Fail().
class Exchanger {
 public:
  virtual ~Exchanger() = default;

  // Allocates, connects, and sets parameters to `initial` (f32, the whole model; empty unless there
  // are parameters).
  virtual void Open(const float* initial) = 0;
  // Memory of a tensor, in elements of the type asked for. What Exchange() reads, and what it has
  // made afterwards: parameters or sums.
  virtual void* gradients(std::size_t tensor) = 0;
  virtual const void* results(std::size_t tensor) const = 0;
  // Returns when this rank's results are there.
  virtual void Exchange() = 0;
  virtual void Close() = 0;

  // A system that exchanges some tensors while others are still computed: each is started once per
  // exchange, in backward order, and then waited for in forward order.
  virtual bool can_overlap() const { return false; }
  virtual void Start(std::size_t tensor);
  virtual void Wait(std::size_t tensor);

  // Exchange() leaves the sum where the gradients were. They are filled again before each exchange
  // that is verified; while it is timed they are zeros, since sums of sums would grow for ever.
  virtual bool overwrites_gradients() const { return false; }
  // Called then. Momentum that fades for a thousand exchanges would become denormal numbers, and
  // those are slow.
  virtual void ForgetMomentum() {}
  // Parameters may differ by so many units in the last place per exchange: its update rounds
  // differently (a fused multiply-add, a product with 1/n). 0: the same bits as the serial one.
  virtual double tolerance_ulps() const { return 0; }
  // What the reader of the results should know: which transport it really used.
  virtual std::map<std::string, std::string> Notes() const { return {}; }
};

// The body of main(). `add_options` adds a system's own. Exit code 0, 1 or, for usage, 2.
// --build-info instead of anything else prints how the program was built, as JSON.
int RunRank(int argc, char** argv, const std::string& description,
            const std::function<void(CLI::App&)>& add_options,
            const std::function<std::unique_ptr<Exchanger>(const RankArguments&)>& make);

}  // namespace phub::bench
