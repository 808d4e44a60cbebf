#include "tests/support/prometheus_text.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <regex>
#include <set>

namespace phub::testing {
namespace {

bool IsMetricName(const std::string& name) {
  static const std::regex kName("[a-z][a-z0-9_]*");  // no colons, no capitals: promtool warns
  return std::regex_match(name, kName);
}

bool IsLabelName(const std::string& name) {
  static const std::regex kName("[a-z][a-z0-9_]*");
  return std::regex_match(name, kName);
}

bool EndsWith(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

class Reader {
 public:
  PrometheusText Read(std::string_view text) {
    if (text.empty() || text.back() != '\n') Problem("the text does not end with a newline");
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      ++line_;
      ReadLine(std::string(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    for (const auto& [name, family] : result_.families) CheckFamily(name, family);
    return std::move(result_);
  }

 private:
  void Problem(const std::string& what) {
    result_.problems.push_back("line " + std::to_string(line_) + ": " + what);
  }

  void ReadLine(const std::string& line) {
    if (line.empty()) return Problem("an empty line");
    if (line.rfind("# HELP ", 0) == 0) return ReadHelp(line.substr(7));
    if (line.rfind("# TYPE ", 0) == 0) return ReadType(line.substr(7));
    if (line[0] == '#') return Problem("a comment that is neither HELP nor TYPE");
    ReadSample(line);
  }

  void ReadHelp(const std::string& rest) {
    const std::size_t space = rest.find(' ');
    current_ = rest.substr(0, space);
    if (!IsMetricName(current_)) Problem("bad name " + current_);
    if (result_.families.contains(current_)) Problem(current_ + " comes twice");
    PrometheusFamily& family = result_.families[current_];
    if (space != std::string::npos) family.help = rest.substr(space + 1);
    if (family.help.empty()) Problem(current_ + " has no help");
  }

  void ReadType(const std::string& rest) {
    const std::size_t space = rest.find(' ');
    if (rest.substr(0, space) != current_) return Problem("TYPE of another family than HELP");
    PrometheusFamily& family = result_.families[current_];
    if (!family.type.empty() || !family.samples.empty()) Problem("TYPE too late");
    family.type = space == std::string::npos ? "" : rest.substr(space + 1);
    if (family.type != "counter" && family.type != "gauge" && family.type != "histogram")
      Problem("unknown type " + family.type);
  }

  void ReadSample(const std::string& line) {
    const std::size_t name_end = line.find_first_of("{ ");
    if (name_end == std::string::npos) return Problem("no value: " + line);
    PrometheusSample sample;
    sample.name = line.substr(0, name_end);
    std::size_t at = name_end;
    if (line[at] == '{' && !ReadLabels(line, at, sample)) return Problem("bad labels: " + line);
    if (at >= line.size() || line[at] != ' ') return Problem("no space before value: " + line);
    const std::string value = line.substr(at + 1);
    static const std::regex kNumber("[0-9]+(\\.[0-9]+)?");
    if (!std::regex_match(value, kNumber)) return Problem("bad value: " + line);
    sample.value = std::strtod(value.c_str(), nullptr);
    if (!series_.insert(line.substr(0, at)).second) Problem("a series twice: " + line);
    AddToFamily(std::move(sample));
  }

  // Sets `at` behind the closing brace.
  bool ReadLabels(const std::string& line, std::size_t& at, PrometheusSample& sample) {
    do {
      const std::size_t equals = line.find("=\"", ++at);
      if (equals == std::string::npos) return false;
      const std::string name = line.substr(at, equals - at);
      std::string value;
      for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
        if (line[at] != '\\') {
          value += line[at];
          continue;
        }
        if (++at >= line.size()) return false;
        if (line[at] != 'n' && line[at] != '\\' && line[at] != '"') return false;
        value += line[at] == 'n' ? '\n' : line[at];
      }
      if (++at >= line.size() || !IsLabelName(name)) return false;
      if (!sample.labels.emplace(name, value).second) return false;
    } while (line[at] == ',');
    return line[at++] == '}';
  }

  void AddToFamily(PrometheusSample sample) {
    const auto found = result_.families.find(current_);
    if (found == result_.families.end()) return Problem("a sample before any family");
    PrometheusFamily& family = found->second;
    const bool histogram = family.type == "histogram";
    const bool belongs = histogram ? sample.name == current_ + "_bucket" ||
                                         sample.name == current_ + "_sum" ||
                                         sample.name == current_ + "_count"
                                   : sample.name == current_;
    if (!belongs) return Problem(sample.name + " does not belong to " + current_);
    if ((sample.name == current_ + "_bucket" && histogram) != sample.labels.contains("le"))
      Problem("le where there is no bucket, or a bucket without it");
    family.samples.push_back(std::move(sample));
  }

  void CheckFamily(const std::string& name, const PrometheusFamily& family) {
    const bool total = EndsWith(name, "_total");
    if (total != (family.type == "counter"))
      Problem(name + " is a " + family.type + ": counters end with _total, and only they");
    for (const char* unit : {"_ns", "_ms", "_us", "_s", "_milliseconds", "_nanoseconds", "_kib",
                             "_mib", "_percent", "_minutes"}) {
      if (EndsWith(total ? name.substr(0, name.size() - 6) : name, unit))
        Problem(name + " is not in base units");
    }
    for (const char* type : {"_counter", "_gauge", "_histogram", "_bucket", "_count", "_sum"}) {
      if (EndsWith(name, type)) Problem(name + " ends with " + type);
    }
    if (family.type == "histogram") CheckHistogram(name, family);
  }

  struct Buckets {
    std::map<double, double> by_bound;
    double count = -1, sum = -1;
  };

  void CheckHistogram(const std::string& name, const PrometheusFamily& family) {
    std::map<std::map<std::string, std::string>, Buckets> all;
    for (const PrometheusSample& sample : family.samples) {
      std::map<std::string, std::string> labels = sample.labels;
      labels.erase("le");
      Buckets& buckets = all[labels];
      if (sample.name == name + "_count") buckets.count = sample.value;
      if (sample.name == name + "_sum") buckets.sum = sample.value;
      if (!sample.labels.contains("le")) continue;
      const std::string& le = sample.labels.at("le");
      const double bound =
          le == "+Inf" ? std::numeric_limits<double>::infinity() : std::strtod(le.c_str(), nullptr);
      if (!buckets.by_bound.empty() && bound <= buckets.by_bound.rbegin()->first)
        Problem(name + ": buckets are not in order");
      buckets.by_bound[bound] = sample.value;
    }
    for (const auto& [labels, buckets] : all) {
      double before = 0;
      for (const auto& [bound, value] : buckets.by_bound) {
        if (value < before) Problem(name + ": a bucket holds less than a smaller one");
        before = value;
      }
      if (buckets.by_bound.empty() || !std::isinf(buckets.by_bound.rbegin()->first))
        Problem(name + " has no +Inf bucket");
      if (buckets.count != before) Problem(name + "_count is not what +Inf holds");
      if (buckets.sum < 0) Problem(name + " has no _sum");
    }
  }

  PrometheusText result_;
  std::string current_;
  std::set<std::string> series_;
  std::size_t line_ = 0;
};

}  // namespace

double PrometheusText::Sum(const std::string& name,
                           const std::map<std::string, std::string>& labels) const {
  double sum = 0;
  bool any = false;
  for (const auto& [family_name, family] : families) {
    for (const PrometheusSample& sample : family.samples) {
      if (sample.name != name) continue;
      bool matches = true;
      for (const auto& [label, value] : labels) {
        const auto found = sample.labels.find(label);
        matches = matches && found != sample.labels.end() && found->second == value;
      }
      if (!matches) continue;
      any = true;
      sum += sample.value;
    }
  }
  return any ? sum : -1;
}

PrometheusText ReadPrometheusText(std::string_view text) { return Reader().Read(text); }

}  // namespace phub::testing
