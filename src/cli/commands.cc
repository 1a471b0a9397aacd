// The table of commands. To add one: a row here, or a function `Command NAME_command()` beside its run_NAME, called
// here.
#include "cli/calibrate.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/estimate_ops.h"
#include "cli/estimate_options.h"
#include "cli/serve_options.h"
#include "cli/synth.h"

namespace orrery {
namespace {

std::vector<Command> make_commands() {
  return {
      {.name = "replay",
       .summary = "rebuild a job from its PyTorch traces, run it again, compare with the measured run",
       .operands = "TRACE...",
       .least = 1,
       .most = kMany,
       .description =
           "Reads PyTorch profiler (Kineto) traces, one file a rank, and rebuilds what waited for what: program order "
           "on CPU threads, launches, streams, events, synchronisation and hand-offs between threads. Then it runs "
           "that graph again and compares it, step by step and rank by rank, with what was measured. A prediction "
           "made from the graph is only as good as this comparison.\n\n"
           "TRACE is a file, a directory (all traces in it, recursively), a glob or - for standard input. Plain, gzip, "
           "zstd and zip files are told by their content. Files of a directory or a pattern that are no traces are "
           "left "
           "out with a note; a broken trace among them ends the command with status 2: name the others, or give a "
           "pattern, to leave it out. Recorded steps of pipelines are read as well (docs/formats/pipeline-steps.md), "
           "and answered with the same tables, slow stages and the slowdown that they make.\n\n"
           "Where explained idle (section \"How much the graph explains\") is under 90 %, a warning says so: the "
           "replay of the run as it was may still be right, but what a changed run would take is not to be read from "
           "it (docs/model.md).",
       .options =
           {{"--steps", "N,...",
             "only these steps: the N of ProfilerStep#N (default: all); ranks, collectives and how much the graph "
             "explains stay those of all",
             Takes::word},
            {"--rank", "FILE=N",
             "FILE, a path as given or the last part of one, is rank N, whatever it says itself (may be repeated); not "
             "for a file in which several ranks are fused",
             Takes::file, true},
            {"--export", "FILE",
             "write the replayed run as a Chrome trace for https://ui.perfetto.dev (gzip when FILE ends in .gz)",
             Takes::file},
            kCsv,
            kRecover,
            kJson,
            kQuiet,
            kThreads,
            kHelp},
       .when_incomplete = "the input was truncated or data were lost; what could be read is answered",
       .examples = {{"How well is the sample job reproduced?", "orrery replay samples/gpt-tp2-pp2-dp2"},
                    {"Look at one step of the replayed run in Perfetto:",
                     "orrery replay samples/gpt-tp2-pp2-dp2 --steps 5 --export replayed.json.gz"},
                    {"The iteration time alone, for a script:",
                     "orrery replay samples/gpt-tp2-pp2-dp2 --json | jq .summary.iteration_replayed_ms"}},
       .run = run_replay},
      {.name = "predict",
       .summary = "what the same job would take if something were changed",
       .operands = "TRACE...",
       .least = 0,  // none with --platform list
       .most = kMany,
       .description =
           "Reads the traces of a job as `replay` does, changes its execution graph as the edits say, runs it again "
           "and answers with the iteration time, its 90 % interval, the classes of time, every rank and the reasons. "
           "Edits add up in one call. FACTORx multiplies a duration (0.5x is twice as fast); of a bandwidth it "
           "multiplies the bandwidth.\n\n"
           "Edits of the layout and of the model state the final configuration, which is checked as a whole; no other "
           "dimension follows (the width of the feed-forward layers, heads and micro-batches stay unless given). They "
           "need the traces of all stages. Edits are made in an order of their own, whatever the command line's: "
           "stragglers, kernels, platform, the configuration, network, host. docs/model.md says what each edit takes "
           "for granted.\n\n"
           "Where the steps of pipelines were recorded instead of kernels (docs/formats/pipeline-steps.md) the "
           "schedule "
           "and the micro-batches can be changed, operations scaled (--kernel) and stragglers taken out.",
       .options =
           {{"--dp", "N", "data parallelism of degree N", Takes::word},
            {"--pp", "N", "N pipeline stages", Takes::word},
            {"--tp", "N", "tensor parallelism of degree N", Takes::word},
            {"--sequence-parallel", "on|off", "activations outside of tensor-parallel regions split by sequence",
             Takes::word},
            {"--layers", "N", "N layers in the whole model, the same for all stages", Takes::word},
            {"--hidden", "N", "width of the model", Takes::word},
            {"--ffn", "N", "width of the feed-forward layers", Takes::word},
            {"--heads", "N", "attention heads; key-value heads follow where there were as many", Takes::word},
            {"--head-dim", "N", "width of a head", Takes::word},
            {"--seq-length", "N", "tokens of a sequence", Takes::word},
            {"--seq", "N", "short for --seq-length", Takes::word},
            {"--num-microbatches", "N", "N micro-batches of each pipeline in a step", Takes::word},
            {"--microbatches", "N", "short for --num-microbatches", Takes::word},
            {"--micro-batch-size", "N", "sequences of a micro-batch", Takes::word},
            {"--global-batch-size", "N", "sequences of a step: the micro-batches follow", Takes::word},
            {"--schedule", "NAME", "1f1b, interleaved:V (V chunks a stage) or zero-bubble", Takes::word},
            {"--recompute", "none|selective|full", "what of a layer's forward pass runs again for its backward pass",
             Takes::word},
            {"--distributed-optimizer", "on|off", "the optimizer's state and work shared among the replicas",
             Takes::word},
            {"--gpus-per-node", "N", "GPUs of a server", Takes::word},
            {"--platform", "NAME", "another GPU, with the links of its usual server; list names those that are known",
             Takes::word},
            {"--cost-table", "FILE.csv",
             "times of kernels that win over what the trace tells. Columns kernel (its whole name, quoted where it has "
             "commas), shape (MxNxK of a GEMM, QUERIESxKEYSxHEAD_DIM of attention, BxMxNxK of a batch, else the number "
             "of elements; empty: any) and time_us (of one launch); samples/cost-table.csv is one. A table of `orrery "
             "bench "
             "ops` says how products change with their shape",
             Takes::file},
            {"--kernel", "REGEX=FACTORx", "kernels whose name REGEX is found in take so much of their time",
             Takes::word, true},
            {"--fuse", "REGEX1,REGEX2", "a kernel of the second right after one of the first becomes one with it",
             Takes::word, true},
            {"--host", "FACTORx", "all time of CPU threads, launch calls included", Takes::word},
            {"--launch", "FACTORx", "the calls that launch kernels and copies", Takes::word},
            {"--cuda-graphs", "", "launches are free: no cost of the calls, no latency to the kernel"},
            {"--network", "intra=X,inter=X,latency_us=N",
             "bandwidth inside a host and between hosts: a factor (1.5x) or GB/s (bus bandwidth); another latency",
             Takes::word},
            {"--without-stragglers", "", "ranks slower than their peers become as fast as those"},
            {"--delay", "rank=N,ms=N", "rank N is late by so much at the begin of each step", Takes::word, true},
            {"--perfect-overlap", "", "a bound: transfers take no time, ranks still wait for each other"},
            {"--layout", "KEY=VALUE,...",
             "what the traces do not tell of the job as it is: tp, pp, dp, cp, ep, layers, num-microbatches, schedule, "
             "gpus-per-node, hidden, ffn, heads, kv-heads, head-dim, seq-length, micro-batch-size, vocab, "
             "sequence-parallel, recompute, distributed-optimizer",
             Takes::word},
            {"--search", "gpus=N,KEY=VALUE,...",
             "rank the layouts and schedules that are feasible on so many GPUs (with --tp, --pp or --dp those of that "
             "degree alone), for the same sequences a step; also max-tp, max-pp, max-dp, "
             "global-batch-size, micro-batch-size=1:2:4, chunks=1:2:4",
             Takes::word},
            {"--explain", "", "every row of the explanation, not only the largest"},
            {"--steps", "N,...", "only these steps: the N of ProfilerStep#N (default: all)", Takes::word},
            {"--rank", "FILE=N",
             "FILE, a path as given or the last part of one, is rank N, whatever it says itself (may be repeated)",
             Takes::file, true},
            {"--export", "FILE",
             "write the predicted run as a Chrome trace for https://ui.perfetto.dev (gzip when FILE ends in .gz)",
             Takes::file},
            kCsv,
            kRecover,
            kJson,
            kQuiet,
            kThreads,
            kHelp},
       .when_incomplete = "the input was truncated or data were lost, or the configuration does not fit into the "
                          "memory of a GPU; what can be said is answered",
       .examples = {{"Matrix products twice as fast:", "orrery predict samples/gpt-tp2-pp2-dp2 --kernel gemm=0.5x"},
                    {"Eight times the data parallelism:", "orrery predict samples/gpt-tp2-pp2-dp2 --dp 16"},
                    {"A model of twice the depth and width over four stages:",
                     "orrery predict samples/gpt-tp2-pp2-dp2 --layers 8 --hidden 4096 --ffn 16384 --heads 32 --pp 4"},
                    {"A network of twice the bandwidth, and launches for free:",
                     "orrery predict samples/gpt-tp2-pp2-dp2 --network intra=2x --cuda-graphs"}},
       .run = run_predict},
      {.name = "dissect",
       .summary = "where time and memory of a job go: phases, modules, layers, operators, kernels, collectives",
       .operands = "TRACE...",
       .least = 1,
       .most = kMany,
       .description =
           "Reads PyTorch profiler traces as `replay` does, of training or of inference, and says where a step's time "
           "goes: by phase (forward, backward, recompute, optimizer, communication, data, host; of inference prefill "
           "and decode), by module (from nn.Module frames, operators, autograd's sequence numbers, the order of linear "
           "layers and attentions, annotations, names of kernels), by layer, by operator and by kernel, with what the "
           "recorded shapes say of achieved TFLOP/s and GB/s beside the GPU's facts. Nothing is run again.\n\n"
           "Everything is a mean over the steps of a rank, then over the ranks; with several, the least and the most "
           "of "
           "a rank stand beside it. A step is the rank's ProfilerStep; without markers the whole trace is one step. "
           "GPU ms of phases, modules and layers count each instant once: of the tasks that run, one that computes "
           "before one that communicates before a copy, of these the one that began first. So communication is what is "
           "exposed, and all rows with the idle one add up to the step. CPU ms of phases add up to it too: at each "
           "instant what the host's threads are in, autograd first; `host` is what is between the phases, and waiting. "
           "GPU ms of operators and kernels are sums of durations; their share of the step counts overlaps once. What "
           "could not be attributed is a row (unattributed).\n\n"
           "docs/model.md says how each is told.",
       .options =
           {{"--by", "LEVEL",
             "show this level alone, with all of its rows: phase, module, layer, operator, kernel or collective "
             "(--json and --csv have all levels)",
             Takes::word},
            {"--steps", "N,...", "only these steps: the N of ProfilerStep#N (default: all)", Takes::word},
            {"--host-kernels", "",
             "of a job that ran on the CPU alone: its innermost operators count as kernels, so that modules, layers "
             "and classes are told of them"},
            {"--rank", "FILE=N",
             "FILE, a path as given or the last part of one, is rank N, whatever it says itself (may be repeated)",
             Takes::file, true},
            kCsv,
            kRecover,
            kJson,
            kQuiet,
            kThreads,
            kHelp},
       .when_incomplete = "the input was truncated or data were lost; what could be read is answered",
       .examples =
           {{"Where does the sample job's time go?", "orrery dissect samples/gpt-tp2-pp2-dp2"},
            {"All modules of one rank:", "orrery dissect samples/gpt-tp2-pp2-dp2/rank-0.json.gz --by module"},
            {"The share of matrix products, for a script:",
             "orrery dissect samples/gpt-tp2-pp2-dp2 --json | jq '.classes[] | select(.name == \"gemm\").pct'"}},
       .run = run_dissect},
      {.name = "diff",
       .summary = "compare two runs: which kernels, operators and waits became slower or faster",
       .operands = "A B",
       .least = 2,
       .most = 2,
       .description =
           "Reads two runs, each a file, a directory or a glob, and lists what changed: totals, kernels, operators, "
           "classes of time and kinds of edges, the largest change first. Names meet when they differ only in "
           "addresses and step numbers. Times are sums over all steps and ranks of a run, as the titles say; where "
           "the runs have different numbers of them, columns per step (of one rank) stand beside the sums and decide "
           "the order.",
       .options = {kCsv, kRecover, kJson, kQuiet, kThreads, kHelp},
       .when_incomplete = "the input was truncated or data were lost; what could be read is answered",
       .examples = {{"Two ranks of the sample job:",
                     "orrery diff samples/gpt-tp2-pp2-dp2/rank-0.json.gz samples/gpt-tp2-pp2-dp2/rank-4.json.gz"}},
       .run = run_diff},
      {.name = "estimate",
       .summary = "what a job would cost, without a trace",
       .operands = "train|finetune|serve|ops",
       .least = 1,
       .most = 1,
       .description =
           "From a model, a platform, a layout and techniques: time of a step with its 90 % interval, rates, memory of "
           "a GPU by part, and where the time goes by phase and module. Operators and transfers cost what laws over "
           "the facts of the GPU and its links say; the step is an execution graph, replayed as that of a trace. "
           "docs/model.md has the laws, their sources and how far they are off.\n\n"
           "--model list and --platform list name what is known; a file of your own (docs/formats/facts.md) goes "
           "wherever a name goes.\n\n"
           "serve: requests served one by one by an engine (--engine list): continuous batching, a paged KV cache, "
           "preemption, replicas behind a router. Rates, latencies and their quantiles, what the cache held, what "
           "binds, "
           "the highest rate that keeps a service level (--slo), cost per token (--price). --calibrate takes the "
           "result "
           "of `orrery loadgen`. docs/model.md, \"Serving\".\n\n"
           "ops: times of single operators on a platform, those of --model (matrix products, attention, kernels that "
           "move data, copies, collectives of --gpus GPUs) or those that are asked for; there --attention takes "
           "KEY=VALUE,... of a shape (docs/model.md, \"Operators\").",
       .options = with(with(with(with(job_options(), ops_options()), serve_options()), workload_options()),
                       {calibrate_option(),
                        {"--scaling", "N,...", "tokens per second on so many GPUs, the replicas changed", Takes::word},
                        kCsv,
                        kJson,
                        kQuiet,
                        kThreads,
                        kHelp}),
       .when_incomplete =
           "the job does not fit into the memory of a GPU; the time is what it would take if it did. serve: "
           "some requests are too long and were refused (weights that do not fit are refused altogether, with 2)",
       .examples = {{"A 7B model on one server of eight GPUs:",
                     "orrery estimate train --model llama-2-7b --platform a800-8x --gpus 8 --zero 2 --framework "
                     "deepspeed"},
                    {"How it scales:",
                     "orrery estimate train --model llama-2-7b --platform a800-8x --gpus 8 --zero 3 --framework "
                     "deepspeed --scaling 1,2,4,8"},
                    {"A 70B model over tensor parallelism and a pipeline:",
                     "orrery estimate train --model llama-2-70b --platform dgx-h100 --gpus 64 --tp 8 --pp 4 "
                     "--sequence-parallel on --global-batch-size 128 --seq-length 4096"},
                    {"A thousand requests at once on eight GPUs:",
                     "orrery estimate serve --model llama-2-70b --platform a800-8x --gpus 8 --engine vllm-v0 "
                     "--input-tokens 512 --output-tokens 128"},
                    {"The highest rate at which nine of ten requests are quick enough:",
                     "orrery estimate serve --model llama-3.1-8b --platform h100 --gpus 1 --requests 500 --rate 10 "
                     "--input-tokens lognormal:800 --output-tokens lognormal:200 --slo ttft_ms=500,tpot_ms=30"},
                    {"Single operators and transfers:",
                     "orrery estimate ops --platform dgx-h100 --gemm 2048x12288x4096,1x4096x4096 --collective "
                     "all_reduce --bytes 1048576,268435456 --gpus 8"}},
       .run = run_estimate},
      {.name = "plan",
       .summary = "the best layouts and techniques for a model on so many GPUs",
       .operands = "",
       .least = 0,
       .most = 0,
       .description =
           "Tries tensor and expert parallelism, stages, schedules, micro-batch sizes, ZeRO stages and recomputation, "
           "and ranks "
           "what fits by time. What is given as an option is not varied. Each candidate is an estimate as `orrery "
           "estimate train` makes it; the first is named with the command that shows it whole.",
       .options = with(job_options(), {calibrate_option(), kCsv, kJson, kQuiet, kThreads, kHelp}),
       .when_incomplete = "no candidate fits into the memory of a GPU",
       .examples = {{"A 13B model on 64 GPUs:",
                     "orrery plan --model llama-2-13b --platform dgx-a100-80g --gpus 64 --global-batch-size 512 "
                     "--seq-length 4096"}},
       .run = run_plan},
      {.name = "synth",
       .summary = "the traces that an estimated job would leave",
       .operands = "",
       .least = 0,
       .most = 0,
       .description =
           "Takes a job as `orrery estimate train` does and writes what PyTorch's profiler would have recorded of it: "
           "one Kineto trace a rank, DIR/rank-N.json.gz, with operators and their shapes, launches, streams, NCCL "
           "kernels with their process groups, modules and steps. `orrery replay DIR` gives back the estimate; "
           "`orrery predict DIR` knows the layout again. Perfetto opens the files.\n\n"
           "All files appear together or none does. docs/model.md says what such a trace has and what it leaves out.",
       .options = with(with(job_options(), synth_options()), {kCsv, kJson, kQuiet, kThreads, kHelp}),
       .when_incomplete = "never",
       .examples = {{"A 7B model over tensor and data parallelism:",
                     "orrery synth --model llama-2-7b --platform dgx-h100 --gpus 8 --tp 4 -o traces"},
                    {"... and what its replay says:", "orrery replay traces"}},
       .run = run_synth},
      jobs_command(),
      diagnose_command(),
      guard_command(),
      checknodes_command(),
      evals_command(),
      loadgen_command(),
      bench_command(),
      {.name = "help",
       .summary = "what the commands do, or the manual page of one",
       .operands = "[COMMAND]",
       .least = 0,
       .most = 1,
       .description = "Without COMMAND, lists the commands. With it, prints the page of that command.",
       .options = {kHelp},
       .when_incomplete = "",
       .examples = {{"", "orrery help replay"}},
       .run = run_help},
      {.name = "completion",
       .summary = "print a completion script for a shell",
       .operands = "bash|zsh|fish",
       .least = 1,
       .most = 1,
       .description =
           "Prints a script that completes commands and options. For bash: source <(orrery completion bash); for zsh: "
           "orrery completion zsh > a file _orrery on fpath; for fish: orrery completion fish | source.",
       .options = {kHelp},
       .when_incomplete = "",
       .examples = {{"", "orrery completion bash"}},
       .run = run_completion},
  };
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> table = make_commands();
  return table;
}

const Command* find_command(std::string_view name) {
  for (const Command& c : commands()) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

}  // namespace orrery
