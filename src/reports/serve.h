// What `orrery estimate serve` says.
#pragma once
#include <string>
#include <vector>

#include "data/table.h"
#include "serving/calibrate.h"

namespace orrery {

// Rates, latencies and the like of a run; loadgen answers with the same.
void add_serving_figures(const ServingFigures& f, std::vector<Section>& sections);

struct ServeAnswer {
  Simulation simulation;
  ServingFigures figures;
  ServingFigures quicker, slower;  // with kernels at either end of their 90 % interval
  double relative_error = 0;       // of a step, one standard deviation
  ServiceLevel level;
  RateFound highest;
  double price_per_gpu_hour = 0;  // 0 = not asked
  double rate = 0;                // asked; 0 = all at once
};

// What --calibrate changed.
Section service_calibration_section(const std::vector<ServiceFactor>& facts);

// `--engine list`.
Section engines_section(const std::vector<EngineFacts>& engines);

Document serve_document(const StepCosts& costs, const ServeMemory& memory, const ServeAnswer& answer,
                        const std::vector<std::string>& assumptions);

}  // namespace orrery
