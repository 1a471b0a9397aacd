#!/usr/bin/env python3
"""How far `orrery estimate train|finetune|serve` is from published, measured numbers.

  bench/estimate_bench.py build/orrery [DIRECTORY] [TABLE ...] [--worst N] [--calls]

DIRECTORY (bench/published without it) holds tables (*.tsv: table, workload, model, platform, technique, batch, metric, value, unit, source, sure).
Every row is one call of the tool with what the row states and nothing else; what a row leaves open takes the default of
the framework that the table is of. Printed: rows, mean absolute error and bias in per cent by table, the target, the
worst rows.
"""

import concurrent.futures
import csv
import json
import os
import re
import subprocess
import sys


def fields(text):
    """key=value;key=value;WORD -> dict (a word alone maps to True)."""
    out = {}
    for item in text.split(";"):
        key, _, value = item.strip().partition("=")
        if key:
            out[key.strip()] = value.strip() if value else True
    return out


def number(text):
    return float(str(text).replace(",", ""))


class Row:
    def __init__(self, raw):
        self.raw = raw
        self.t = fields(raw["technique"])
        self.b = fields(raw["batch"])
        self.platform = raw["platform"]
        match = re.match(r"\s*(\d+)\s*x\s*(.*)", self.platform)
        self.gpus = int(match.group(1)) if match else 1
        self.gpu = match.group(2) if match else self.platform
        self.metric = raw["metric"]
        self.value = number(raw["value"])

    def label(self):
        r = self.raw
        return f"{r['model']} on {r['platform']}; {r['technique']}; {r['batch']}"


def platform_of(row):
    gpu = row.gpu.lower()
    names = [
        ("roce", lambda: "a100-40g-roce1600" if "40gb" in gpu else "a100-80g-roce1600"),
        ("per node, 800", lambda: "a100-80g-800g"),
        ("gb300", lambda: "gb300-nvl72"),
        ("gb200", lambda: "gb200-nvl72"),
        ("b300", lambda: "dgx-b300"),
        ("b200", lambda: "dgx-b200"),
        ("h200", lambda: "dgx-h200"),
        ("h100", lambda: "dgx-h100"),
        ("a100", lambda: "dgx-a100-40g" if "40g" in gpu else "dgx-a100-80g"),
        ("rtx pro 6000", lambda: "rtx-pro-6000"),
        ("5090", lambda: "rtx5090"),
        ("4090", lambda: "rtx4090-8x"),
        ("3090", lambda: "rtx3090-8x"),
        ("a6000", lambda: "rtx-a6000"),
        ("l40s", lambda: "l40s-8x"),
    ]
    for part, name in names:
        if part in gpu:
            return name()
    return row.gpu


def batches(row, arguments):
    if "GBS" in row.b:
        arguments += ["--global-batch-size", row.b["GBS"]]
    arguments += ["--micro-batch-size", str(row.b.get("MBS", "1"))]


def gpt_shape(row, vocab, **more):
    shape = {"layers": row.t["layers"], "hidden": row.t["hidden"], "vocab": vocab, "context": row.t["seq"]}
    if "heads" in row.t:
        shape["heads"] = row.t["heads"]
    else:  # the paper's table gives heads of 96 to 160; they follow from the width
        hidden = int(row.t["hidden"])
        known = {2304: 24, 3072: 32, 4096: 32, 6144: 48, 8192: 64, 10240: 80, 12288: 96, 16384: 128, 20480: 128, 25600: 160}
        shape["heads"] = known.get(hidden, hidden // 128)
    shape.update(more)
    return ",".join(f"{k}={v}" for k, v in shape.items())


def megatron(row):
    # Vocabulary, heads and layout as the row has them; 2021: fp16, unfused attention, nothing overlapped.
    if row.metric not in ("achieved per GPU",) or "hidden" not in row.t:
        return None
    old = "SC'21" in row.raw["table"]
    a = ["--model", "gpt", "--shape", gpt_shape(row, row.t["vocab"]), "--platform", platform_of(row)]
    a += ["--tp", row.t["TP"], "--pp", row.t["PP"], "--gpus", str(row.gpus), "--seq-length", row.t["seq"]]
    dp = row.gpus // int(row.t["TP"]) // int(row.t["PP"])
    if "MBS" not in row.b:  # not said: one sequence; in 2021 the most that the memory allows
        per = int(row.b["GBS"]) // dp
        row.b["MBS"] = "1"
        if old and int(row.t["PP"]) == 1:
            row.b["MBS"] = str(next(k for k in (16, 8, 4, 2, 1) if per % k == 0)) if int(row.t["TP"]) < 8 else "4"
    batches(row, a)
    if old:
        a += ["--precision", "fp16", "--attention", "unfused", "--recompute", "full", "--overlap-grad-reduce", "off"]
    else:
        a += ["--attention", "flash", "--zero", "1", "--tp-comm-overlap", "on"]
        if int(row.t["TP"]) > 1:
            a += ["--sequence-parallel", "on"]
    return "train", a, ("tflops" if not old else "paper_tflops"), row.value, 6


def paper_flops(row):
    """SC'21, equation 3: floating-point operations of a step with full recomputation."""
    b, s, l, h, v = (int(row.b["GBS"]), int(row.t["seq"]), int(row.t["layers"]), int(row.t["hidden"]), int(row.t["vocab"]))
    return 96 * b * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h))


def korthikanti(row):
    if row.metric not in ("iteration time", "params+optimizer per GPU", "activations per GPU"):
        return None
    a = ["--model", "gpt", "--shape", gpt_shape(row, 51200), "--platform", "dgx-a100-80g"]
    a += ["--tp", row.t["TP"], "--pp", row.t["PP"], "--gpus", str(row.gpus), "--seq-length", row.t["seq"]]
    batches(row, a)
    a += ["--precision", "fp16", "--attention", "unfused", "--reduce-precision", "fp16"]
    recompute = {"attn_only": "selective", "full": "full", "none": "none"}[row.t["recompute"]]
    a += ["--recompute", recompute]
    if row.t["tp_comm"] == "rs_ag":
        a += ["--sequence-parallel", "on"]
    if int(row.t["interleave"]) > 1:
        a += ["--schedule", f"interleaved:{row.t['interleave']}"]
    what = {"iteration time": "ms", "params+optimizer per GPU": "state_gib", "activations per GPU": "activations_gib"}
    value = row.value * 1000 if row.metric == "iteration time" else row.value
    return "train", a, what[row.metric], value, 3.5 if row.metric == "iteration time" else 5


def vtrain(row):
    if row.metric != "iteration time":
        return None
    a = ["--model", "gpt", "--shape", gpt_shape(row, 50304), "--platform", platform_of(row)]
    a += ["--tp", row.t["TP"], "--pp", row.t["PP"], "--gpus", str(row.gpus), "--seq-length", row.t["seq"]]
    batches(row, a)
    a += ["--precision", "fp16", "--attention", "unfused", "--recompute", "full", "--overlap-grad-reduce", "off"]
    single = "single" in row.raw["table"]
    return "train", a, "ms", row.value * (1000 if row.raw["unit"] == "s" else 1), 8 if single else 12


def llm_foundry(row):
    if row.metric != "tokens/s/GPU":
        return None
    a = ["--model", f"mpt-{row.raw['model']}", "--platform", platform_of(row), "--gpus", str(row.gpus)]
    a += ["--seq-length", row.t["seq"], "--framework", "fsdp"]
    batches(row, a)
    # Its submit_benchmarks.py asks for "triton"; it and flash-attn 1.0.9, which the project asked for then, are the first
    # version of the algorithm. On Hopper no plot of that Triton kernel is known: flash-attn 1's stands for both.
    a += ["--attention", "flash1" if "h100" in row.gpu else "triton"]
    a += ["--recompute", "full" if row.t["recompute"] == "True" else "none"]
    a += ["--precision", "fp8" if "fp8" in row.t["precision"] else "bf16"]
    a += ["--reduce-precision", "bf16" if row.t["mp_mode"] == "PURE" else "fp32"]
    return "train", a, "tokens_per_gpu", row.value, 8


EXPERTS = ("deepseek", "gpt oss", "kimi", "qwen3", "nemotron_3")


def nemo(row):
    if row.metric != "tokens/s/GPU":
        return None
    t = {k.lower(): v for k, v in row.t.items()}
    name = re.sub(r"\s*\(.*", "", row.raw["model"])
    a = ["--model", name, "--platform", platform_of(row), "--gpus", str(row.gpus), "--seq-length", t["seq"]]
    batches(row, a)
    precision = str(t.get("precision", "fp8" if "fp8" in t else "bf16")).lower()
    a += ["--precision", "nvfp4" if "fp4" in precision else "fp8" if "fp8" in precision else "bf16"]

    def degree(key):
        value = str(t.get(key, "1"))
        return int(value) if value.isdigit() else 1

    tp, pp, cp, vp, ep = (degree(k) for k in ("tp", "pp", "cp", "vp", "ep"))
    a += ["--tp", str(tp), "--pp", str(pp), "--context-parallel", str(cp)]
    if tp > 1:
        a += ["--sequence-parallel", "on"]
    if vp > 1 and pp > 1:
        a += ["--schedule", f"interleaved:{vp}"]
    if ep > 1:
        a += ["--expert-parallel", str(ep)]
    if degree("fsdp") > 1:
        a += ["--framework", "fsdp", "--compile", "on"]
    else:
        a += ["--zero", "1", "--tp-comm-overlap", "on"]
    command = "train"
    if "fine-tuning" in row.raw["workload"]:
        command = "finetune"
        if "LoRA" in row.raw["workload"]:
            a += ["--method", "lora", "--lora-rank", "16"]
    return command, a, "tokens_per_gpu", row.value, 20 if name.lower().startswith(EXPERTS) else 12


def qwen(row):
    # QwenLM/Qwen finetune/*.sh and finetune.py: Hugging Face's Trainer, gradient checkpointing, LoRA of rank 64 with
    # dropout on all linear layers. LoRA on one GPU without DeepSpeed: autocast. Under DeepSpeed Qwen's own modeling code
    # takes the loss in the logits' precision.
    # Q-LoRA: GPTQ weights, fp16, DeepSpeed's ZeRO 2 with buckets of 2e8; full: ZeRO 2 on one GPU, ZeRO 3 (README) on two.
    if row.raw["workload"] != "fine-tuning" or "multinode" in row.raw["technique"]:
        return None
    kind = row.raw["technique"].split(";")[0]
    a = ["--model", row.raw["model"], "--platform", "dgx-a100-80g", "--gpus", str(row.gpus)]
    a += ["--seq-length", re.search(r"seq=(\d+)", row.raw["technique"]).group(1), "--micro-batch-size", "1"]
    a += ["--num-microbatches", row.b["GA"], "--recompute", "full"]
    if kind.startswith("Full"):
        a += ["--framework", "deepspeed", "--zero", "3" if row.gpus > 1 else "2", "--fp32-loss", "off"]
        a += ["--bucket-size", "200000000"]
    else:
        a += ["--lora-rank", "64", "--lora-dropout", "on"]
    if kind.startswith("Q-LoRA"):
        a += ["--framework", "deepspeed", "--zero", "2", "--method", "qlora", "--quantize", "gptq", "--precision", "fp16",
              "--fp32-loss", "off", "--bucket-size", "200000000"]
    elif kind.startswith("LoRA"):
        a += ["--method", "lora"]
        a += ["--framework", "deepspeed", "--zero", "3", "--fp32-loss", "off"] if "Zero3" in kind else ["--framework", "ddp"]
        if "emb" in kind:
            a += ["--lora-embeddings", "on"]
    if row.metric == "iteration time":
        return "finetune", a, "ms", row.value * 1000, 15
    # the README's numbers are sums over GPUs
    return "finetune", a, "memory_gb_all", row.value, 10


def torchtune(row):
    # pytorch/torchtune recipes/configs: all in bf16, packed, activation checkpointing. 8B and 405B: LoRA of rank 8 and
    # 16; 8B full on one GPU: paged 8-bit AdamW in the backward pass; 70B full: weights, gradients and optimizer on the
    # host. The A6000 rows cannot have recomputed: LoRA at their 4,699 tokens/s would be
    # 6 x 8e9 x 4,699 = 225 TFLOP/s with it, of a card whose peak is 155.
    kind = row.raw["workload"] + " " + row.raw["technique"]
    flags = "as named" in row.raw["workload"]
    if flags and row.t.get("Baseline"):
        return None  # padded, not packed: its length is not stated
    seq = re.search(r"seq=(\d+)", row.raw["technique"]).group(1)
    a = ["--model", row.raw["model"].replace("Llama ", "llama-"), "--platform", platform_of(row), "--gpus", str(row.gpus)]
    a += ["--seq-length", seq, "--micro-batch-size", row.b["batch"], "--framework", "fsdp", "--master-weights", "off"]
    order = ["+ Packed Dataset", "+ Compile", "+ Chunked Cross Entropy", "+ Activation Checkpointing",
             "+ Fuse optimizer step into backward", "+ Activation Offloading", "+ 8-bit AdamW", "LoRA", "QLoRA"]
    if flags:
        at = order.index(row.raw["technique"].split(";")[0])
        a += ["--compile", "on" if at >= 1 else "off", "--chunked-loss", "on" if at >= 2 else "off"]
        a += ["--recompute", "full" if at >= 3 else "none", "--offload-activations", "on" if at >= 5 else "off"]
        if at in (4, 5, 6):
            a += ["--optimizer-in-backward", "on"]
        if at == 6:
            a += ["--optimizer", "adamw8bit"]
    else:
        a += ["--compile", "on", "--chunked-loss", "on", "--recompute", "none" if "A6000" in row.platform else "full"]
        if "Full" in kind and row.gpus == 1:
            a += ["--optimizer", "paged-adamw8bit", "--optimizer-in-backward", "on"]
    if "QLoRA" in kind and not (flags and not row.raw["technique"].startswith("QLoRA")):
        a += ["--method", "qlora", "--lora-rank", "16" if "405B" in row.raw["model"] else "8"]
    elif "LoRA" in kind and "Full" not in kind and not (flags and row.raw["technique"].startswith("+")):
        a += ["--method", "lora", "--lora-rank", "16" if "70B" in row.raw["model"] else "8"]
    if row.gpus == 1:
        a += ["--zero", "0"]
    if "CPU offload" in row.raw["technique"]:
        a += ["--offload", "all"]
    if row.metric == "tokens/s":
        return "finetune", a, "tokens", row.value, 15
    return "finetune", a, "allocated_gib", row.value, 10


def llmq(row):
    if row.metric != "tokens/s (all GPUs)" or "GBS" not in row.t:
        return None
    seq = int(row.t["seq"])
    mbs = int(row.b["MBS"])
    batch = int(row.t["GBS"].split()[0]) // seq
    a = ["--model", row.raw["model"], "--platform", platform_of(row), "--gpus", str(row.gpus), "--seq-length", str(seq)]
    micro = max(1, batch // (row.gpus * mbs))
    a += ["--micro-batch-size", str(mbs), "--num-microbatches", str(micro), "--zero", "1" if row.gpus > 1 else "0"]
    a += ["--precision", "fp8" if "fp8" in row.raw["technique"] else "bf16", "--compile", "on", "--reduce-precision", "bf16"]
    return "train", a, "tokens", row.value, 20


def vectorlm(row):
    if "tokens/s" not in row.metric:
        return None
    a = ["--model", row.raw["model"], "--platform", "dgx-a100-80g", "--gpus", str(row.gpus), "--seq-length", row.t["seq"]]
    a += ["--micro-batch-size", row.b["batch per GPU"], "--framework", "fsdp", "--recompute", "full"]
    if "LoRA" in row.raw["technique"]:
        a += ["--method", "lora", "--lora-rank", "8"]
    return "finetune", a, "tokens", row.value, 20


def inference_bench(row):
    # Offline batches, all prompts alike, timed to the last token. A100: Polaris, four of 40 GB a node. vLLM 0.5 by its LLM
    # class; TensorRT-LLM by run.py. llama.cpp by `llama-bench -b BATCH`: one sequence, whose prompt goes in by BATCH tokens.
    gpus = {"A100": "a100-sxm4-40gb", "H100": "h100-sxm5-80gb", "GH200": "gh200-96gb", "MI300X": "mi300x"}
    gpu = next((name for key, name in gpus.items() if key + " " in row.gpu + " "), None)
    if row.metric != "latency" or gpu is None:
        return None
    engine = row.raw["technique"].split(";")[0]
    kind = row.raw["technique"]
    names = {"vLLM": "vllm-v0", "TensorRT-LLM": "tensorrt-llm-0.9", "Deepspeed-MII": "deepspeed-mii", "llama.cpp": "llama.cpp"}
    a = ["--model", row.raw["model"], "--platform", f"{row.gpus}x{gpu}", "--engine", names[engine], "--precision", "fp16"]
    batch = row.b["batch"]
    tokens = re.search(r"in=out=(\d+)", row.raw["batch"])
    sizes = (tokens.group(1), tokens.group(1)) if tokens else (row.b["in"], row.b["out"])
    a += ["--input-tokens", sizes[0], "--output-tokens", sizes[1]]
    if engine == "llama.cpp":
        a += ["--requests", "1", "--max-batched-tokens", batch]
    else:
        a += ["--requests", batch]
    tp, pp, ep = row.gpus, 1, 1
    if "Hybrid TP = 2 and EP = 2" in kind:
        ep = 2
    elif re.search(r"Hyb.*(PP = 2|Pipeline \(2\))", kind):
        tp, pp = 2, 2
    elif "Pipeline" in kind or kind.endswith(";PP"):
        tp, pp = 1, row.gpus
    elif kind.endswith(";EP"):
        ep = row.gpus
    if engine == "llama.cpp":
        a += ["--gpus", str(row.gpus)]
    else:
        a += ["--tp", str(tp), "--pp", str(pp), "--expert-parallel", str(ep)]
    if engine in ("TensorRT-LLM", "Deepspeed-MII"):  # run.py and pipeline.py: one prompt, as often as the batch asks
        a += ["--identical-prompts", "on"]
    weight = re.search(r"Weight = (\w+), KV Cache = (\w+)", kind)
    if weight:
        a += ["--quantize", {"fp16": "none"}.get(weight.group(1), weight.group(1))]
        a += ["--kv-cache-dtype", {"fp16": "auto"}.get(weight.group(2), weight.group(2))]
    if "kv_block" in row.t:
        a += ["--block-size", str(row.t["kv_block"])]
    return "serve", a, "latency_ms", row.value * 1000, 15


def ended_early(row, answer):
    """Whether an answer cannot have had all its tokens: quicker than the weights can be read for each (a quarter of them, of
    experts)."""
    bandwidth = {"A100": 1555, "H100": 3350, "GH200": 4000, "MI300X": 5300}
    gpu = next((v for k, v in bandwidth.items() if k + " " in row.gpu + " "), None)
    if gpu is None or "out" not in row.b or "answer-cut" in [n["name"] for n in answer["notes"]]:
        return False
    weights = answer["memory_gib_per_gpu"]["weights"] * 1.0737
    return row.value < (0.25 if "Mixtral" in row.raw["model"] else 0.9) * weights / gpu * float(row.b["out"])


def gpt_fast(row):
    # generate.py: a prompt of five tokens, 200 more.
    if row.metric != "tokens/s":
        return None
    platform = "mi250x-gcd" if "MI250X" in row.gpu else "a100-sxm4-80gb"
    a = ["--model", row.raw["model"], "--platform", f"{row.gpus}x{platform}", "--engine", "gpt-fast", "--tp", str(row.gpus)]
    a += ["--requests", "1", "--input-tokens", "5", "--output-tokens", "200"]
    kind = row.raw["technique"]
    if "8-bit" in kind or "int8" in kind:
        a += ["--quantize", "int8"]
    if "4-bit" in kind:
        a += ["--quantize", "int4", "--group-size", "32"]
    return "serve", a, "output_tokens", row.value, 12


def servingsim(row):
    # Its workload generator keeps prompts of at least 256 and answers of at least 512 tokens; the answers that there are
    # go up to some 790. Arrivals: --sps, Poisson.
    metric = re.match(r"(TTFT|TPOT|Latency) (Mean|Median|P90|P95|P99)|output tokens/s", row.metric)
    if not metric:
        return None
    platform = {"RTX 4090": "rtx4090-1x", "RTXPRO6000": "rtx-pro-6000-1x"}
    name = next(v for k, v in platform.items() if k in row.gpu)
    a = ["--model", row.raw["model"], "--platform", name, "--engine", "vllm", "--tp", "1", "--requests", row.b["requests"]]
    a += ["--rate", re.search(r"sps(\d+)", row.raw["batch"]).group(1)]
    a += ["--max-num-seqs", row.t["max_num_seqs"], "--max-batched-tokens", row.t["max_batched_tokens"]]
    if "Qwen3-30B" in row.raw["model"]:  # its meta.json: data_parallel_size 2, enable_expert_parallel
        a[3] = "2xRTX-PRO-6000"
        a += ["--replicas", "2", "--expert-parallel", "2", "--routing", "least-loaded"]
    if row.t["kv_tokens"] != "None":
        a += ["--kv-tokens", row.t["kv_tokens"]]
    mean_out = float(row.b["mean out"])
    a += ["--input-tokens", f"exponential:{row.b['mean in']},256,16384", "--output-tokens", f"uniform:512,{2 * mean_out - 512:.0f}"]
    if metric.group(1) is None:
        return "serve", a, "output_tokens", row.value, 20
    key = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "Latency": "latency_ms"}[metric.group(1)]
    return "serve", a, key + "." + {"Mean": "mean", "Median": "p50"}.get(metric.group(2), metric.group(2).lower()), row.value, 20


TABLES = {
    "llm_inference_bench": inference_bench,
    "gpt_fast": gpt_fast,
    "llmservingsim_vllm": servingsim,
    "megatron": megatron,
    "korthikanti": korthikanti,
    "vtrain_train": vtrain,
    "llm_foundry": llm_foundry,
    "nemo": nemo,
    "megatron_bridge": nemo,
    "qwen_finetune": qwen,
    "torchtune": torchtune,
    "llmq": llmq,
    "vectorlm": vectorlm,
}


def ask(tool, command, arguments):
    run = subprocess.run([tool, "estimate", command, *arguments, "--json"], capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        return None, run.stderr.strip()
    return json.loads(run.stdout), ""


def predicted(row, answer, what):
    if "ttft_ms" in answer:  # serve
        if what == "output_tokens":
            return answer["output_tokens_per_s"]
        key, _, quantile = what.partition(".")
        return answer[key][quantile or "max"]
    memory = answer["memory_gib_per_gpu"]
    seconds = answer["iteration_ms"] / 1000
    return {
        "ms": lambda: answer["iteration_ms"],
        "tflops": lambda: answer["tflops_per_gpu"],
        "paper_tflops": lambda: paper_flops(row) / seconds / row.gpus / 1e12,
        "tokens": lambda: answer["tokens_per_s"],
        "tokens_per_gpu": lambda: answer["tokens_per_gpu_s"],
        "state_gib": lambda: sum(answer["memory_gib_mean"][k] for k in ("weights", "gradients", "optimizer")),
        "activations_gib": lambda: memory["activations"],
        "allocated_gib": lambda: memory["allocated"],  # PyTorch's peak
        "memory_gb_all": lambda: memory["total"] * 1.073741824 * row.gpus,
    }[what]()


def main():
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    worst = 5
    if "--worst" in sys.argv:
        worst = int(sys.argv[sys.argv.index("--worst") + 1])
        words.remove(str(worst))
    if not words:
        sys.exit(__doc__)
    tool, words = words[0], words[1:]
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "published")
    if words and os.path.isdir(words[0]):
        directory, words = words[0], words[1:]
    chosen = words
    for table, read in TABLES.items():
        path = os.path.join(directory, table + ".tsv")
        if (chosen and table not in chosen) or not os.path.exists(path):
            continue
        with open(path, newline="", encoding="utf-8") as file:
            rows = [Row(r) for r in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
        jobs = []
        for row in rows:
            try:
                job = read(row)
            except (KeyError, ValueError, AttributeError) as error:
                print(f"  {table}: row not understood ({error!r}): {row.label()}", file=sys.stderr)
                continue
            if job:
                jobs.append((row, job))
        groups, refused = {}, {}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = pool.map(lambda j: ask(tool, j[1][0], j[1][1]), jobs)
            for (row, (command, arguments, what, value, target)), (answer, error) in zip(jobs, answers):
                if answer is None:
                    refused.setdefault(re.sub(r"\d+", "N", error), []).append(row.label())
                    continue
                if table == "llm_inference_bench" and ended_early(row, answer):
                    refused.setdefault("the measured answers ended early (quicker than the weights can be read)", []).append(row.label())
                    continue
                key = (what, target) if table != "vtrain_train" else (row.raw["table"][:25], target)
                if table == "llm_inference_bench":
                    key = (re.sub(r"^\d+x(Nvidia|AMD) | GPU$", "", row.platform) + " " + row.raw["technique"].split(";")[0], target)
                got = predicted(row, answer, what)
                call = " ".join(["estimate", command, *arguments])
                groups.setdefault(key, []).append((100 * (got / value - 1), got, value, row.label(), answer["binds"], call))
        if table == "llm_inference_bench":  # all together, and by part
            groups = {("all", 15): [f for found in groups.values() for f in found], **groups}
        for (what, target), found in groups.items():
            errors = [e[0] for e in found]
            mean = sum(abs(e) for e in errors) / len(errors)
            bias = sum(errors) / len(errors)
            within = "within" if mean <= target else "ABOVE"
            print(f"{table:16} {what:26} {len(found):4} rows  mean {mean:6.2f} %  bias {bias:+7.2f} %  target {target} % {within}")
            for error, got, value, label, binds, call in sorted(found, key=lambda e: -abs(e[0]))[:worst]:
                print(f"      {error:+7.1f} %  {got:10.1f} against {value:10.1f}  [{binds}]  {label}")
                if "--calls" in sys.argv:
                    print(f"               orrery {call}")
        for error, labels in refused.items():
            print(f"{table:16} {len(labels):4} rows refused: {error[:200]}; for example {labels[0]}")


if __name__ == "__main__":
    main()
