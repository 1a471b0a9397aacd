// How busy the hardware of clusters was, and what power came to.
#pragma once
#include <vector>

#include "data/table.h"
#include "data/utilization.h"

namespace orrery {

struct PowerTerms {
  double idle_gpu_watts = 70;        // a GPU that draws no more does nothing
  double pue = 1;                    // what a site draws for each watt of its servers
  double carbon_kg_per_kwh = 0.478;  // tonnes of CO2 equivalents a MWh, as the study of Acme has it
};

void describe_utilization(const std::vector<UtilMetric>& metrics, const PowerTerms& terms, std::vector<Section>& out);

}  // namespace orrery
