// Microsoft Philly, flattened to CSV (the original log is JSON: jobs_json.cc).
#include "importers/jobs_rows.h"

namespace orrery {

std::optional<JobForm> philly_form(const JobHeader& h) {
  if (!h.has_all({"timestamp", "duration", "num_gpus", "gpu_time", "cluster"})) return std::nullopt;
  JobForm form;
  form[JobField::submit] = h.find({"timestamp"});
  form[JobField::duration] = h.find({"duration"});
  form[JobField::gpus] = h.find({"num_gpus"});
  form[JobField::group] = h.find({"cluster"});  // of virtual clusters
  return form;
}

}  // namespace orrery
