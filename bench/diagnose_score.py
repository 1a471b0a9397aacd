#!/usr/bin/env python3
"""How often is the cause of a failure found? usage: diagnose_score.py build/orrery [--faults DIR] [--embed FILE] [--seeds 1,2,3]
Buries the labelled failure logs in benign output with several seeds, lengths and kinds of noise, diagnoses them and
prints the share that agrees with the labels: those whose cause is inferred apart. --list shows the disagreements."""
import argparse, collections, csv, json, os, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
shared = os.path.join(here, "..", "..", "shared")
ap = argparse.ArgumentParser()
ap.add_argument("orrery")
ap.add_argument("--faults", default=os.path.join(shared, "data", "faults"))
ap.add_argument("--embed", default=os.path.join(shared, "tools", "embed.py"))
ap.add_argument("--seeds", default="1,2,3")
ap.add_argument("--list", action="store_true")
ap.add_argument("--bare", action="store_true", help="the excerpts alone")
a = ap.parse_args()
if not os.path.exists(a.embed):
    print("SKIP: no failure logs in", a.faults)
    sys.exit(0)


def labels_of(folder):
    with open(os.path.join(folder, "LABELS.tsv"), encoding="utf-8") as f:
        return list(csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE))


def diagnose(folder, labels):
    names = [os.path.join(folder, l["file"]) for l in labels]
    out = subprocess.run([a.orrery, "diagnose", "--json", "--quiet"] + names, capture_output=True, text=True)
    if out.returncode not in (0, 1):
        sys.exit(out.stderr)
    return {os.path.basename(v["file"]): v for v in json.loads(out.stdout)["logs"]}


KEYS = ("reason", "category", "restart", "where", "line")


def score(labels, verdicts, misses):
    groups = {"judged": collections.Counter(), "inferred": collections.Counter(), "healthy": collections.Counter(),
              "cascades": collections.Counter()}
    for l in labels:
        v = verdicts[l["file"]]
        healthy = l["reason"] == "None"
        line = v["evidence"][0]["line"] if v["evidence"] else 0
        hit = {k: v[k] == l[k] for k in ("reason", "category", "restart", "where")}
        hit["line"] = v["verdict"] == "healthy" if healthy else abs(line - int(l["root_line"])) <= 2 and line > 0
        names = ["inferred" if l["cause_basis"] == "inferred" else "judged"]
        if l["cascade"] == "yes":
            names.append("cascades")
        for name in names:
            groups[name]["n"] += 1
            for k in KEYS:
                groups[name][k] += hit[k]
        if healthy:
            groups["healthy"]["n"] += 1
            groups["healthy"]["called failed"] += v["verdict"] != "healthy"
        if not all(hit[k] for k in ("reason", "category", "restart", "line")):
            misses[l["file"]].append((l["cause_basis"], {k: (str(v.get(k)), l[k]) for k in ("reason", "category", "restart", "where") if not hit[k]},
                                      line - int(l["root_line"]), v["evidence"][0]["why"] if v["evidence"] else v["verdict"]))
    return groups


def show(name, groups):
    for g, t in groups.items():
        if t["n"]:
            print(f"{name:34s} {g:9s} n={t['n']:<4d}", "  ".join(f"{k} {100 * t[k] / t['n']:.1f}%" for k in KEYS) if g != "healthy"
                  else f"called failed {t['called failed']}")


misses = collections.defaultdict(list)
bare = labels_of(a.faults)
show("bare", score(bare, diagnose(os.path.join(a.faults, "logs"), bare), misses))
total = collections.defaultdict(collections.Counter)
if not a.bare:
    for seed in a.seeds.split(","):
        for how in (["--pre", "2000", "--post", "40"], ["--pre", "200", "--post", "5", "--noise", "0.2"],
                    ["--pre", "6000", "--post", "120", "--noise", "0.05"], ["--pre", "2000", "--post", "40", "--plain"]):
            with tempfile.TemporaryDirectory() as folder:
                env = dict(os.environ, FAULTS=a.faults)
                subprocess.run([sys.executable, a.embed, folder, "--seed", seed] + how, check=True, env=env, stdout=subprocess.DEVNULL)
                labels = labels_of(folder)
                groups = score(labels, diagnose(folder, labels), misses)
                show("seed " + seed + " " + " ".join(how).replace("--", ""), groups)
                for g, t in groups.items():
                    total[g].update(t)
    show("all", total)
if a.list:
    for f, m in sorted(misses.items()):
        shown = []
        for x in m:
            if x not in shown:
                shown.append(x)
        print(f, *shown[:3], sep="\n    ")
