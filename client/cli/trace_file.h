// The trace of a job's rounds in one daemon, collected page by page, and its file in Chrome's trace
// format. One thread.
//
// Tracks: each core loop has one with the work that it did, one chunk after the other. Each key has
// one with its rounds, of all chunks in this daemon together:
//
//   round      from the first gradient until the replies were given to the lanes
//   gradients  its first part, until the last gradient arrived
//   update     from then on: sum, optimizer, replies
//
// The chunks of a round of an ordinary key have its number. Those of a pooled key do not, since a
// round covers only the first chunks. They are put together by what the round is, and by time: a
// rank pushes the next round only when it has all replies of this one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

class TraceFile {
 public:
  static constexpr std::size_t kSpansMax = 1 << 20;  // about 100 MB

  // `unix_ns`: the time of this host's wall clock when the page's clock was read.
  TraceFile(const std::string& job, const v1::TraceJobResponse& first, std::int64_t unix_ns);

  void Add(const v1::TraceJobResponse& page);
  bool full() const { return spans_.size() >= kSpansMax; }
  std::size_t spans() const { return spans_.size(); }
  std::uint64_t dropped() const { return dropped_; }
  // Complete iterations of the key that has the most.
  // Jobs without such keys: rounds of the pooled key that has the most.
  std::uint64_t iterations() const { return iterations_ > 0 ? iterations_ : pooled_rounds_; }

  // Takes the file's text in pieces; false: it does not want more.
  using Sink = std::function<bool(std::string_view text)>;
  bool Write(const Sink& sink) const;

 private:
  struct Key {
    std::string name;
    std::uint32_t chunks = 0;  // in this daemon
    std::uint64_t iterations = 0;
  };
  struct Round;
  struct Part;
  using RoundsOfKeys = std::map<std::pair<std::uint32_t, std::uint64_t>, Round>;  // [key, round]
  // Chunks of a round whose spans were read.
  struct Progress {
    std::uint32_t gathered = 0;
    std::uint32_t replied = 0;
  };

  // Whether the core loops have begun and ended the round of all the key's chunks, and all of it is
  // in the trace.
  bool IsComplete(std::uint32_t key, const Progress& progress) const;
  std::uint32_t NumberOf(const v1::TracedKey& key);
  void Count(const v1::TracedSpan& span);
  RoundsOfKeys FindRounds() const;
  void AddPooledRounds(RoundsOfKeys& rounds) const;
  std::string NameOf(std::uint32_t key) const;
  template <typename Events>
  void WriteNames(Events& events) const;
  template <typename Events>
  void WriteCores(Events& events) const;
  template <typename Events>
  void WriteKeys(Events& events) const;

  const std::string job_;
  const v1::TraceJobResponse first_;  // without spans and keys
  const std::int64_t realtime_minus_monotonic_ns_;
  std::map<std::uint32_t, Key> keys_;               // by the numbers of their tracks
  std::map<std::uint32_t, std::uint32_t> numbers_;  // of keys whose number an earlier key had
  std::uint32_t numbers_changed_ = 0;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Progress> unfinished_;  // [key, round]
  std::uint64_t iterations_ = 0;
  // [key, core, chunk]: its rounds. Every round of a pooled key covers the first chunk.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint64_t> pooled_;
  std::uint64_t pooled_rounds_ = 0;
  std::vector<v1::TracedSpan> spans_;
  std::uint64_t dropped_ = 0;
};

}  // namespace phub::client::cli
