// Writes Prometheus' text format, version 0.0.4: families, each with its help and type, then its
// samples. The caller must pass valid names; label values may be any UTF-8. One thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/clock.h"

namespace phub::http {

inline constexpr const char kTextFormatContentType[] = "text/plain; version=0.0.4; charset=utf-8";

struct Label {
  std::string_view name;
  std::string_view value;  // empty: the label is left out
};
using Labels = std::initializer_list<Label>;

class TextFormat {
 public:
  enum class Type : std::uint8_t { kCounter, kGauge, kHistogram };

  // Add all samples of a family after this call. Begin each family only once.
  void BeginFamily(std::string_view name, Type type, std::string_view help);
  void Add(std::uint64_t value, Labels labels = {});
  void AddSeconds(DurationNs value, Labels labels = {});  // exact
  // Counts are per bucket, not cumulative; the last one is for values beyond all bounds.
  struct Histogram {
    const DurationNs* bounds = nullptr;
    const std::uint64_t* counts = nullptr;  // one more than bounds
    std::size_t bound_count = 0;
    std::uint64_t sum_ns = 0;
  };
  void AddHistogram(const Histogram& histogram, Labels labels);

  std::string Take() { return std::move(text_); }

 private:
  void Write(std::string_view suffix, Labels labels, Label more, std::string_view value);

  std::string text_;
  std::string family_;
};

}  // namespace phub::http
