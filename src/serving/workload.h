// Requests that a server gets: when, how long their prompts are, how many tokens they ask for. Made up from
// distributions, the same for the same seed on every machine, or read from a file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/notes.h"

namespace orrery {

struct Request {
  double arrival_ns = 0;
  std::int64_t input = 1, output = 1;  // tokens
  // Prompts that begin alike: identities of their leading pieces of Workload::prefix_piece tokens, a row of
  // Workload::prefixes.
  std::uint32_t first_prefix = 0, prefixes = 0;
};

struct Workload {
  std::vector<Request> requests;  // by arrival
  std::vector<std::uint64_t> prefixes;
  std::int64_t prefix_piece = 16;
  bool timed = true;   // arrivals mean something: else all at once
  bool alike = false;  // all prompts, and so all answers, are the same text: tokens of a step choose the same experts
};

enum class LengthKind : std::uint8_t { fixed, uniform, lognormal, exponential };

// Tokens of a prompt or an answer.
struct LengthDistribution {
  LengthKind kind = LengthKind::fixed;
  double mean = 128;                 // as asked, the limits below included
  double sigma = 1;                  // lognormal: of the logarithm
  double least = 1, most = 1 << 24;  // limits; uniform: between them, both included
};

// "N", "fixed:N", "uniform:A,B", "lognormal:MEAN[,SIGMA[,LEAST[,MOST]]]", "exponential:MEAN[,LEAST[,MOST]]"; numbers
// may be named (mean=, sigma=, min=, max=). Errors: another word, numbers that cannot be, a mean that the limits
// exclude.
Result<LengthDistribution> read_length_distribution(const std::string& text, const std::string& where);

struct WorkloadAsked {
  std::int64_t requests = 1000;
  double rate = 0;  // requests a second; 0 = all at once
  double cv = 1;    // of the times between arrivals: 0 = even, 1 = Poisson, above: bursts (gamma distributed)
  LengthDistribution input, output;
  std::int64_t shared_prefix = 0;  // tokens that all prompts begin with
  std::uint64_t seed = 1;
};
Workload made_workload(const WorkloadAsked& asked);

// Arrivals anew, as asked; lengths stay.
void set_arrivals(Workload& w, double rate, double cv, std::uint64_t seed);

// Requests of a file, told by content: BurstGPT (Timestamp, Model, Request tokens, Response tokens), the Azure LLM
// inference traces (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake (JSON lines: timestamp in ms, input_length,
// output_length, hash_ids), and columns or keys named time, input, output and the like, in CSV or JSON lines
// (docs/formats/workloads.md). Rows that cannot be used are counted in `notes`. Errors: not such a file, no row.
Result<Workload> read_workload(const std::string& path, Notes& notes);
Result<Workload> parse_workload(std::string_view text, const std::string& where, Notes& notes);

// Repeatable random numbers: xoshiro256** 1.0 (Blackman, Vigna), seeded by splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed);
  double uniform();  // in (0, 1)
  double normal();
  double gamma(double shape);  // of scale 1
 private:
  std::uint64_t next();
  std::uint64_t s_[4];
};

}  // namespace orrery
