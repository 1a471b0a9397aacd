#!/usr/bin/env python3
"""How good is `orrery predict`? Every simulated job whose truth is known, from the base's traces and the edits alone.

usage: predict_bench.py ORRERY [DATA [PATTERN]]   DATA has oracle/ and pipelines/ (default: ../shared/data)

Tables: each target (error of the iteration, whether the truth is in the interval, classes as shares of the step), the
bounds by kind of edit, what `--network`, `--host` and the like do, recorded pipelines, and speed: cold and for a
further configuration (--search), with the memory of the whole process.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

OPTIONS = {
    "dp": "--dp",
    "pp": "--pp",
    "tp": "--tp",
    "layers": "--layers",
    "hidden": "--hidden",
    "ffn": "--ffn",
    "heads": "--heads",
    "kv_channels": "--head-dim",
    "seq": "--seq-length",
    "mbs": "--micro-batch-size",
    "microbatches": "--num-microbatches",
}
SWITCHES = {"sp": "--sequence-parallel", "distopt": "--distributed-optimizer"}
PAPER = {"--dp", "--pp", "--num-microbatches", "--layers", "--hidden", "--ffn", "--heads"}


def edits(base, target):
    """The options that turn one configuration into the other."""
    out = []
    for key, option in OPTIONS.items():
        if base[key] != target[key]:
            out += [option, str(target[key])]
    for key, option in SWITCHES.items():
        if base[key] != target[key]:
            out += [option, "on" if target[key] else "off"]
    if base["recompute"] != target["recompute"]:
        out += ["--recompute", target["recompute"]]
    if base["vpp"] != target["vpp"]:
        out += ["--schedule", f"interleaved:{target['vpp']}" if target["vpp"] > 1 else "1f1b"]
    if base.get("straggler", -1) >= 0 > target.get("straggler", -1):
        out += ["--without-stragglers"]
    if target.get("cpu_factor", 1) != 1:
        out += ["--host", f"{target['cpu_factor']}x"]
    if target.get("gemm_factor", 1) != 1:
        out += ["--kernel", f"gemm={target['gemm_factor']}x"]
    network = [f"{side}={target[f'net_{side}']}x" for side in ("intra", "inter") if target.get(f"net_{side}", 1) != 1]
    if network:
        out += ["--network", ",".join(network)]
    return out


def predict(orrery, traces, options):
    started = time.time()
    run = subprocess.run([orrery, "predict", str(traces), *options, "--json", "--quiet"], capture_output=True, text=True)
    seconds = time.time() - started
    if run.returncode not in (0, 1) or not run.stdout:
        return None, run.stderr.strip(), seconds
    return json.loads(run.stdout), "", seconds


def classes(breakdown):
    return {name: breakdown[f"{name}_ms"] for name in ("exposed_compute", "overlapped", "exposed_comm")}


def simulated(orrery, oracle, pattern):
    rows = []
    print(f"{'target':34} {'truth ms':>9} {'predicted':>9} {'error %':>8} {'+- %':>5} in  worst class %  edits")
    for base in sorted(oracle.glob("*/base")):
        base_truth = json.loads((base / "truth.json").read_text())
        for target in sorted(base.parent.iterdir()):
            name = f"{base.parent.name}/{target.name}"
            if target.name == "base" or pattern not in name or not (target / "truth.json").exists():
                continue
            truth = json.loads((target / "truth.json").read_text())
            options = edits(base_truth["config"], truth["config"])
            answer, error, _ = predict(orrery, base, options)
            if answer is None:
                print(f"{name:34} FAILED: {error}")
                rows.append((name, options, None, False, 0, {}))
                continue
            got, want = answer["predicted"]["iteration_ms"], truth["iteration_ms"]
            low, high = answer["predicted"]["interval_ms"]
            mine, true = classes(answer["predicted"]["breakdown"]), classes(truth["breakdown_mean"])
            off = {k: 100 * (mine[k] - true[k]) / want for k in mine}
            off["other"] = 100 * (got - sum(mine.values()) - (truth["iteration_ms"] - sum(true.values()))) / want
            worst = max(off, key=lambda k: abs(off[k]))
            rows.append((name, options, 100 * (got / want - 1), low <= want <= high, 50 * (high - low) / got, off))
            print(
                f"{name:34} {want:9.2f} {got:9.2f} {rows[-1][2]:+8.2f} {rows[-1][4]:5.1f} {'y' if rows[-1][3] else 'N':2}"
                f"  {worst:15} {off[worst]:+5.1f}  {' '.join(options)}"
            )
    return rows


def verdict(label, rows, mean_bound, worst_bound):
    errors = [abs(r[2]) for r in rows if r[2] is not None]
    if not errors:
        return
    failed = sum(r[2] is None for r in rows)
    mean, worst = statistics.mean(errors), max(errors)
    state = "ok" if mean <= mean_bound and worst <= worst_bound and failed == 0 else "SHORT"
    print(f"{label:44} n {len(errors):3}  mean {mean:5.2f} % (bound {mean_bound})  worst {worst:5.2f} % (bound {worst_bound})"
          f"  failed {failed}  {state}")


def pipelines(orrery, data):
    if not data.exists():
        print("pipelines: SKIPPED, not here")
        return
    answer, error, _ = predict(orrery, data / "pp8-1f1b", ["--schedule", "interleaved:2"])
    if answer is None:
        print(f"pp8-1f1b to interleaved:2 FAILED: {error}")
    else:
        got = answer["predicted"].get("iteration_median_ms", answer["predicted"]["iteration_ms"])
        print(f"pp8-1f1b to interleaved:2: median {got:.1f} ms, measured 2881.5: {100 * (got / 2881.5 - 1):+.2f} % (bound 3)")
    answer, error, _ = predict(orrery, data / "steps-dp2-pp4", ["--without-stragglers"])
    if answer is not None:
        print(f"steps-dp2-pp4 without stragglers: {answer['predicted']['iteration_ms']:.1f} ms,"
              f" speedup {answer['speedup']:.4f}")


def speed(orrery, oracle):
    base = oracle / "gpt3-15b" / "base"
    if not base.exists():
        print("speed: SKIPPED, no job of 16 ranks here")
        return
    answer, _, seconds = predict(orrery, base, ["--pp", "4", "--num-microbatches", "8"])
    rss = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"16 ranks, 0.9 million events: {seconds:.2f} s cold (bound 10), {rss:.2f} GB at most of all runs here (bound 2)")
    _, _, plain = predict(orrery, base, [])
    answer, _, searched = predict(orrery, base, ["--search", "gpus=64,micro-batch-size=1:2"])
    if answer is not None:
        n = len(answer["candidates"])
        each = max(searched - plain, 1e-9) / max(n, 1)
        print(f"search: {n} candidates, {each * 1000:.0f} ms each, {60 / each:.0f} a minute (bound 200)")


def main():
    orrery = sys.argv[1]
    data = Path(sys.argv[2] if len(sys.argv) > 2 else "../shared/data")
    pattern = sys.argv[3] if len(sys.argv) > 3 else ""
    oracle = data / "oracle"
    if not oracle.exists():
        print(f"predict_bench: SKIPPED, no {oracle}")
        return
    if not pattern:
        speed(orrery, oracle)
    rows = simulated(orrery, oracle, pattern)
    paper = [r for r in rows if set(o for o in r[1] if o.startswith("--")) <= PAPER]
    rest = [r for r in rows if r not in paper]
    verdict("dp, pp with micro-batches, layers, hidden", paper, 3, 7)
    verdict("all other edits", rest, 5, 10)
    good = [r for r in rows if r[2] is not None]
    if good:
        for name in good[0][5]:
            print(f"class {name:16} mean error {statistics.mean(abs(r[5][name]) for r in good):.2f} % of the step (bound 5)")
        inside = 100 * sum(r[3] for r in good) / len(good)
        print(f"truth inside the interval: {inside:.0f} % (bound 80); median half width"
              f" {statistics.median(r[4] for r in good):.1f} % (bound 10)")
    if not pattern:
        pipelines(orrery, data / "pipelines")


if __name__ == "__main__":
    main()
