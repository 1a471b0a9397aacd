// Alibaba: the task table of PAI 2020 (GPUs and CPUs in percent, per instance) and the pods of openb 2023
// (thousandths).
#include <fmt/format.h>

#include "base/number_text.h"
#include "importers/jobs_rows.h"

namespace orrery {
namespace {

// text * times, as text: "50" * "4" = "200"; what is no number stays as it is, for the row to be refused.
void multiply(std::string_view& text, std::string_view times, std::string& out) {
  double a = 0, b = 0;
  if (is_missing(text) || read_double(text, a) != NumberState::ok || read_double(times, b) != NumberState::ok) return;
  out = fmt::format("{:.3f}", a * b);
  text = out;
}

RecordUse pai_row(const std::vector<std::string_view>& fields, const JobForm& form, JobRecord& r, JobScratch& s) {
  const std::string_view instances = fields[static_cast<std::size_t>(form.own[0])];
  multiply(r[JobField::gpus], instances, s.gpus);
  multiply(r[JobField::cpus], instances, s.cpus);
  return RecordUse::row;
}

RecordUse openb_row(const std::vector<std::string_view>& fields, const JobForm& form, JobRecord& r, JobScratch& s) {
  multiply(r[JobField::gpus], fields[static_cast<std::size_t>(form.own[0])], s.gpus);
  if (r[JobField::start].empty()) r[JobField::end] = {};  // never scheduled: deleted while it waited
  return RecordUse::row;
}

}  // namespace

std::optional<JobForm> pai_form(const JobHeader& h) {
  JobForm form;
  using F = JobField;
  form.relative_times = true;
  form.gpu_scale = form.cpu_scale = 1;
  form.adjust = pai_row;
  if (h.has_all({"job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_gpu"})) {
    form[F::id] = h.find({"job_name"});
    form[F::user] = h.find({"user"});
    form[F::type] = h.find({"task_name"});
    form[F::state] = h.find({"status"});
    form[F::start] = h.find({"start_time"});
    form[F::end] = h.find({"end_time"});
    form[F::cpus] = h.find({"plan_cpu"});
    form[F::gpus] = h.find({"plan_gpu"});
    form[F::group] = h.find({"gpu_type"});
    form.own[0] = h.find({"inst_num"});
    return form;
  }
  // As published: no header. job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type
  if (h.names.size() != 10) return std::nullopt;
  const std::string& status = h.names[3];
  double instances = 0;
  if (status != "terminated" && status != "failed" && status != "running" && status != "waiting" && status != "ready")
    return std::nullopt;
  if (read_double(h.names[2], instances) != NumberState::ok) return std::nullopt;
  form.headerless = true;
  form[F::id] = 0;
  form[F::type] = 1;
  form.own[0] = 2;
  form[F::state] = 3;
  form[F::start] = 4;
  form[F::end] = 5;
  form[F::cpus] = 6;
  form[F::gpus] = 8;
  form[F::group] = 9;
  return form;
}

std::optional<JobForm> openb_form(const JobHeader& h) {
  if (!h.has_all({"name", "num_gpu", "gpu_milli", "pod_phase", "creation_time", "deletion_time", "scheduled_time"}))
    return std::nullopt;
  JobForm form;
  using F = JobField;
  form.relative_times = true;
  form.gpu_scale = form.cpu_scale = 0;  // gpu_milli: of each of num_gpu
  form.adjust = openb_row;
  form[F::id] = h.find({"name"});
  form[F::type] = h.find({"qos"});
  form[F::group] = h.find({"gpu_spec"});
  form[F::state] = h.find({"pod_phase"});
  form[F::submit] = h.find({"creation_time"});
  form[F::start] = h.find({"scheduled_time"});
  form[F::end] = h.find({"deletion_time"});
  form[F::cpus] = h.find({"cpu_milli"});
  form[F::gpus] = h.find({"gpu_milli"});
  form.own[0] = h.find({"num_gpu"});
  return form;
}

}  // namespace orrery
