#include "tests/sim/sum_search.h"

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace phub::aggregation::search {
namespace {

// States are compared by a hash of 128 bits.
struct StateHash {
  std::uint64_t a = 0, b = 0;
  friend bool operator==(const StateHash&, const StateHash&) = default;
};
struct FirstHalf {
  std::size_t operator()(const StateHash& hash) const { return hash.a; }
};

std::uint64_t Mix(std::uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15u;
  return value ^ (value >> 29);
}

StateHash HashOf(const World& world, std::vector<std::uint64_t>& words) {
  words.clear();
  world.AppendState(words);
  StateHash hash{.a = 1, .b = words.size()};
  for (const std::uint64_t word : words) {
    hash.a = Mix(hash.a + word);
    hash.b = Mix(hash.b ^ (word * 0xd1342543de82ef95u + 1));
  }
  return hash;
}

class Searcher {
 public:
  Searcher(const Shape& shape, std::size_t states_max) : shape_(shape), states_max_(states_max) {}

  Outcome Run() {
    std::vector<std::uint64_t> words;
    std::vector<std::pair<std::uint32_t, World>> layer, next;
    layer.emplace_back(0, World(shape_));
    Find(HashOf(layer.front().second, words));
    steps_.push_back({});
    World scratch = layer.front().second;
    std::vector<Event> events;
    for (; !layer.empty(); std::swap(layer, next), next.clear()) {
      for (const auto& [at, world] : layer) {
        events.clear();
        world.AppendEvents(events);
        for (const Event& event : events) {
          scratch = world;
          scratch.Apply(event, nullptr);
          const auto [to, is_new] = Find(HashOf(scratch, words));
          if (is_new) steps_.push_back({.from = at, .event = event});
          if (!scratch.error().empty()) return Failed(scratch.error(), to);
          if (IsCalm(event.kind)) edges_.emplace_back(at, to);
          if (is_new && scratch.IsFinished()) finished_.push_back(to);
          if (is_new) next.emplace_back(to, scratch);
        }
        if (seen_.size() > states_max_) return {.states = seen_.size(), .truncated = true};
      }
    }
    const std::uint32_t stuck = FirstStuck();
    if (stuck < steps_.size()) return Failed("the job cannot finish any more", stuck);
    return {.states = seen_.size(), .finished = finished_.size()};
  }

 private:
  struct Step {
    std::uint32_t from = 0;
    Event event;
  };

  std::pair<std::uint32_t, bool> Find(const StateHash& hash) {
    const auto [found, is_new] = seen_.emplace(hash, static_cast<std::uint32_t>(seen_.size()));
    return {found->second, is_new};
  }

  // The first state from which calm events lead to no finished state.
  std::uint32_t FirstStuck() const {
    std::vector<std::uint32_t> begin(steps_.size() + 2), before(edges_.size());
    for (const auto& [from, to] : edges_) ++begin[to + 2];
    for (std::size_t i = 2; i < begin.size(); ++i) begin[i] += begin[i - 1];
    for (const auto& [from, to] : edges_) before[begin[to + 1]++] = from;
    std::vector<bool> good(steps_.size());
    std::vector<std::uint32_t> open = finished_;
    for (const std::uint32_t state : open) good[state] = true;
    while (!open.empty()) {
      const std::uint32_t state = open.back();
      open.pop_back();
      for (std::uint32_t i = begin[state]; i < begin[state + 1]; ++i) {
        if (good[before[i]]) continue;
        good[before[i]] = true;
        open.push_back(before[i]);
      }
    }
    std::uint32_t first = 0;
    while (first < good.size() && good[first]) ++first;
    return first;
  }

  // Repeats the events that lead to the state, with a log.
  Outcome Failed(const std::string& error, std::uint32_t state) const {
    std::vector<Event> events;
    for (std::uint32_t at = state; at != 0; at = steps_[at].from)
      events.push_back(steps_[at].event);
    std::string log;
    World world(shape_);
    for (; !events.empty(); events.pop_back()) world.Apply(events.back(), &log);
    return {.error = error + "\n" + log, .states = seen_.size()};
  }

  const Shape shape_;
  const std::size_t states_max_;
  std::unordered_map<StateHash, std::uint32_t, FirstHalf> seen_;
  std::vector<Step> steps_;  // by state: how it was reached first
  std::vector<std::uint32_t> finished_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;  // calm events
};

}  // namespace

Outcome Search(const Shape& shape, std::size_t states_max) {
  return Searcher(shape, states_max).Run();
}

}  // namespace phub::aggregation::search
