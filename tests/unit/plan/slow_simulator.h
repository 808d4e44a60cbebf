// The flow mode of common/plan/simulator.h in its simplest form: after every event, all rates are
// computed again for every transfer separately. It is at least quadratic, and shares no code with
// the product. Time is in seconds, without rounding.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "common/plan/simulator.h"

namespace phub::plan {

class SlowSimulator {
 public:
  SlowSimulator(const Topology& topology, const Forest& forest, const SimulationOptions& options)
      : topology_(topology), forest_(forest), options_(options) {
    for (std::uint32_t tree = 0; tree < forest.trees.size(); ++tree)
      for (const bool reduces : {true, false})
        for (const Edge& edge : reduces ? forest.trees[tree].reduce : forest.trees[tree].gather)
          for (std::uint32_t piece = 0; piece < options.pieces; ++piece)
            transfers_.push_back({.tree = tree, .edge = &edge, .piece = piece, .reduces = reduces});
    for (Transfer& transfer : transfers_)
      transfer.bytes_left = static_cast<double>(options.size_bytes) / options.pieces *
                            static_cast<double>(forest.trees[transfer.tree].share) /
                            static_cast<double>(forest.share_unit);
  }

  // The instant of the last arrival.
  double Run() {
    for (;;) {
      for (Transfer& transfer : transfers_)
        if (transfer.state == State::kWaits && MayStart(transfer)) transfer.state = State::kSends;
      const std::map<const Transfer*, double> rates = FairRates();
      double next = std::numeric_limits<double>::infinity();
      for (const Transfer& transfer : transfers_) {
        if (transfer.state == State::kSends)
          next = std::min(next, now_ + transfer.bytes_left / rates.at(&transfer));
        if (transfer.state == State::kTravels) next = std::min(next, transfer.arrives);
      }
      if (next == std::numeric_limits<double>::infinity()) return now_;
      for (Transfer& transfer : transfers_) {
        if (transfer.state == State::kTravels && transfer.arrives <= next) {
          transfer.state = State::kArrived;
          last_arrivals_[transfer.tree] = next;
        }
        if (transfer.state != State::kSends) continue;
        const double rate = rates.at(&transfer);
        transfer.bytes_left -= rate * (next - now_);
        if (transfer.bytes_left > rate * kInstant) continue;
        transfer.state = State::kTravels;
        transfer.arrives = next + Latency(*transfer.edge);
      }
      now_ = next;
    }
  }

  // By tree, after Run().
  const std::map<std::uint32_t, double>& last_arrivals() const { return last_arrivals_; }

 private:
  enum class State { kWaits, kSends, kTravels, kArrived };
  struct Transfer {
    std::uint32_t tree;
    const Edge* edge;
    std::uint32_t piece;
    bool reduces;
    double bytes_left = 0;
    double arrives = 0;
    State state = State::kWaits;
  };
  static constexpr double kInstant = 1e-13;  // seconds: ends closer to each other count as one

  const Path& PathOf(const Transfer& transfer) const {
    return forest_.paths[transfer.edge->path.value];
  }
  double Latency(const Edge& edge) const {
    double seconds = 0;
    for (const LinkIndex link : forest_.paths[edge.path.value])
      seconds += static_cast<double>(topology_.link(link).latency_ns) * 1e-9;
    return seconds;
  }

  bool MayStart(const Transfer& transfer) const {
    return std::all_of(transfers_.begin(), transfers_.end(), [&](const Transfer& other) {
      const bool feeds = other.tree == transfer.tree && other.piece == transfer.piece &&
                         other.edge->to == transfer.edge->from;
      const bool is_home = transfer.edge->from == forest_.trees[transfer.tree].home;
      const bool is_needed =
          feeds && (transfer.reduces || is_home ? other.reduces : !other.reduces);
      if (is_needed && other.state != State::kArrived) return false;
      const bool is_before = PathOf(other)[0] == PathOf(transfer)[0] &&
                             other.edge->step + other.piece < transfer.edge->step + transfer.piece;
      return !is_before || other.state == State::kTravels || other.state == State::kArrived;
    });
  }

  // Progressive filling: all rates grow equally until a link is full, which stops its transfers.
  std::map<const Transfer*, double> FairRates() const {
    std::map<const Transfer*, double> rates;
    std::vector<const Transfer*> growing;
    for (const Transfer& transfer : transfers_)
      if (transfer.state == State::kSends) growing.push_back(&transfer);
    std::vector<double> left(topology_.links().size());
    for (std::uint32_t i = 0; i < left.size(); ++i)
      left[i] = topology_.BytesPerSecond(LinkIndex{i});
    double level = 0;
    while (!growing.empty()) {
      std::vector<double> users(left.size(), 0);
      for (const Transfer* transfer : growing)
        for (const LinkIndex link : PathOf(*transfer)) ++users[link.value];
      double more = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < left.size(); ++i)
        if (users[i] > 0) more = std::min(more, left[i] / users[i]);
      level += more;
      for (std::size_t i = 0; i < left.size(); ++i) left[i] -= more * users[i];
      std::erase_if(growing, [&](const Transfer* transfer) {
        const Path& path = PathOf(*transfer);
        if (std::none_of(path.begin(), path.end(), [&](LinkIndex link) {
              return left[link.value] <= 1e-9 * topology_.BytesPerSecond(link);
            }))
          return false;
        rates[transfer] = level;
        return true;
      });
    }
    return rates;
  }

  const Topology& topology_;
  const Forest& forest_;
  SimulationOptions options_;
  std::vector<Transfer> transfers_;
  std::map<std::uint32_t, double> last_arrivals_;
  double now_ = 0;
};

}  // namespace phub::plan
