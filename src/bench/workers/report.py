"""Lines by which a worker tells `orrery bench` what it measured: one JSON object a line on standard output.

Every line has the key "orrery_bench", which says what it is; docs/formats/bench.md lists them.
"""
import json
import os
import sys


def tell(kind, **values):
    line = json.dumps({"orrery_bench": kind, **values}, allow_nan=False)
    os.write(1, (line + "\n").encode())  # one call: lines of several ranks do not mix


def missing(package, error=None):
    """A package that this run needs is not there: told as such, then the worker ends."""
    tell("missing", package=package, error=str(error or ""))
    print(f"ModuleNotFoundError: No module named '{package}'", file=sys.stderr, flush=True)
    sys.exit(3)


def refuse(reason):
    """This run cannot be: told with its reason, then the worker ends."""
    tell("refused", reason=reason)
    print(f"ValueError: {reason}", file=sys.stderr, flush=True)
    sys.exit(4)


def forget_host_peak():
    """VmHWM begins again at what is held now."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pass


def host_bytes(key):
    """Of this process, as the kernel counts them: VmHWM, RssAnon, RssFile."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
