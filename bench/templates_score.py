#!/usr/bin/env python3
"""How well are lines grouped by template? usage: templates_score.py build/orrery [--loghub DIR]
Grouping accuracy (share of lines whose group is exactly the labelled one) on the labelled sets of 2,000 lines, the same
configuration for all, beside what REFERENCE.tsv quotes."""
import argparse, collections, csv, os, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
ap = argparse.ArgumentParser()
ap.add_argument("orrery")
ap.add_argument("--loghub", default=os.path.join(here, "..", "..", "shared", "data", "faults", "loghub"))
a = ap.parse_args()
if not os.path.isdir(a.loghub):
    print("SKIP: no labelled sets in", a.loghub)
    sys.exit(0)
with open(os.path.join(a.loghub, "REFERENCE.tsv"), encoding="utf-8") as f:
    reference = {r["set"]: r for r in csv.DictReader((l for l in f if not l.startswith("#")), delimiter="\t")}
accuracies = []
for name in sorted(reference):
    with open(os.path.join(a.loghub, name, name + "_2k.log_structured.csv"), encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    with tempfile.TemporaryDirectory() as folder:
        log, out = os.path.join(folder, "content.log"), os.path.join(folder, "t.csv")
        with open(log, "w", encoding="utf-8") as f:
            f.write("".join(" ".join(r["Content"].splitlines()) + "\n" for r in rows))
        run = subprocess.run([a.orrery, "diagnose", log, "--templates", out, "--quiet", "--json"], capture_output=True, text=True)
        if run.returncode not in (0, 1):
            sys.exit(run.stderr)
        with open(out, encoding="utf-8", newline="") as f:
            ids = [r["id"] for r in csv.DictReader(f)]
    assert len(ids) == len(rows), (name, len(ids), len(rows))
    mine, true = collections.defaultdict(set), collections.defaultdict(set)
    for i, r in enumerate(rows):
        mine[ids[i]].add(i)
        true[r["EventId"]].add(i)
    right = sum(len(g) for g in mine.values() if true[rows[next(iter(g))]["EventId"]] == g)
    accuracies.append(right / len(rows))
    print(f"{name:12s} {accuracies[-1]:.4f}   Drain, settings per set {reference[name]['logparser_drain_2k']}   Brain {reference[name]['brain_2k']}")
print(f"{'mean':12s} {sum(accuracies) / len(accuracies):.4f}")
