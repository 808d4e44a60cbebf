// Searches the protocol of sums in the network (common/aggregation) exhaustively: two (once three)
// workers that push two chunks in different orders, an aggregator and a core loop, with a bounded
// number of troubles of every kind at any moment. Mistakes that somebody could make must make the
// search fail, which shows that it tests the rules; the published protocol is one of them.
// PHUB_TEST_LONG=1: with more troubles at once, for minutes.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/sim/sum_search.h"

namespace phub::aggregation::search {
namespace {

constexpr std::size_t kStatesMax = 20'000'000;

struct Case {
  const char* name;
  Shape shape;
};

constexpr Geometry kOneSlot{.positions = 1, .blocks = 1};
constexpr Geometry kTwoPositions{.positions = 2, .blocks = 1};
constexpr Geometry kTwoBlocks{.positions = 1, .blocks = 2};

std::vector<Case> Cases() {
  return {
      {"two slots", {.iterations = 2, .geometry = kTwoPositions}},
      {"losses", {.iterations = 2, .geometry = kOneSlot, .losses = 3}},
      {"losses, two slots", {.iterations = 2, .geometry = kTwoPositions, .losses = 3}},
      {"losses, two blocks", {.iterations = 2, .geometry = kTwoBlocks, .losses = 3}},
      {"losses, late duplicate, early question",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .losses = 2,
        .duplicates = 1,
        .early_nacks = 1}},
      {"loss, late duplicate, early question, two slots",
       {.iterations = 1,
        .geometry = kTwoPositions,
        .losses = 1,
        .duplicates = 1,
        .early_nacks = 1}},
      {"loss, late duplicate, early question, two blocks",
       {.iterations = 1,
        .chunks = 1,
        .geometry = kTwoBlocks,
        .losses = 1,
        .duplicates = 1,
        .early_nacks = 1}},
      {"early question, aggregator restarted, late duplicate",
       {.iterations = 1,
        .chunks = 1,
        .geometry = kOneSlot,
        .duplicates = 1,
        .early_nacks = 1,
        .restarts = 1}},
      {"early question, worker replaced",
       {.iterations = 1,
        .chunks = 1,
        .geometry = kOneSlot,
        .duplicates = 1,
        .early_nacks = 1,
        .replacements = 1}},
      {"a short chunk", {.iterations = 2, .geometry = kTwoBlocks, .last_chunk_is_short = true}},
      {"a chunk is added and removed",
       {.iterations = 2, .geometry = kTwoPositions, .last_chunk_is_late = true}},
      {"a chunk is added and removed, late duplicate",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .duplicates = 1,
        .last_chunk_is_late = true}},
      {"a chunk is added and removed, aggregator restarted",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .restarts = 1,
        .last_chunk_is_late = true}},
      {"a short chunk, loss, late duplicate",
       {.iterations = 1,
        .geometry = kTwoBlocks,
        .losses = 1,
        .duplicates = 1,
        .last_chunk_is_short = true}},
      {"loss, late duplicate, two slots",
       {.iterations = 2, .geometry = kTwoPositions, .losses = 1, .duplicates = 1}},
      {"early questions", {.iterations = 2, .geometry = kOneSlot, .losses = 1, .early_nacks = 2}},
      {"three workers",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .workers = 3,
        .losses = 2,
        .duplicates = 1}},
      {"new lane", {.iterations = 1, .geometry = kOneSlot, .lost_lanes = 1}},
      {"new lane, two iterations",
       {.iterations = 2, .chunks = 1, .geometry = kOneSlot, .losses = 1, .lost_lanes = 1}},
      {"parameters: aggregator restarted, late duplicate, two iterations",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .duplicates = 1,
        .restarts = 1,
        .slow_parameters = true}},
      {"worker replaced", {.iterations = 1, .geometry = kOneSlot, .replacements = 1}},
      {"worker replaced, two blocks",
       {.iterations = 1, .chunks = 1, .geometry = kTwoBlocks, .replacements = 1}},
      {"parameters: worker replaced, loss, late duplicate",
       {.iterations = 1,
        .chunks = 1,
        .geometry = kOneSlot,
        .losses = 1,
        .duplicates = 1,
        .replacements = 1,
        .slow_parameters = true}},
      {"aggregator restarted, two chunks", {.iterations = 1, .geometry = kOneSlot, .restarts = 1}},
      {"aggregator restarted, loss, late duplicate",
       {.iterations = 1,
        .chunks = 1,
        .geometry = kOneSlot,
        .losses = 1,
        .duplicates = 1,
        .restarts = 1}},
      {"aggregator lost",
       {.iterations = 1, .geometry = kOneSlot, .restarts = 1, .grants_again = false}},
      {"job ended, two chunks", {.iterations = 1, .geometry = kOneSlot, .endings = 1}},
      {"parameters: losses, two slots",
       {.iterations = 1, .geometry = kTwoPositions, .losses = 2, .slow_parameters = true}},
      {"parameters: loss, late duplicate, two iterations",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .losses = 1,
        .duplicates = 1,
        .slow_parameters = true}},
      {"parameters: loss, asked for over tcp, two iterations",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .losses = 1,
        .give_ups = 1,
        .slow_parameters = true}},
      {"parameters: new lane, asked for over tcp, two iterations",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .lost_lanes = 1,
        .give_ups = 1,
        .slow_parameters = true}},
      {"parameters: aggregator restarted, loss, asked for over tcp",
       {.iterations = 1,
        .chunks = 1,
        .geometry = kOneSlot,
        .losses = 1,
        .restarts = 1,
        .give_ups = 1,
        .slow_parameters = true}},
      {"parameters: worker replaced, two iterations",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .replacements = 1,
        .slow_parameters = true}},
  };
}

std::vector<Case> LongCases() {
  return {
      {"loss, late duplicate, early question, two slots, two iterations",
       {.iterations = 2,
        .geometry = kTwoPositions,
        .losses = 1,
        .duplicates = 1,
        .early_nacks = 1}},
      {"loss, late duplicate, early question, two blocks, two iterations",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kTwoBlocks,
        .losses = 1,
        .duplicates = 1,
        .early_nacks = 1}},
      {"losses, late duplicates, early questions",
       {.iterations = 3,
        .chunks = 1,
        .geometry = kOneSlot,
        .losses = 2,
        .duplicates = 2,
        .early_nacks = 2}},
      {"parameters: loss, two chunks, two iterations",
       {.iterations = 2, .geometry = kTwoPositions, .losses = 1, .slow_parameters = true}},
      {"parameters: aggregator restarted, new lane, late duplicate",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .duplicates = 1,
        .lost_lanes = 1,
        .restarts = 1,
        .slow_parameters = true}},
      {"a short chunk is added and removed, late duplicate",
       {.iterations = 2,
        .geometry = kTwoBlocks,
        .duplicates = 1,
        .last_chunk_is_short = true,
        .last_chunk_is_late = true}},
      {"a chunk is added and removed, aggregator restarted, two chunks",
       {.iterations = 2, .geometry = kOneSlot, .restarts = 1, .last_chunk_is_late = true}},
      {"a chunk is added and removed, new lane",
       {.iterations = 2, .geometry = kOneSlot, .lost_lanes = 1, .last_chunk_is_late = true}},
      {"every trouble, two blocks",
       {.iterations = 1,
        .chunks = 1,
        .geometry = kTwoBlocks,
        .losses = 1,
        .duplicates = 1,
        .replacements = 1,
        .restarts = 1}},
      {"three workers, loss, late duplicate",
       {.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .workers = 3,
        .losses = 1,
        .duplicates = 1}},
      {"late duplicate, early question, two iterations",
       {.iterations = 2, .chunks = 1, .geometry = kOneSlot, .duplicates = 1, .early_nacks = 1}},
      {"aggregator restarted, two slots",
       {.iterations = 1, .geometry = kTwoPositions, .restarts = 1}},
      {"two late duplicates",
       {.iterations = 2, .chunks = 1, .geometry = kOneSlot, .losses = 1, .duplicates = 2}},
      {"loss, late duplicate",
       {.iterations = 2, .geometry = kOneSlot, .losses = 1, .duplicates = 1}},
      {"new lanes, two slots", {.iterations = 2, .geometry = kTwoPositions, .lost_lanes = 1}},
      {"aggregator restarted, two iterations",
       {.iterations = 2, .geometry = kOneSlot, .restarts = 1}},
      {"worker replaced, two iterations",
       {.iterations = 2, .geometry = kOneSlot, .replacements = 1}},
      {"job ended, late duplicate",
       {.iterations = 1, .geometry = kTwoPositions, .duplicates = 1, .endings = 1}},
  };
}

bool IsLong() { return std::getenv("PHUB_TEST_LONG") != nullptr; }

TEST(SumProtocol, WhateverHappensSumsAreExactAndTheJobCanFinish) {
  std::vector<Case> cases = Cases();
  if (IsLong()) {
    for (const Case& one : LongCases()) cases.push_back(one);
  }
  std::size_t states = 0;
  for (const Case& one : cases) {
    const Outcome outcome = Search(one.shape, kStatesMax);
    EXPECT_EQ(outcome.error, "") << one.name;
    EXPECT_FALSE(outcome.truncated) << one.name;
    EXPECT_GT(outcome.finished, 0u) << one.name;
    states += outcome.states;
    std::printf("%8zu states, %6zu complete: %s\n", outcome.states, outcome.finished, one.name);
  }
  EXPECT_GT(states, 300'000u) << "the search sees less than it did";
}

struct Wrong {
  Shape shape;
  std::vector<Mistake> mistakes;  // each leads to an error in this shape
  const char* error;              // the beginning of what the search reports
};

std::vector<Wrong> Mistakes() {
  using enum Mistake;
  constexpr const char* kSum = "wrong sum";
  constexpr const char* kStuck = "the job cannot finish";
  std::vector<Wrong> all = {
      {{.iterations = 3, .chunks = 1, .geometry = kOneSlot, .duplicates = 1},
       {kPublishedBitmaps, kOlderPhaseAdded, kDuplicateAdded, kSumOfAnyPhase},
       kSum},
      {{.iterations = 1, .chunks = 1, .geometry = kOneSlot, .duplicates = 1, .endings = 1},
       {kLeaseNotChecked},
       kSum},
      {{.iterations = 1, .chunks = 1, .geometry = kTwoBlocks, .restarts = 1},
       {kPartialSumsKept},
       kSum},
      {{.iterations = 1, .chunks = 1, .geometry = kOneSlot, .replacements = 1},
       {kReplacementKeepsLease},
       kSum},
      {{.iterations = 1, .chunks = 1, .geometry = kOneSlot, .losses = 2},
       {kSumSentOnce, kEmptySlotsContent, kAskedOnce},
       kStuck},
      {{.iterations = 1, .chunks = 1, .geometry = kTwoBlocks, .duplicates = 1},
       {kRepeatedSumFolded},
       kSum},
      // An empty slot accepts any phase, so the late copy must be of an older one.
      {{.iterations = 2, .chunks = 1, .geometry = kOneSlot, .duplicates = 1, .restarts = 1},
       {kRestartKeepsLease},
       "the aggregator refuses a packet of an honest worker"},
      {{.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .lost_lanes = 1,
        .slow_parameters = true},
       {kAnnouncementsAnswered},
       "worker 0 does not expect a reply"},
      {{.iterations = 1, .chunks = 1, .geometry = kOneSlot, .restarts = 1, .slow_parameters = true},
       {kPositionsWait},
       kStuck},
      {{.iterations = 2,
        .chunks = 1,
        .geometry = kOneSlot,
        .duplicates = 1,
        .slow_parameters = true},
       {kVersionNotChecked},
       "parameters of another version"},
  };
  if (IsLong()) {
    all.push_back({{.iterations = 2, .geometry = kOneSlot, .restarts = 1},
                   {kRanksDecideForTcpAlone},
                   kStuck});
  }
  return all;
}

TEST(SumProtocol, TheSearchFindsEveryMistake) {
  for (Wrong wrong : Mistakes()) {
    EXPECT_EQ(Search(wrong.shape, kStatesMax).error, "");
    for (const Mistake mistake : wrong.mistakes) {
      wrong.shape.mistake = mistake;
      const Outcome outcome = Search(wrong.shape, kStatesMax);
      std::printf("With the mistake \"%s\": %s\n", ToString(mistake), outcome.error.c_str());
      EXPECT_TRUE(outcome.error.starts_with(wrong.error))
          << ToString(mistake) << ": expected " << wrong.error;
    }
  }
}

// The published bitmaps are not a straw man: without late duplicates they are right.
TEST(SumProtocol, ThePublishedBitmapsAreExactIfDatagramsAreOnlyLost) {
  const Shape shape{.iterations = 3,
                    .chunks = 1,
                    .geometry = kOneSlot,
                    .losses = 2,
                    .mistake = Mistake::kPublishedBitmaps};
  EXPECT_EQ(Search(shape, kStatesMax).error, "");
}

}  // namespace
}  // namespace phub::aggregation::search
