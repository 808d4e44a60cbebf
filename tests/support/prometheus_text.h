// A strict reader of Prometheus' text format, version 0.0.4, with the additional rules of `promtool
// check metrics`: Prometheus accepts any text that this reader accepts, without warnings. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace phub::testing {

struct PrometheusSample {
  std::string name;  // for a histogram, with _bucket, _sum or _count
  std::map<std::string, std::string> labels;
  double value = 0;
};
struct PrometheusFamily {
  std::string type;  // "counter", "gauge", "histogram"
  std::string help;
  std::vector<PrometheusSample> samples;
};

struct PrometheusText {
  std::map<std::string, PrometheusFamily> families;
  std::vector<std::string> problems;  // "line 7: ..."; empty if the text is correct

  // The sum of the family's samples that have at least these labels; -1 without such samples.
  double Sum(const std::string& name, const std::map<std::string, std::string>& labels = {}) const;
};

PrometheusText ReadPrometheusText(std::string_view text);

}  // namespace phub::testing
