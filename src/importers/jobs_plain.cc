// A plain CSV of jobs: a header with the names below, in any order; docs/formats/jobs.md documents it.
#include "importers/jobs_rows.h"

namespace orrery {

std::optional<JobForm> plain_form(const JobHeader& h) {
  JobForm form;
  using F = JobField;
  form[F::id] = h.find({"job_id", "jobid", "id", "job", "name"});
  form[F::user] = h.find({"user", "user_id", "username"});
  form[F::group] = h.find({"group", "vc", "account", "project"});
  form[F::type] = h.find({"type", "job_type", "workload"});
  form[F::state] = h.find({"state", "status"});
  form[F::submit] = h.find({"submit_time", "submitted_time", "submit", "arrival_s", "arrival_time", "timestamp"});
  form[F::start] = h.find({"start_time", "start"});
  form[F::end] = h.find({"end_time", "end", "finish_time"});
  form[F::duration] = h.find({"duration", "duration_s", "run_time", "runtime"});
  form[F::queue] = h.find({"queue", "queue_s", "wait_s", "queue_time"});
  form[F::gpus] = h.find({"gpu_num", "num_gpus", "gpus", "num_gpu"});
  form[F::cpus] = h.find({"cpu_num", "num_cpus", "cpus"});
  form[F::nodes] = h.find({"node_num", "num_nodes", "nodes"});
  form[F::reason] = h.find({"reason", "failure_reason"});
  form[F::limit] = h.find({"time_limit_s", "limit_s"});
  const bool lasts = form[F::duration] >= 0 || (form[F::start] >= 0 && form[F::end] >= 0);
  if (form[F::gpus] < 0 || !lasts) return std::nullopt;
  return form;
}

}  // namespace orrery
