#include "client/cli/output.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <numeric>
#include <string_view>
#include <thread>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/base/standard_streams.h"
#include "common/base/status_text.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

// Counts characters, not bytes: UTF-8 continuation bytes take no column.
std::size_t ColumnCount(const std::string& text) {
  std::size_t count = 0;
  for (const char byte : text)
    if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) ++count;
  return count;
}

constexpr std::string_view kGap = "  ";

// The first `width` characters.
std::string Cut(const std::string& line, std::size_t width) {
  std::size_t end = 0;
  for (std::size_t count = 0; end < line.size(); ++end) {
    if ((static_cast<unsigned char>(line[end]) & 0xC0) != 0x80 && count++ == width) break;
  }
  return line.substr(0, end);
}

constexpr std::size_t kFirstColumnMin = 8;
constexpr std::string_view kEllipsis = "...";

std::string Shortened(const std::string& cell, std::size_t width) {
  if (ColumnCount(cell) <= width) return cell;
  return Cut(cell, width - kEllipsis.size()) + std::string(kEllipsis);
}

}  // namespace

void Table::Add(std::vector<std::string> cells) {
  PHUB_CHECK(cells.size() == columns_.size(), "cells={} columns={}", cells.size(), columns_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Text(std::size_t width) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.title.size());
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], ColumnCount(row[i]));
  const std::vector<std::size_t> shown = ColumnsFor(width, widths);
  if (width > 0) {
    const std::size_t length = LineLength(shown, widths);
    const std::size_t excess = length > width ? length - width : 0;
    std::size_t& first = widths[shown.front()];
    if (first > excess + kFirstColumnMin) first -= excess;
  }

  std::string text;
  const auto append_line = [&](const auto& cell_of) {
    std::string line;
    for (const std::size_t i : shown) {
      const std::string cell = Shortened(cell_of(i), widths[i]);
      const std::string padding(widths[i] - ColumnCount(cell), ' ');
      const bool is_last = i == shown.back();
      if (columns_[i].align == Align::kRight) line += padding;
      line += cell;
      if (columns_[i].align == Align::kLeft && !is_last) line += padding;
      if (!is_last) line += kGap;
    }
    text += (width == 0 ? line : Cut(line, width)) + "\n";
  };
  append_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_)
    append_line([&](std::size_t i) -> const std::string& { return row[i]; });
  return text;
}

std::size_t Table::LineLength(const std::vector<std::size_t>& shown,
                              const std::vector<std::size_t>& widths) {
  std::size_t sum = kGap.size() * (shown.size() - 1);
  for (const std::size_t i : shown) sum += widths[i];
  return sum;
}

// The columns that are shown in a table of that width.
std::vector<std::size_t> Table::ColumnsFor(std::size_t width,
                                           const std::vector<std::size_t>& widths) const {
  std::vector<std::size_t> shown(columns_.size());
  std::iota(shown.begin(), shown.end(), std::size_t{0});
  while (width > 0 && LineLength(shown, widths) > width) {
    const auto least = std::max_element(
        shown.begin(), shown.end(),
        [&](std::size_t a, std::size_t b) { return columns_[a].optional < columns_[b].optional; });
    if (columns_[*least].optional == 0) break;
    shown.erase(least);
  }
  return shown;
}

namespace {

// phubctl merges the pages of an answer, so the empty token of the last page says nothing. Quotes
// inside of strings are escaped, so the text is no part of a name.
void EraseEmptyPageToken(std::string& json) {
  for (const std::string_view token :
       {",\"next_page_token\":\"\"", ",\n \"next_page_token\": \"\""}) {
    const std::size_t at = json.rfind(token);
    if (at != std::string::npos) json.erase(at, token.size());
  }
}

}  // namespace

std::string ToJson(const google::protobuf::Message& message, bool compact) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  options.add_whitespace = !compact;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  PHUB_CHECK(status.ok(), "type={}", message.GetTypeName());
  if (compact) json += '\n';  // otherwise protobuf adds the newline itself
  EraseEmptyPageToken(json);
  return json;
}

int ReportError(const absl::Status& status) {
  fmt::print(stderr, "phubctl: {}\n", Printable(MessageOf(status)));
  return absl::IsInvalidArgument(status) ? kUsage : absl::IsNotFound(status) ? kNotFound : kFailure;
}

void PrintWarning(const std::string& warning) {
  if (!warning.empty()) fmt::print(stderr, "phubctl: warning: {}\n", Printable(warning));
}

bool Confirmed(bool yes, const std::string& question) {
  if (yes) return true;
  if (isatty(STDIN_FILENO) == 0) {
    fmt::print(stderr, "phubctl: {} Pass --yes to confirm\n", question);
    return false;
  }
  fmt::print(stderr, "{} [y/N] ", question);
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "yes";
}

std::string MeanText(std::uint64_t total_ns, std::uint64_t count) {
  return count == 0 ? "-" : HumanDuration(static_cast<std::int64_t>(total_ns / count));
}

std::string DateText(std::int64_t at_ns) {
  if (at_ns == 0) return "-";
  const std::time_t seconds = at_ns / kSecond;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

int Show(DurationNs interval, const std::function<Shown()>& show) {
  const bool replaces = interval > 0 && isatty(STDOUT_FILENO) != 0;
  for (;;) {
    const Shown shown = show();
    if (shown.exit_code != kOk) return shown.exit_code;
    constexpr const char* kClearScreen = "\x1b[H\x1b[J";
    fmt::print("{}{}", replaces ? kClearScreen : "", shown.text);
    if (!FlushOutput()) return kFailure;
    if (interval == 0) return kOk;
    std::this_thread::sleep_for(std::chrono::nanoseconds(interval));
  }
}

DurationNs WatchInterval(const std::string& watch_text) {
  return watch_text.empty() ? 0 : ParseDuration(watch_text).value_or(kSecond);
}

void AddWatch(Subcommand command, std::string& watch_text) {
  command.AddOption("-w,--watch", watch_text, "Repeat every INTERVAL until interrupted")
      .TypeName("INTERVAL")
      .ValueMayBeLeftOut("1s")
      .Check([](const std::string& text) {
        constexpr DurationNs kIntervalMin = 100 * kMillisecond;
        const auto interval = ParseDuration(text);
        if (interval && *interval >= kIntervalMin) return std::string();
        return fmt::format("\"{}\" is not an interval of at least 100ms, such as \"2s\"", text);
      });
}

}  // namespace phub::client::cli
