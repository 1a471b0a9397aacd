// orrery plan: the best ways to train a model on so many GPUs.
#include "estimate/plan.h"

#include <chrono>

#include "cli/calibrate.h"
#include "cli/estimate_options.h"
#include "cli/options.h"
#include "reports/plan.h"

namespace orrery {

Result<int> run_plan(const Args& given) {
  const auto options = understand(*find_command("plan"), given);
  if (!options) return tl::unexpected(options.error());
  Args args = given;
  const bool finetune = args.has("--method") && args.value("--method") != "full";
  // The layout is what is searched: the base must only be a job that can be.
  const auto gpus_given = args.options.find("--gpus"), batch_given = args.options.find("--global-batch-size");
  if (gpus_given == args.options.end()) return fail("how many GPUs?", "--gpus", "for example --gpus 64");
  PlanSpace space;
  const auto number = [](const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); };
  const std::string gpus = gpus_given->second.front();
  const std::string batch = batch_given == args.options.end() ? "" : batch_given->second.front();
  for (const auto& [value, name] : {std::pair{gpus, "--gpus"}, std::pair{batch, "--global-batch-size"}})
    if (!value.empty() &&
        (value.find_first_not_of("0123456789") != std::string::npos || value.size() > 7 || number(value) < 1))
      return fail("not a whole number from 1 to 9999999: " + value, name);
  space.gpus = number(gpus);
  space.vary_tp = !args.has("--tp");
  space.vary_pp = !args.has("--pp");
  space.vary_ep = !args.has("--expert-parallel");
  space.vary_micro_batch = !args.has("--micro-batch-size");
  space.vary_zero = !args.has("--zero") && args.value("--framework") != "fsdp";
  space.vary_recompute = !args.has("--recompute");
  space.vary_schedule = !args.has("--schedule");
  args.options.erase("--gpus");
  args.options.erase("--global-batch-size");
  if (args.has("--num-microbatches"))
    return fail("follow from the batch of a candidate", "--num-microbatches", "give --global-batch-size");
  if (args.has("--dp")) return fail("follows from --gpus and the rest", "--dp", "leave it out");
  // What is offloaded whole is sharded whole: no other stage can be tried.
  if (args.value("--offload") == "all" && !args.has("--zero") && args.value("--framework") == "deepspeed") {
    args.options["--zero"] = {"3"};
    space.vary_zero = false;
  }
  auto described = described_job(args, finetune);
  if (!described) return tl::unexpected(described.error());
  if (described->largest_micro_batch) return fail("is searched anyway", "--micro-batch-size", "leave it out");
  // A batch that most splits divide: 4 sequences a GPU.
  space.global_batch = batch.empty() ? 4 * space.gpus : number(batch);

  EstimateJob whole = described->job;  // on all GPUs: costs tell how many ranks there are
  whole.tp = whole.pp = whole.cp = 1, whole.dp = space.gpus;
  // No layout changes that.
  if (const Status ok = check(whole); !ok && ok.error().where == "--gpus") return tl::unexpected(ok.error());
  JobCosts costs = costs_of(whole);
  Calibration calibration;
  if (const auto ok = calibrate_by(args, *options, described->job, costs, calibration, described->assumptions); !ok)
    return tl::unexpected(ok.error());
  const auto begin = std::chrono::steady_clock::now();
  const Plan found = plan(described->job, costs, space);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::string command = finetune ? "orrery estimate finetune" : "orrery estimate train";
  for (const auto& [name, values] : args.options)
    for (const std::string& v : values)
      if (name != "--json" && name != "--quiet" && name != "--csv" && name != "--threads" && name != "--tp" &&
          name != "--pp" && name != "--expert-parallel" && name != "--micro-batch-size" && name != "--zero" &&
          name != "--recompute" && name != "--schedule" && name != "--num-microbatches" &&
          name != "--sequence-parallel")
        command += " " + name + " " + v;
  Document d = plan_document(found, seconds, command);
  if (batch.empty())
    d.notes.add("batch", Severity::info, 1, std::to_string(space.global_batch) + " sequences a step",
                "four a GPU; --global-batch-size states another");
  for (Section& s : calibration.sections) d.sections.push_back(std::move(s));
  note_beyond(calibration.largest, described->job, costs, calibration.notes);
  d.notes.merge(calibration.notes);
  const auto status = emit(d, *options);
  if (!status) return status;
  return found.candidates.empty() || !found.candidates.front().fits ? kIncomplete : *status;
}

}  // namespace orrery
