// Shared by the tests of common/plan.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "common/plan/forest.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "common/plan/verifier.h"

namespace phub::plan {

// Fails the test, and ends the program, if the name is not a topology.
inline Topology Named(std::string_view spec) {
  absl::StatusOr<Topology> topology = Generate(spec);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *std::move(topology);
}

inline Forest Planned(std::string_view planner, const Topology& topology,
                      const PlannerOptions& options = {}) {
  absl::StatusOr<Forest> forest = MakePlan(*FindPlanner(planner), topology, options);
  EXPECT_TRUE(forest.ok()) << planner << " on " << topology.name() << ": " << forest.status();
  return *std::move(forest);
}

inline VerifyReport Verified(const Topology& topology, const Forest& forest) {
  absl::StatusOr<VerifyReport> report = Verify(topology, forest);
  EXPECT_TRUE(report.ok()) << forest.planner << " on " << topology.name() << ": "
                           << report.status();
  return *std::move(report);
}

inline Rational Fraction(std::int64_t numerator, std::int64_t denominator) {
  return Rational::Make(numerator, denominator).value();
}

// The reason why a value was refused.
template <typename Value>
std::string Why(const absl::StatusOr<Value>& value) {
  return value.ok() ? "accepted" : std::string(value.status().message());
}

inline std::string Replaced(std::string text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

inline void PrintTo(const Rational& value, std::ostream* out) { *out << value.ToString(); }
}  // namespace phub::plan
