#!/usr/bin/env python3
"""How far `orrery estimate ops` is from published, measured operators and collectives.

  bench/operators_score.py build/orrery DIRECTORY [TABLE ...] [--worst N]

DIRECTORY holds tables (*.tsv: table, workload, model, platform, technique, batch, metric, value, unit, source, sure).
All rows go to the tool in one call. A row is held out of every fit when zlib's crc32 of its columns platform, technique
and batch, joined without anything between them, is divisible by 5. Printed by table and kind: rows, mean absolute error
and bias in per cent, held out and fitted apart, by GPU and precision; then the worst rows.

What the tables leave unsaid is read as follows, the same for every row (docs/model.md, "Operators"):
  AIConfigurator  products of 8 and 4 bits include the kernel that quantises the activations; operands are warm.
                  Attention of the context includes rotation and the write into the cache. Caches: two bytes an element,
                  one where heads are grouped and on B200: two would need more than the memory's bandwidth. Grouped heads
                  on GB200 read their keys once a head (ten times slower than elsewhere).
  Vidur           one shard: [tokens, hidden] x the shard's columns; up and gate projection in one product.
  FlashAttention  FLOPs over TFLOP/s is the time; a causal mask halves them; backward is 2.5 times forward.
  NeuSight        whole models, from their products, unfused attention, norms and elementwise kernels, in fp32.
  Collectives     AIConfigurator's sizes are elements; bus bandwidths without a size are those of 8 GiB.
                  all_reduce_bench of 4 x 8 H100 does not name its network: 100 GB/s a server.
"""

import csv
import json
import os
import re
import subprocess
import sys
import zlib
from collections import defaultdict

GPUS = [  # part of a platform's text -> platform of the tool; longer parts first
    ("RTX PRO 6000", "rtx-pro-6000-8x"), ("GB200", "gb200-nvl72"), ("GB300", "gb300-nvl72"), ("B200", "dgx-b200"),
    ("B300", "dgx-b300"), ("GH200", "GH200-96GB"), ("H100_NVL", "H100-NVL"), ("H100-PCIe", "H100-PCIe"),
    ("H100 PCIe", "H100-PCIe"), ("H200", "dgx-h200"), ("H800", "h800-8x"), ("H100", "dgx-h100"), ("H20", "h20-8x"),
    ("A100-PCIE-40GB", "A100-PCIE-40GB"), ("A100-PCIe-40", "A100-PCIE-40GB"), ("A100_80GB_PCIe", "A100-80GB-PCIe"),
    ("A100-PCIe-80", "A100-80GB-PCIe"), ("Azure ND A100 v4", "nd-a100-v4"), ("A100-SXM4-40", "dgx-a100-40g"),
    ("A100", "dgx-a100-80g"), ("A800", "a800-8x"), ("A40", "A40"), ("A10", "A10"), ("A6000", "RTX-A6000"),
    ("L40S", "l40s-8x"), ("L40", "L40"), ("L4", "L4"), ("4090", "rtx4090-8x"), ("3090", "rtx3090-8x"),
    ("5090", "RTX-5090"), ("V100-PCIE-32", "V100-PCIE-32GB"), ("V100", "dgx-1-v100"), ("Tesla_T4", "T4"),
    ("P100", "P100-PCIE-16GB"), ("Tesla_P4", "P4"), ("MI210", "MI210"), ("MI250X", "MI250X"), ("MI250", "MI250-GCD"),
    ("MI100", "MI100"), ("MI300X", "mi300x-8x")]
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "int8": "int8",
              "fp8_block": "fp8-block", "nvfp4": "nvfp4", "fp16/bf16": "fp16", "fp32": "fp32", "tf32": "tf32"}
SCORED = {"gemm": 10, "attention": 12, "collective": 12, "model": 10}


def fields(text):
    out = {}
    for item in text.split(";"):
        key, _, value = item.strip().partition("=")
        out[key] = value
    return out


def platform_of(text):
    return next((name for part, name in GPUS if part in text), None)


def held_out(row):
    return zlib.crc32((row["platform"] + row["technique"] + row["batch"]).encode()) % 5 == 0


def first_number(text):
    return float(re.match(r"[\d.]+", text).group())


class Case:
    """One row: what to ask (times of several questions add up) and the measured microseconds."""

    def __init__(self, row, kind, questions, us, precision):
        self.row, self.kind, self.questions, self.us, self.precision = row, kind, questions, us, precision
        self.held = held_out(row)
        self.gpu = platform_of(row["platform"])
        self.predicted = None


def aiconfigurator(row):
    platform, value = platform_of(row["platform"]), float(row["value"])
    technique, batch = fields(row["technique"]), fields(row["batch"])
    words = row["technique"].split(";")
    if row["table"] == "GEMM":
        p = PRECISIONS[words[1]]
        return Case(row, "gemm", [f"gemm platform={platform} m={batch['M']} n={batch['N']} k={batch['K']} precision={p} "
                                  f"warm=on quantise=on"], value, p)
    if row["table"] in ("NCCL", "custom all-reduce"):
        size = first_number(batch["message"]) * {"half": 2, "bfloat16": 2, "int8": 1}[words[1]]
        gpus = int(row["platform"].split("x")[0])
        op = {"alltoall": "all_to_all"}.get(row["model"], row["model"])
        kind = "collective (not scored)" if size >= 65536 else "small collective (not scored)"
        if row["table"] != "NCCL":
            kind = "custom all-reduce (not scored)"
        return Case(row, kind, [f"collective platform={platform} op={op} bytes={size:.0f} gpus={gpus} sharp=off"], value,
                    words[1])
    heads, kv = int(technique["heads"]), int(technique["kv_heads"])
    ask = (f"attention platform={platform} batch={batch['batch']} heads={heads} kv-heads={kv} "
           f"head-dim={technique['head_dim']} precision=bf16")
    if row["table"] == "context_attention":
        length, before = int(batch["isl"]), int(batch["step"])
        ask += f" queries={length} keys={length + before} kernel=trtllm append=on"
        return Case(row, "attention", [ask], value, "context")
    ask += f" queries=1 keys={int(batch['step']) + 1} kernel=trtllm warm=on"
    grouped = kv < heads
    if grouped and "GB200" in row["platform"]:
        ask += " shared=off"
    elif grouped or "NVIDIA B200" in row["platform"]:
        ask += " kv-bytes=1"
    return Case(row, "attention", [ask], value, "decode")


def vidur(row):
    t, tokens = fields(row["technique"]), int(fields(row["batch"])["tokens"])
    tp, hidden, ffn, heads, kv = (int(t[k]) for k in ("TP", "hidden", "ffn", "heads", "kv"))
    width, gates = hidden // heads, 2 if t["gated"] == "True" else 1
    name, platform, us = row["metric"].split()[0], platform_of(row["platform"]), float(row["value"]) * 1e3
    shape = {"attn_pre_proj": ((heads + 2 * kv) * width // tp, hidden), "attn_post_proj": (hidden, heads * width // tp),
             "mlp_up_proj": (gates * ffn // tp, hidden), "mlp_down_proj": (hidden, ffn // tp)}.get(name)
    if shape:
        return Case(row, "gemm", [f"gemm platform={platform} m={tokens} n={shape[0]} k={shape[1]} precision=fp16 warm=on"],
                    us, "fp16")
    moved = {"add": (3 * hidden, "elementwise"), "input_layernorm": (2 * hidden, "norm"),
             "post_attention_layernorm": (2 * hidden, "norm"), "mlp_act": ((gates + 1) * ffn / tp, "elementwise"),
             "attn_rope": (2 * (heads + kv) * width / tp, "rotary"), "emb": (2 * hidden, "embedding")}.get(name)
    if not moved:
        return None
    return Case(row, "memory kernel (not scored)",
                [f"memory platform={platform} bytes={2 * moved[0] * tokens:.0f} kind={moved[1]}"], us, moved[1])


def llmcompass(row):
    platform, batch = platform_of(row["platform"]), fields(row["batch"])
    if row["model"] == "matmul" and row["metric"] == "time":
        return Case(row, "gemm", [f"gemm platform={platform} m={batch['M']} n={batch['N']} k={batch['K']} precision=fp16 "
                                  f"warm=on"], float(row["value"]) * 1e3, "fp16")
    if row["model"] in ("layernorm", "softmax", "gelu"):
        n = float(batch["n"]) if "n" in batch else float(batch["M"]) * float(batch["N"])
        kind = {"layernorm": "norm", "softmax": "softmax", "gelu": "elementwise"}[row["model"]]
        return Case(row, "memory kernel (not scored)", [f"memory platform={platform} bytes={4 * n:.0f} kind={kind}"],
                    n / float(row["value"]) / 1e3, kind)
    if row["model"] == "all_reduce":
        return Case(row, "collective (not scored)",
                    [f"collective platform={platform} op=all_reduce bytes={batch['bytes']} gpus=4"], float(row["value"]),
                    "fp16")
    return None


def flash_attention(row):
    t, b = fields(row["technique"]), fields(row["batch"])
    width, causal, length, batch = int(t["head_dim"]), t["causal"] == "True", int(b["seq"]), int(b["batch"])
    heads, both = int(t["hidden"]) // width, "backward" in row["workload"]
    flops = 4 * batch * heads * length * length * width * (0.5 if causal else 1) * (3.5 if both else 1)
    kernel = {"PyTorch": "unfused", "standard": "unfused", "FlashAttention": "flash1", "FlashAttention-2": "flash2",
              "FlashAttention-3": "flash3", "cuDNN": "cudnn", "xformers": "xformers"}.get(row["model"], "triton")
    ask = (f"attention platform={platform_of(row['platform'])} batch={batch} heads={heads} head-dim={width} "
           f"queries={length} causal={'on' if causal else 'off'} kernel={kernel} precision=fp16 "
           f"pass={'both' if both else 'forward'}")
    return Case(row, "attention", [ask], flops / float(row["value"]) / 1e6, kernel)


MODELS = {  # layers, hidden, heads, ffn, vocabulary, causal
    "bert_large": (24, 1024, 16, 4096, 30522, False), "gpt2_large": (36, 1280, 20, 5120, 50257, True),
    "gpt3_27": (32, 2560, 32, 10240, 50257, True), "gpt3_xl": (24, 2048, 16, 8192, 50257, True),
    "opt_13": (24, 2048, 32, 8192, 50272, True)}


def neusight(row):
    """A whole model: the kernels of its forward pass, and of its backward pass where the row has it."""
    t, shape = fields(row["technique"]), MODELS.get(row["model"])
    gpus = int(row["platform"].split("x")[0])
    if shape is None or gpus != 1:
        return None
    layers, hidden, heads, ffn, vocabulary, causal = shape
    batch, length, platform = int(fields(row["batch"])["batch"]), int(t["seq"]), platform_of(row["platform"])
    train = row["workload"] == "training step (fwd+bwd)"
    tokens, scores, width = batch * length, batch * heads * length * length, hidden // heads
    questions = []

    def gemm(m, n, k, times, count=1):
        ask = f"gemm platform={platform} m={m} n={n} k={k} batch={times} precision=fp32"
        questions.append((ask, count))
        if train:
            questions.append((f"gemm platform={platform} m={m} n={k} k={n} batch={times} precision=fp32", count))
            questions.append((f"gemm platform={platform} m={k} n={n} k={m} batch={times} precision=fp32", count))

    def move(elements, kind, count=1):
        questions.append((f"memory platform={platform} bytes={4 * elements:.0f} kind={kind}", count * (2.5 if train else 1)))

    fused = "fusion" in t
    gemm(tokens, 3 * hidden, hidden, 1, layers)
    gemm(length, length, width, batch * heads, layers)
    gemm(length, width, length, batch * heads, layers)
    gemm(tokens, hidden, hidden, 1, layers)
    gemm(tokens, ffn, hidden, 1, layers)
    gemm(tokens, hidden, ffn, 1, layers)
    move(2 * scores, "elementwise", layers * (2 if causal and not fused else 1))  # scale, mask
    move(2 * scores, "elementwise", layers)  # softmax streams long rows
    move(2 * tokens * ffn, "elementwise", layers * (1 if fused or row["model"] != "gpt2_large" else 4))
    if row["workload"].startswith("training"):  # dropout, in the forward pass as well
        move(2.25 * scores, "elementwise", layers)
        move(2.25 * tokens * hidden, "elementwise", 2 * layers)
    move(3 * tokens * hidden, "elementwise", 2 * layers)
    move(2 * tokens * hidden, "norm", 2 * layers)
    move(2 * tokens * hidden, "elementwise", 4 * layers)  # heads laid out for the products and back
    gemm(tokens, vocabulary, hidden, 1, 1)
    return Case(row, "model", questions, float(row["value"]) * 1e3, "fp32")


def all_reduce_table(row):
    platform, batch = row["platform"], fields(row["batch"])
    match = re.match(r"(\d+)x", platform)
    gpus = int(match.group(1)) if match else None
    if row["metric"] not in ("time", "busbw"):
        return None
    extra, size = "", batch.get("bytes", "8GiB") or "8GiB"
    unit = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}.get(size[-3:])
    size = float(size[:-3]) * unit if unit else float(size)
    at = re.match(r"(\d+) GPUs of 8x", platform)
    if at:
        gpus = int(at.group(1))
        extra = " sharp=on" if row["technique"].startswith("NVLS;") else " sharp=off"
    elif gpus is None:
        slide = {"PCIe Gen4": None, "NVLink2 V100": ("dgx-1-v100", 8, ""), "NVLink3 A100": ("dgx-a100-80g", 8, ""),
                 "NVLink4 H100": ("dgx-h100", 8, " sharp=off"), "NVLink4 SHARP": ("dgx-h100", 8, " sharp=on"),
                 "NVLink3 + 8x200": ("dgx-a100-80g", 32, ""), "NVLink4 + 8x400": ("dgx-h100", 32, " sharp=off")}
        found = next((v for k, v in slide.items() if platform.startswith(k)), None)
        if not found:
            return None
        name, gpus, extra = found
        platform = None
    elif "8xH200" in platform:
        extra = " sharp=on"
    elif gpus == 32 and "H100" in platform:
        extra = " nic=12.5 sharp=off"
    if row["metric"] == "time":
        us = float(row["value"])
    else:
        bus = float(row["value"])
        if bus <= 0:
            return None
        us = size * 2 * (gpus - 1) / gpus / bus / 1e3
    name = platform_of(platform) if platform else name
    kind = "collective" if size >= 65536 else "small collective (not scored)"
    return Case(row, kind, [f"collective platform={name} op=all_reduce bytes={size:.0f} gpus={gpus}{extra}"], us,
                row["metric"])


READERS = {"aiconfigurator_ops": aiconfigurator, "vidur_ops": vidur, "llmcompass_ops": llmcompass,
           "neusight": neusight, "flash_attention": flash_attention, "echo_nccl": all_reduce_table,
           "vtrain_allreduce": all_reduce_table, "nccl_busbw": all_reduce_table}


def ask(tool, questions):
    run = subprocess.run([tool, "estimate", "ops", "--questions", "-", "--json", "--quiet"],
                         input="\n".join(questions) + "\n", capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit("estimate ops: " + run.stderr.strip())
    answers = {}
    for section in json.loads(run.stdout).values():
        if isinstance(section, list):
            for a in section:
                if isinstance(a, dict) and "question" in a:
                    answers[a["question"]] = a["time_us"]
    return answers


def mean(values):
    return sum(values) / len(values) if values else float("nan")


def line(name, cases):
    error = lambda c: 100 * (c.predicted / c.us - 1)
    parts = [[error(c) for c in cases if c.held], [error(c) for c in cases if not c.held]]
    text = "   ".join(f"{len(p):5d} {mean([abs(e) for e in p]):7.1f} {mean(p):+7.1f}" if p else f"{0:5d} {'-':>7} {'-':>7}"
                      for p in parts)
    print(f"  {name:46.46} {text}")


def main():
    arguments = sys.argv[1:]
    worst = 8
    if "--worst" in arguments:
        at = arguments.index("--worst")
        worst = int(arguments[at + 1])
        del arguments[at:at + 2]
    if len(arguments) < 2:
        sys.exit(__doc__)
    tool, directory, only = arguments[0], arguments[1], arguments[2:]
    cases, unread = defaultdict(list), defaultdict(int)
    for table, reader in READERS.items():
        path = os.path.join(directory, table + ".tsv")
        if (only and table not in only) or not os.path.exists(path):
            continue
        with open(path) as f:
            for row in csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE):
                known = platform_of(row["platform"]) or table == "nccl_busbw"
                case = reader(row) if known else None
                if case:
                    cases[table].append(case)
                else:
                    unread[table] += 1
    questions, owners = [], []
    for table in cases:
        for case in cases[table]:
            case.predicted = 0
            for q in case.questions:
                text, count = q if isinstance(q, tuple) else (q, 1)
                questions.append(text)
                owners.append((case, count))
    answers = ask(tool, questions)
    for i, (case, count) in enumerate(owners, 1):
        case.predicted += count * answers[i]
    print(f"  {'':46} {'held out':>21}   {'fitted':>21}\n  {'':46}  rows  error %  bias %    rows  error %  bias %")
    totals = defaultdict(list)
    for table, all_cases in cases.items():
        print(f"{table}" + (f" ({unread[table]} rows are of no operator or platform that is known)" if unread[table] else ""))
        for kind in sorted({c.kind for c in all_cases}):
            group = [c for c in all_cases if c.kind == kind]
            target = f", target {SCORED[kind]}" if kind in SCORED else ""
            line(kind + target, group)
            for by in sorted({(c.gpu or c.row["platform"], c.precision) for c in group}):
                line("    " + " ".join(by), [c for c in group if (c.gpu or c.row["platform"], c.precision) == by])
            if kind in SCORED:
                totals[kind] += group
                bad = sorted(group, key=lambda c: -abs(c.predicted / c.us - 1))[:worst]
                for c in bad:
                    print(f"      worst: {c.predicted:.1f} for {c.us:.1f} us  {c.row['platform']}  {c.row['technique']}  "
                          f"{c.row['batch']}" + ("  (held out)" if c.held else ""))
    print("all tables")
    for kind, group in totals.items():
        line(f"{kind}, target {SCORED[kind]}", group)


if __name__ == "__main__":
    main()
