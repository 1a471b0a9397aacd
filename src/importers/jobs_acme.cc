// AcmeTrace: the clusters Seren and Kalos. Times carry their zones; Kalos' duration counts the waiting.
#include "importers/jobs_rows.h"

namespace orrery {

std::optional<JobForm> acme_form(const JobHeader& h) {
  if (!h.has_all({"job_id", "user", "node_num", "gpu_num", "cpu_num", "type", "state", "submit_time", "start_time",
                  "end_time", "duration", "queue", "gpu_time"}))
    return std::nullopt;
  JobForm form;
  using F = JobField;
  form[F::id] = h.find({"job_id"});
  form[F::user] = h.find({"user"});
  form[F::type] = h.find({"type"});
  form[F::state] = h.find({"state"});
  form[F::submit] = h.find({"submit_time"});
  form[F::start] = h.find({"start_time"});
  form[F::end] = h.find({"end_time"});
  form[F::duration] = h.find({"duration"});
  form[F::queue] = h.find({"queue"});
  form[F::gpus] = h.find({"gpu_num"});
  form[F::cpus] = h.find({"cpu_num"});
  form[F::nodes] = h.find({"node_num"});
  form[F::reason] = h.find({"reason"});
  return form;
}

}  // namespace orrery
