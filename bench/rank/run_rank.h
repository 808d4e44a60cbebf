// The main program of every rank: fill gradients, exchange and verify, warm up, run timed
// exchanges, verify again, and write the results. A system implements the exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "bench/rank/arguments.h"
#include "bench/rank/values.h"

namespace phub::bench {

// One system's exchange of one rank's gradients. One thread. On failure, every function calls
// Fail().
class Exchanger {
 public:
  virtual ~Exchanger() = default;

  // Allocates, connects, and sets parameters to `initial` (f32, the whole model; empty if there are
  // no parameters).
  virtual void Open(const float* initial) = 0;
  // A tensor's memory, in elements of the requested type: Exchange()'s input, and its result
  // (parameters or sums).
  virtual void* gradients(std::size_t tensor) = 0;
  virtual const void* results(std::size_t tensor) const = 0;
  // Returns when this rank has its results.
  virtual void Exchange() = 0;
  virtual void Close() = 0;

  // For systems that exchange some tensors while others are still computed. Each tensor is started
  // once per exchange, in backward order, and then waited for in forward order.
  virtual bool can_overlap() const { return false; }
  virtual void Start(std::size_t tensor);
  virtual void Wait(std::size_t tensor);

  // True if Exchange() leaves the sum in the gradients' memory. Then gradients are filled again
  // before each verified exchange. They are zeros in timed exchanges, since sums of sums would grow
  // without bound.
  virtual bool overwrites_gradients() const { return false; }
  // Called when the gradients are set to zeros. Otherwise, momentum that decays over a thousand
  // exchanges would reach denormal numbers, which are slow.
  virtual void ForgetMomentum() {}
  // The allowed difference of parameters in units in the last place per exchange, for updates that
  // round differently (a fused multiply-add, a product with 1/n). 0: the bits must equal the serial
  // result's.
  virtual double tolerance_ulps() const { return 0; }
  // Notes for the reader of the results, such as the transport that was used.
  virtual std::map<std::string, std::string> Notes() const { return {}; }
};

// The body of main(). `add_options` adds the system's own options. Returns 0, 1, or 2 for a usage
// error. With --build-info, only prints how the program was built, as JSON.
int RunRank(int argc, char** argv, const std::string& description,
            const std::function<void(CLI::App&)>& add_options,
            const std::function<std::unique_ptr<Exchanger>(const RankArguments&)>& make);

}  // namespace phub::bench
