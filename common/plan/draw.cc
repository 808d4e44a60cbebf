#include "common/plan/draw.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/rational.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

constexpr double kSpacing = 72;  // pixels between neighbours in a grid
constexpr double kMargin = 48;
constexpr double kTitle = 30;
constexpr double kRadius = 13;  // radius of a member
constexpr double kLegendWidth = 130;
constexpr double kLegendHeight = 18;

struct Panel {
  std::size_t tree;
  bool reduces;
};

std::string Escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '&') {
      result += "&amp;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      result += c >= 0 && c < 32 ? '?' : c;
    }
  }
  return result;
}

Place OnCircle(double index, double count, double radius) {
  const double angle = 2 * std::numbers::pi * index / count - std::numbers::pi / 2;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Uses the nodes' places if given. Otherwise members are on a circle, and switches are inside it,
// near their neighbours.
std::vector<Place> PlacesOf(const Topology& topology) {
  std::vector<Place> places(topology.nodes().size());
  const bool all_given = std::all_of(topology.nodes().begin(), topology.nodes().end(),
                                     [](const Node& node) { return node.place.has_value(); });
  const auto members = static_cast<double>(topology.members().size());
  const double radius = std::max(1.5, members / 5.0);
  for (std::uint32_t i = 0; i < places.size(); ++i) {
    if (all_given) {
      places[i] = *topology.node(NodeIndex{i}).place;
    } else if (topology.IsMember(NodeIndex{i})) {
      places[i] = OnCircle(topology.RankOf(NodeIndex{i}), members, radius);
    }
  }
  const double switches = static_cast<double>(topology.nodes().size()) - members;
  for (std::uint32_t i = 0, seen = 0; i < places.size() && !all_given; ++i) {
    if (topology.IsMember(NodeIndex{i})) continue;
    const Place even = OnCircle(seen++, std::max(switches, 1.0), radius * 0.45);
    Place sum{0, 0};
    double count = 0;
    for (const LinkIndex link : topology.OutLinks(NodeIndex{i})) {
      if (!topology.IsMember(topology.link(link).to)) continue;
      sum.x += places[topology.link(link).to.value].x;
      sum.y += places[topology.link(link).to.value].y;
      ++count;
    }
    places[i] = count == 0
                    ? even
                    : Place{0.3 * sum.x / count + 0.7 * even.x, 0.3 * sum.y / count + 0.7 * even.y};
  }
  return places;
}

class Picture {
 public:
  Picture(const Topology& topology, const Forest& forest)
      : topology_(topology), forest_(forest), places_(PlacesOf(topology)) {
    double right = -1e9, bottom = -1e9;
    left_ = top_ = 1e9;
    for (const Place& place : places_) {
      left_ = std::min(left_, place.x);
      top_ = std::min(top_, place.y);
      right = std::max(right, place.x);
      bottom = std::max(bottom, place.y);
    }
    // The distance between levels is larger than between nodes of a level.
    const bool is_wide = right - left_ > 4 * (bottom - top_);
    scale_y_ = is_wide ? 2.2 * kSpacing : kSpacing;
    width_ = std::max((right - left_) * kSpacing + 2 * kMargin, 260.0);
    height_ = (bottom - top_) * scale_y_ + 2 * kMargin + kTitle;
    for (std::uint32_t i = 0; i < topology.links().size(); ++i)
      is_curved_.push_back(PassesANode(topology.link(LinkIndex{i})));
  }

  std::string Draw(const std::vector<Panel>& panels, std::size_t tree_count) {
    const auto columns = static_cast<std::size_t>(std::clamp(
        std::floor(1600 / width_), 1.0, std::ceil(std::sqrt(static_cast<double>(panels.size())))));
    const std::size_t rows = (panels.size() + columns - 1) / columns;
    Put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width_ * static_cast<double>(columns), height_ * static_cast<double>(rows) + 34);
    Put("<text x=\"12\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{} on {}: {} tree(s), {} "
        "steps{}</text>\n",
        Escaped(forest_.planner), Escaped(topology_.name()), tree_count, StepCount(forest_),
        panels.size() < tree_count ? fmt::format(", the first {} shown", panels.size()) : "");
    for (std::size_t i = 0; i < panels.size(); ++i) {
      Put("<g transform=\"translate({:.0f},{:.0f})\">\n", width_ * static_cast<double>(i % columns),
          34 + height_ * static_cast<double>(i / columns));
      DrawPanel(panels[i]);
      Put("</g>\n");
    }
    Put("</svg>\n");
    return fmt::to_string(out_);
  }

  // REQUIRES: constructed with any forest, which is not drawn.
  std::string DrawTogether(std::span<const NamedForest> forests) {
    const auto columns = static_cast<std::size_t>(std::max(1.0, std::floor(width_ / kLegendWidth)));
    const std::size_t rows = (forests.size() + columns - 1) / columns;
    Put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width_, height_ + 34 + kLegendHeight * static_cast<double>(rows));
    Put("<text x=\"12\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{} plans on {}</text>\n",
        forests.size(), Escaped(topology_.name()));
    for (std::size_t i = 0; i < forests.size(); ++i)
      Put("<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"12\" fill=\"{}\">{}</text>\n",
          12 + kLegendWidth * static_cast<double>(i % columns),
          42 + kLegendHeight * static_cast<double>(i / columns), PlanColour(i),
          Escaped(forests[i].name.substr(0, 18)));
    Put("<g transform=\"translate(0,{:.0f})\">\n", 34 + kLegendHeight * static_cast<double>(rows));
    DrawLinks();
    uses_.assign(topology_.links().size(), 0);
    std::vector<std::string> fills(topology_.nodes().size());
    for (std::size_t i = 0; i < forests.size(); ++i) {
      DrawUsedLinks(forests[i].forest, PlanColour(i));
      for (const NodeIndex member : MembersOf(topology_, forests[i].forest))
        fills[member.value] = PlanColour(i);
    }
    DrawNodes(fills);
    Put("</g>\n</svg>\n");
    return fmt::to_string(out_);
  }

 private:
  template <typename... Args>
  void Put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  Place At(NodeIndex node) const {
    const Place& place = places_[node.value];
    return {(place.x - left_) * kSpacing + kMargin, (place.y - top_) * scale_y_ + kMargin + kTitle};
  }

  bool PassesANode(const Link& link) const {
    const Place a = At(link.from), b = At(link.to);
    const double length = std::hypot(b.x - a.x, b.y - a.y);
    if (length < 1 || topology_.nodes().size() > 512) return false;
    for (std::uint32_t i = 0; i < places_.size(); ++i) {
      if (NodeIndex{i} == link.from || NodeIndex{i} == link.to) continue;
      const Place p = At(NodeIndex{i});
      const double along = ((p.x - a.x) * (b.x - a.x) + (p.y - a.y) * (b.y - a.y)) / length;
      const double off = ((p.x - a.x) * (b.y - a.y) - (p.y - a.y) * (b.x - a.x)) / length;
      if (along > 1 && along < length - 1 && std::abs(off) < kRadius) return true;
    }
    return false;
  }

  // The control point of a link's curve. A link curves around nodes on its line, and the two
  // directions of a link curve away from each other.
  Place Bend(LinkIndex index, double extra) const {
    const Link& link = topology_.link(index);
    const Place a = At(link.from), b = At(link.to);
    const double length = std::max(std::hypot(b.x - a.x, b.y - a.y), 1.0);
    const double bend = extra + (is_curved_[index.value] ? 0.30 * length : 0.0);
    return {(a.x + b.x) / 2 + bend * (b.y - a.y) / length,
            (a.y + b.y) / 2 - bend * (b.x - a.x) / length};
  }

  static std::string ColourOf(std::uint32_t step, std::uint32_t first, std::uint32_t last) {
    const double t = last > first ? static_cast<double>(step - first) / (last - first) : 0;
    return fmt::format("hsl({:.0f},85%,40%)", 220 - 220 * t);
  }

  void DrawLinks() {
    for (std::uint32_t i = 0; i < topology_.links().size(); ++i) {
      const Link& link = topology_.link(LinkIndex{i});
      const auto mirror = topology_.MirrorOf(LinkIndex{i});
      if (mirror && *mirror < LinkIndex{i}) continue;
      const Place a = At(link.from), b = At(link.to), c = Bend(LinkIndex{i}, 0);
      Put("<path d=\"M{:.1f},{:.1f} Q{:.1f},{:.1f} {:.1f},{:.1f}\" fill=\"none\" "
          "stroke=\"#d8d8d8\" stroke-width=\"{:.1f}\"/>\n",
          a.x, a.y, c.x, c.y, b.x, b.y,
          std::clamp(1.5 * topology_.CapacityOf(LinkIndex{i}).ToDouble(), 1.0, 5.0));
    }
  }

  // Both directions of a link as one line. Lines along the same link are next to each other.
  void DrawUsedLinks(const Forest& forest, const std::string& colour) {
    std::vector<bool> is_used(topology_.links().size(), false);
    for (const Tree& tree : forest.trees)
      for (const auto* edges : {&tree.reduce, &tree.gather})
        for (const Edge& edge : *edges)
          for (const LinkIndex link : forest.paths[edge.path.value])
            is_used[std::min(link, topology_.MirrorOf(link).value_or(link)).value] = true;
    for (std::uint32_t i = 0; i < is_used.size(); ++i) {
      if (!is_used[i]) continue;
      const double place = uses_[i]++;
      const bool is_left = static_cast<int>(place) % 2 == 0;
      const double extra = 6 * std::ceil(place / 2) * (is_left ? 1 : -1);
      const Link& link = topology_.link(LinkIndex{i});
      const Place a = At(link.from), b = At(link.to), c = Bend(LinkIndex{i}, extra);
      Put("<path d=\"M{:.1f},{:.1f} Q{:.1f},{:.1f} {:.1f},{:.1f}\" fill=\"none\" stroke=\"{}\" "
          "stroke-width=\"2\"/>\n",
          a.x, a.y, c.x, c.y, b.x, b.y, colour);
    }
  }

  // Colours of neighbours in the list differ much: their hues are a golden angle apart.
  static std::string PlanColour(std::size_t plan) {
    return fmt::format("hsl({:.0f},70%,45%)",
                       std::fmod(137.508 * static_cast<double>(plan), 360.0));
  }

  void DrawEdge(const Edge& edge, const std::string& colour, bool is_numbered) {
    const Path& path = forest_.paths[edge.path.value];
    for (std::size_t hop = 0; hop < path.size(); ++hop) {
      const Link& link = topology_.link(path[hop]);
      const Place c = Bend(path[hop], 9 + 5 * uses_[path[hop].value]++);
      const Place a = At(link.from);
      Place b = At(link.to);
      const double back = std::max(std::hypot(b.x - c.x, b.y - c.y), 1.0);
      const Place tip{b.x - (b.x - c.x) / back * (kRadius + 2),
                      b.y - (b.y - c.y) / back * (kRadius + 2)};
      Put("<path d=\"M{:.1f},{:.1f} Q{:.1f},{:.1f} {:.1f},{:.1f}\" fill=\"none\" stroke=\"{}\" "
          "stroke-width=\"2\"/>\n",
          a.x, a.y, c.x, c.y, tip.x, tip.y, colour);
      if (hop + 1 == path.size()) DrawTip(tip, {(b.x - c.x) / back, (b.y - c.y) / back}, colour);
      if (hop != path.size() / 2 || !is_numbered) continue;
      const Place middle{(a.x + 2 * c.x + b.x) / 4, (a.y + 2 * c.y + b.y) / 4};
      Put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" text-anchor=\"middle\" fill=\"{}\" "
          "stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>\n",
          middle.x, middle.y + 4, colour, edge.step);
    }
  }

  void DrawTip(Place tip, Place direction, const std::string& colour) {
    const Place base{tip.x - 8 * direction.x, tip.y - 8 * direction.y};
    Put("<path d=\"M{:.1f},{:.1f} L{:.1f},{:.1f} L{:.1f},{:.1f} Z\" fill=\"{}\"/>\n", tip.x, tip.y,
        base.x - 4 * direction.y, base.y + 4 * direction.x, base.x + 4 * direction.y,
        base.y - 4 * direction.x, colour);
  }

  // `fills`: colours of members, by node; empty: white.
  void DrawNodes(const std::vector<std::string>& fills) {
    for (std::uint32_t i = 0; i < topology_.nodes().size(); ++i) {
      const NodeIndex node{i};
      const Place p = At(node);
      if (topology_.IsMember(node)) {
        Put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" stroke=\"#333\"/>\n", p.x,
            p.y, kRadius, fills[i].empty() ? "white" : fills[i]);
      } else {
        Put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"34\" height=\"20\" rx=\"3\" fill=\"{}\" "
            "stroke=\"#333\"/>\n",
            p.x - 17, p.y - 10,
            topology_.node(node).kind == NodeKind::kAggregator ? "#c8e6c9" : "#eeeeee");
      }
      Put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"middle\">{}</text>\n",
          p.x, p.y + 3.5, topology_.node(node).name.size() > 4 ? 8 : 10,
          Escaped(topology_.node(node).name.substr(0, 10)));
    }
  }

  void DrawPanel(const Panel& panel) {
    const Tree& tree = forest_.trees[panel.tree];
    const std::vector<Edge>& edges = panel.reduces ? tree.reduce : tree.gather;
    const auto share = Rational::Make(tree.share, forest_.share_unit);
    std::uint32_t first = ~std::uint32_t{0}, last = 0;
    for (const Edge& edge : edges) {
      first = std::min(first, edge.step);
      last = std::max(last, edge.step);
    }
    Put("<text x=\"12\" y=\"18\" font-size=\"12\">tree {}: {}, home {}, {} of the data</text>\n",
        panel.tree, panel.reduces ? "reduce" : "gather", Escaped(topology_.node(tree.home).name),
        share ? share->ToString() : "a share");
    Put("<text x=\"12\" y=\"34\" font-size=\"11\"><tspan fill=\"{}\">step {}</tspan> to "
        "<tspan fill=\"{}\">step {}</tspan></text>\n",
        ColourOf(first, first, last), first, ColourOf(last, first, last), last);
    DrawLinks();
    uses_.assign(topology_.links().size(), 0);
    for (const Edge& edge : edges)
      DrawEdge(edge, ColourOf(edge.step, first, last), edges.size() <= 256);
    std::vector<std::string> fills(topology_.nodes().size());
    fills[tree.home.value] = "#ffd54f";
    DrawNodes(fills);
  }

  const Topology& topology_;
  const Forest& forest_;
  std::vector<Place> places_;
  std::vector<bool> is_curved_;
  std::vector<double> uses_;  // by link: edges drawn along it in this panel, for their spacing
  double left_ = 0, top_ = 0, width_ = 0, height_ = 0, scale_y_ = kSpacing;
  fmt::memory_buffer out_;
};

}  // namespace

absl::StatusOr<std::string> DrawForest(const Topology& topology, const Forest& forest,
                                       std::string_view home) {
  std::vector<Panel> panels;
  std::size_t count = forest.trees.size();
  if (!home.empty()) {
    const auto node = topology.FindNode(home);
    if (!node)
      return absl::NotFoundError(fmt::format("{} has no node '{}'", topology.name(), home));
    count = 0;
    for (std::size_t tree = 0; tree < forest.trees.size(); ++tree) {
      if (forest.trees[tree].home != *node) continue;
      ++count;
      if (panels.size() + 2 > kPanelsMax) continue;
      panels.push_back({tree, true});
      panels.push_back({tree, false});
    }
    if (panels.empty())
      return absl::NotFoundError(fmt::format("no tree has '{}' as its home", home));
  }
  for (std::size_t tree = 0; home.empty() && tree < std::min(count, kPanelsMax); ++tree)
    panels.push_back({tree, false});
  return Picture(topology, forest).Draw(panels, count);
}

std::string DrawForests(const Topology& topology, std::span<const NamedForest> forests) {
  const Forest none;
  return Picture(topology, none).DrawTogether(forests);
}

}  // namespace phub::plan
