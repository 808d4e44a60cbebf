#include "common/http/text_format.h"

#include <fmt/format.h>

#include <iterator>

namespace phub::http {
namespace {

const char* ToString(TextFormat::Type type) {
  switch (type) {
    case TextFormat::Type::kCounter: return "counter";
    case TextFormat::Type::kGauge: return "gauge";
    case TextFormat::Type::kHistogram: return "histogram";
  }
  return "untyped";
}

// Help texts may contain quotes; in label values a quote must be escaped.
void AppendEscaped(std::string_view text, bool quotes, std::string& to) {
  for (const char character : text) {
    if (character == '\n') {
      to += "\\n";
    } else {
      if (character == '\\' || (quotes && character == '"')) to += '\\';
      to += character;
    }
  }
}

// Decimal and exact, without trailing zeros: "0.0025".
std::string Seconds(std::uint64_t nanoseconds) {
  const auto whole = static_cast<std::uint64_t>(kSecond);
  std::string text = fmt::format("{}.{:09}", nanoseconds / whole, nanoseconds % whole);
  text.resize(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

void TextFormat::BeginFamily(std::string_view name, Type type, std::string_view help) {
  family_ = name;
  text_ += fmt::format("# HELP {} ", name);
  AppendEscaped(help, /*quotes=*/false, text_);
  text_ += fmt::format("\n# TYPE {} {}\n", name, ToString(type));
}

void TextFormat::Write(std::string_view suffix, Labels labels, Label more, std::string_view value) {
  text_ += family_;
  text_ += suffix;
  char separator = '{';
  const auto append = [&](const Label& label) {
    if (label.value.empty()) return;
    text_ += separator;
    text_ += label.name;
    text_ += "=\"";
    AppendEscaped(label.value, /*quotes=*/true, text_);
    text_ += '"';
    separator = ',';
  };
  for (const Label& label : labels) append(label);
  append(more);
  if (separator == ',') text_ += '}';
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

void TextFormat::Add(std::uint64_t value, Labels labels) {
  Write("", labels, {}, fmt::format("{}", value));
}

void TextFormat::AddSeconds(DurationNs value, Labels labels) {
  Write("", labels, {}, Seconds(static_cast<std::uint64_t>(value)));
}

void TextFormat::AddHistogram(const Histogram& histogram, Labels labels) {
  std::uint64_t below = 0;
  for (std::size_t i = 0; i <= histogram.bound_count; ++i) {
    below += histogram.counts[i];
    const std::string bound = i == histogram.bound_count
                                  ? "+Inf"
                                  : Seconds(static_cast<std::uint64_t>(histogram.bounds[i]));
    Write("_bucket", labels, {"le", bound}, fmt::format("{}", below));
  }
  Write("_sum", labels, {}, Seconds(histogram.sum_ns));
  Write("_count", labels, {}, fmt::format("{}", below));
}

}  // namespace phub::http
