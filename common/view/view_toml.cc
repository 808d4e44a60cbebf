#include "common/view/view_toml.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <utility>

#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "common/base/suggest.h"

namespace phub::view {
namespace {

constexpr std::size_t kKeyBytesShown = 64;

absl::Status WrongAt(const toml::source_region& region, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("line {}: {}", region.begin.line, what));
}

template <std::size_t kCount>
absl::Status CheckKeys(const toml::table& table, const std::array<std::string_view, kCount>& known,
                       std::string_view where) {
  for (const auto& [key, node] : table) {
    if (std::ranges::find(known, key.str()) != known.end()) continue;
    const std::string shown = Printable(key.str(), kKeyBytesShown);
    return WrongAt(key.source(), fmt::format("unknown field \"{}\" in {}{}", shown, where,
                                             DidYouMean(shown, known)));
  }
  return absl::OkStatus();
}

absl::Status ReadRack(const toml::node& node, std::size_t index, View& view) {
  const toml::table* const table = node.as_table();
  const std::string field = fmt::format("rack[{}]", index);
  if (table == nullptr) return WrongAt(node.source(), "write each rack as a [[rack]] table");
  constexpr std::array<std::string_view, 2> kKnown = {"name", "daemons"};
  if (absl::Status status = CheckKeys(*table, kKnown, "[[rack]]"); !status.ok()) return status;
  const toml::node* const name = table->get("name");
  const toml::node* const daemons = table->get("daemons");
  if (name == nullptr || daemons == nullptr) {
    return WrongAt(node.source(),
                   fmt::format("{}.{} is missing", field, name == nullptr ? "name" : "daemons"));
  }
  const auto text = name->value_exact<std::string>();
  if (!text) return WrongAt(name->source(), fmt::format("{}.name must be a string", field));
  const auto count = daemons->value_exact<std::int64_t>();
  if (!count || *count < 1 || *count > static_cast<std::int64_t>(kDaemonsMax)) {
    return WrongAt(daemons->source(),
                   fmt::format("{}.daemons must be a number from 1 to {}", field, kDaemonsMax));
  }
  view.racks.push_back({*text, static_cast<std::uint32_t>(*count)});
  return absl::OkStatus();
}

absl::Status ReadRacks(const toml::table& root, View& view) {
  const toml::node* const list = root.get("rack");
  if (list == nullptr) return absl::OkStatus();  // CheckView
  if (!list->is_array())
    return WrongAt(list->source(), "write each rack as a [[rack]] table, with two brackets");
  std::size_t index = 0;
  for (const toml::node& node : *list->as_array()) {
    if (absl::Status status = ReadRack(node, index++, view); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadAggregators(const toml::table& root, View& view) {
  const toml::node* const list = root.get("aggregators");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return WrongAt(list->source(), "aggregators must be a list of names");
  for (const toml::node& node : *list->as_array()) {
    const auto name = node.value_exact<std::string>();
    if (!name) {
      return WrongAt(node.source(),
                     fmt::format("aggregators[{}] must be a string", view.aggregators.size()));
    }
    view.aggregators.push_back(*name);
  }
  return absl::OkStatus();
}

absl::Status ReadTopology(
    const toml::table& root,
    const std::function<absl::StatusOr<std::string>(const std::string&)>& read_file, View& view) {
  const toml::node* const file = root.get("topology");
  const toml::node* const inlined = root.get("topology_text");
  if (file != nullptr && inlined != nullptr) {
    return WrongAt(inlined->source(), "topology and topology_text are both set; remove one");
  }
  const toml::node* const node = file != nullptr ? file : inlined;
  if (node == nullptr) return absl::OkStatus();
  const auto text = node->value_exact<std::string>();
  if (!text || text->empty()) {
    return WrongAt(node->source(), file != nullptr
                                       ? "topology must be the name of a file, or \"probe\""
                                       : "topology_text must be the text of a topology");
  }
  view.topology = *text;
  if (inlined != nullptr || *text == kMeasured) return absl::OkStatus();
  auto contents = read_file(*text);
  if (!contents.ok()) {
    return WrongAt(node->source(), fmt::format("topology: {}", MessageOf(contents.status())));
  }
  view.topology = *std::move(contents);
  return absl::OkStatus();
}

absl::StatusOr<View> ReadView(
    const toml::table& root,
    const std::function<absl::StatusOr<std::string>(const std::string&)>& read_file) {
  constexpr std::array<std::string_view, 4> kKnown = {"rack", "aggregators", "topology",
                                                      "topology_text"};
  View view;
  absl::Status status = CheckKeys(root, kKnown, "a view");
  if (status.ok()) status = ReadRacks(root, view);
  if (status.ok()) status = ReadAggregators(root, view);
  if (status.ok()) status = ReadTopology(root, read_file, view);
  if (status.ok()) status = CheckView(view);
  if (!status.ok()) return status;
  return view;
}

}  // namespace

absl::StatusOr<View> ParseViewToml(
    std::string_view text,
    const std::function<absl::StatusOr<std::string>(const std::string&)>& read_file) {
  if (text.size() > kViewFileBytesMax) {
    return absl::InvalidArgumentError(fmt::format("the file has {} bytes; at most {} are allowed",
                                                  text.size(), kViewFileBytesMax));
  }
  try {
    return ReadView(toml::parse(text), read_file);
  } catch (const toml::parse_error& error) {  // Debian's toml++ is built with exceptions
    return WrongAt(error.source(), fmt::format("not TOML: {}", error.description()));
  }
}

std::string ViewToToml(const View& view) {
  toml::table root;
  if (!view.aggregators.empty()) {
    toml::array names;
    for (const std::string& name : view.aggregators) names.push_back(name);
    root.insert("aggregators", std::move(names));
  }
  if (view.topology == kMeasured) {
    root.insert("topology", view.topology);
  } else if (!view.topology.empty()) {
    root.insert("topology_text", view.topology);
  }
  std::ostringstream text;
  text << "# view " << view.number << "\n";
  if (!root.empty()) text << root << "\n";
  // Each rack as a table of its own: the formatter would write them in one line.
  for (const Rack& rack : view.racks) {
    text << fmt::format("\n[[rack]]\nname = \"{}\"\ndaemons = {}\n", rack.name, rack.daemons);
  }
  return text.str();
}

}  // namespace phub::view
