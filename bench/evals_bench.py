#!/usr/bin/env python3
"""`orrery evals run` against one trial a dataset: dozens of small trials that really compute, on the same link.

evals_bench.py ORRERY [DATASETS] [LINK_MB_PER_S] [PLACES] [RESAMPLES]

The example trainer's model is evaluated on made text. Both ways read the same checkpoint from "storage" at one rate that
all readers share; both have the same places for trials: half of the cores stand for GPUs, the rest are the CPUs beside
them. The yardstick holds a place from the load through the metric, as the study's baseline does; evals loads once, frees
the place before the metric, and shares trials among datasets. Where the time of the yardstick's trials goes is printed
beside what the study has of a HumanEval trial (221 s: 65 s load and preprocessing, 42 s metric). The scores of both must
be the same before a time is printed.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

CORES = os.cpu_count() or 2
SHAPE = ["--width", "64", "--layers", "2", "--vocabulary", "4096"]


def main():
    orrery = os.path.abspath(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 36
    rate = float(sys.argv[3]) * 1e6 if len(sys.argv) > 3 else 20e6
    places = int(sys.argv[4]) if len(sys.argv) > 4 else max(1, CORES // 2)
    cpu_jobs = max(1, CORES - places)
    trainer = os.path.join(os.path.dirname(orrery), "orrery_trainer")
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as where:
        path = lambda *names: os.path.join(where, *names)
        subprocess.run([trainer, *SHAPE, "--steps", "2", "--save", path("checkpoints"), "--save-interval", "2", "--quiet"],
                       check=True, stdout=subprocess.DEVNULL)
        checkpoint = next(n for n in os.listdir(path("checkpoints")) if n.startswith("step-"))
        size = sum(os.path.getsize(path("checkpoints", checkpoint, f)) for f in os.listdir(path("checkpoints", checkpoint)))
        items = {f"text-{i}": min(120, max(4, int(draw.lognormvariate(2.5, 0.9)))) for i in range(count)}
        resamples = int(sys.argv[5]) if len(sys.argv) > 5 else 1_000_000

        memory = path("memory")
        os.mkdir(memory)
        with open(path("c.toml"), "w") as f:
            f.write(f"""[evals]
state = "state"
[cluster]
gpus_per_node = {places}
cpu_jobs_per_node = {cpu_jobs}
load_bytes_per_s = {rate}
[trial]
start_s = 0.05
least_s = 0.5
[[model]]
name = "m"
checkpoints = "checkpoints"
only = "step-*"
settle_s = 0
[prior]
item_s = 0.02
metric_s = 0.5
[inference]
command = {json.dumps([trainer, *SHAPE, "--evaluate", "{model}", "--work", "{work}"])}
[metric]
command = {json.dumps([trainer, "--resamples", str(resamples), "--score", "{output...}"])}
""")
            for name, n in items.items():
                f.write(f'[[dataset]]\nname = "{name}"\nitems = {n}\n')

        def one(name):  # a trial of the yardstick, from the load through the metric
            out = path("baseline", name)
            with open(out + ".json", "w") as f:
                json.dump([{"dataset": name, "first": 0, "items": items[name], "output": out}], f)
            began = time.monotonic()
            subprocess.run([trainer, *SHAPE, "--evaluate", path("checkpoints", checkpoint), "--work", out + ".json",
                            "--read-bytes-per-second", str(int(rate)), "--read-rate-file", path("rate")], check=True)
            inferred = time.monotonic()
            said = subprocess.run([trainer, "--resamples", str(resamples), "--score", out], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout
            spent.append((inferred - began, time.monotonic() - inferred))
            return name, json.loads(said)

        def baseline():
            os.mkdir(path("baseline"))
            began = time.monotonic()
            with ThreadPoolExecutor(places) as pool:
                scores = dict(pool.map(one, items))
            return time.monotonic() - began, scores

        def ours():
            began = time.monotonic()
            ran = subprocess.run([orrery, "evals", "run", path("c.toml"), "--json"], stdout=subprocess.PIPE, text=True)
            took = time.monotonic() - began
            if ran.returncode != 0:
                sys.exit("evals_bench: orrery evals run did not score everything")
            return took, json.loads(ran.stdout)

        spent = []
        base_s, want = baseline()
        first_s, first = ours()
        if {n: s for n, s in first["scores"][checkpoint].items()} != want:
            sys.exit("evals_bench: the scores differ from those of one trial a dataset")
        # The same weights once more, as another state of the checkpoint: now the times are known.
        os.utime(path("checkpoints", checkpoint, "manifest.json"))
        second_s, second = ours()
        if len(second["scores"]) != 2 or {n: s for n, s in second["scores"][checkpoint].items()} != want:
            sys.exit("evals_bench: the second run's scores differ")
        print(f"{count} datasets, {sum(items.values())} items, {size / 1e6:.1f} MB at {rate / 1e6:.0f} MB/s, "
              f"places: {places}, metric jobs: {cpu_jobs}, {CORES} cores")
        inference, metric = (sum(times) for times in zip(*spent))
        print(f"of a trial: an uncontended load {100 * count * size / rate / (inference + metric):.0f} %, metric "
              f"{100 * metric / (inference + metric):.0f} %   (the study's: 29 %, 19 %)")
        print(f"one trial a dataset      {base_s:7.2f} s")
        print(f"orrery evals run         {first_s:7.2f} s   {base_s / first_s:.2f}x   (nothing was known of times; "
              f"{len(first['trials'])} trials; bound by the model {first['lower_bound_s']:.2f} s)")
        print(f"... with measured times  {second_s:7.2f} s   {base_s / second_s:.2f}x   "
              f"({len(second['trials']) - len(first['trials'])} trials)")


if __name__ == "__main__":
    main()
