// The sections that documents of `orrery bench` are made of.
#pragma once
#include "reports/bench.h"

namespace orrery {

std::string bench_series(const BenchRun& r);  // what a run is beside its techniques and batch

Cell known_cell(bool known, double x);  // else an empty one

// All runs for tools; for people those that no rule refused, and the rules that refused others.
void add_bench_runs(Document& d, const BenchFacts& facts, bool plan);
Section bench_states(const BenchFacts& facts);
// What did not end well, and why: the first of each reason, with the place of its logs. For people line by line:
// nothing of it is cut.
void add_bench_failures(Document& d, const BenchConfig& config, const BenchFacts& facts);
Section bench_throughput(const BenchFacts& facts);
Section bench_scaling(const BenchFacts& facts);
Section bench_shares(const BenchFacts& facts, const std::string& level);
Section bench_operators(const BenchFacts& facts);
Section bench_noise(const BenchFacts& facts);
Section bench_environments(const BenchFacts& facts);
Section bench_compared(const BenchFacts& facts, bool operators);  // runs, or operators of theirs

}  // namespace orrery
