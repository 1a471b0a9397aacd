// Laws of operators replaced by what tables of measured operators say (costs/operator_table.h), and factors on them by
// the measured steps of a few jobs.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "costs/measured_operators.h"
#include "data/notes.h"
#include "estimate/calibrate.h"
#include "estimate/estimate.h"

namespace orrery {

struct LargestMeasured {  // flops 0 = none was
  struct One {
    double flops = 0;
    std::string shape;
  };
  One product, attention;
};

// What several tables of one device say, each of other ranks or threads.
class TableCalibration {
 public:
  // Errors: another device than the tables before.
  Status add(OperatorTable table, const std::string& where);
  bool empty() const { return tables_.empty(); }

  struct Applied {
    std::vector<CalibratedFact> facts;
    std::string assumed;  // "" = nothing: of how many ranks the table is, where that is not the job's number
    LargestMeasured largest;
  };
  // Changes `costs`, which are those of `job`. On a CPU the rows of as many ranks as compute beside each other on a
  // server of the job are taken, else those of the nearest number; operators that were not measured keep their laws.
  // Errors: tables of another device than the platform's; of another number of threads.
  Result<Applied> apply(const EstimateJob& job, JobCosts& costs) const;
  Notes noisy_rows() const;  // of all tables

 private:
  struct Part {  // the rows of a number of ranks and threads
    std::size_t table;
    std::int64_t ranks, threads;
  };
  std::vector<OperatorTable> tables_;
  std::vector<std::string> where_;
  std::vector<Part> parts_;
};

// Products and attention of the job far above the largest that was measured, as a note: their times are the law's,
// drawn on.
void note_beyond(const LargestMeasured& largest, const EstimateJob& job, const JobCosts& costs, Notes& notes);

// A step of a job, measured.
struct CalibrationStep {
  EstimateJob job;
  double ns = 0;
  double doubt = 0.05;    // relative, one standard deviation
  std::string name;       // for messages
  bool held_out = false;  // not fitted to: what the others say of it is told
};

// Factors on what the laws say; 1 = as they say.
struct StepFactors {
  double gemm = 1, attention = 1, memory = 1, optimizer = 1;
  double dispatch = 1;                                    // what the host takes for an operator, and for a step
  double network = 1;                                     // of the times of transfers
  std::array<double, kGemmLayouts> emulated = {1, 1, 1};  // on products that JobCosts::emulated says, by layout
  bool knows_emulated = false;                            // such steps were measured
  void apply(JobCosts& costs) const;
};

// What comes nearest to the measured steps, each factor drawn to 1 by how well it is known beforehand: a few steps move
// those that they tell of. `samples_costs`: those of each sample's job before. Errors: none that is
// not held out.
Result<StepFactors> fit_steps(const std::vector<CalibrationStep>& samples,
                              const std::vector<JobCosts>& costs_of_samples);

// As rows of the calibration: each factor that moved.
std::vector<CalibratedFact> facts_of(const StepFactors& f, std::uint64_t samples);

}  // namespace orrery
