// Helios (SenseTime; Saturn, Earth, Venus, Uranus): times without zone, virtual clusters, no types.
#include "importers/jobs_rows.h"

namespace orrery {

std::optional<JobForm> helios_form(const JobHeader& h) {
  if (!h.has_all({"job_id", "user", "vc", "gpu_num", "state", "submit_time", "duration", "queue"}) ||
      h.find({"type"}) >= 0)
    return std::nullopt;
  JobForm form;
  using F = JobField;
  form[F::id] = h.find({"job_id"});
  form[F::user] = h.find({"user"});
  form[F::group] = h.find({"vc"});
  form[F::state] = h.find({"state"});
  form[F::submit] = h.find({"submit_time"});
  form[F::start] = h.find({"start_time"});
  form[F::end] = h.find({"end_time"});
  form[F::duration] = h.find({"duration"});
  form[F::queue] = h.find({"queue"});
  form[F::gpus] = h.find({"gpu_num"});
  form[F::cpus] = h.find({"cpu_num"});
  form[F::nodes] = h.find({"node_num"});
  return form;
}

}  // namespace orrery
