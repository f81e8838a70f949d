"""The cost of `import neli_router` in a fresh interpreter, compared with the start of the interpreter itself.

Every command of a shell script and every task of a scheduler pays this once. The two are started in turn, so a machine
that becomes busy halfway slows both down. Only warm starts count: the first pair writes and loads the caches.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks import BenchmarkOptions, Figures

__all__ = ["Options", "run"]

ROOT = Path(__file__).resolve().parent.parent
BARE = "pass"
IMPORT = """
from time import perf_counter
started = perf_counter()
import neli_router
print(perf_counter() - started)
"""


class Options(BenchmarkOptions):
    trials: int = 21


def run(options: Options) -> Figures:
    trials = max(1, options.trials)
    _start(BARE), _start(IMPORT)
    bare: list[float] = []
    whole: list[float] = []
    inside: list[float] = []
    for _ in range(trials):
        bare.append(_start(BARE)[0])
        took, printed = _start(IMPORT)
        whole.append(took)
        inside.append(float(printed))
    return {
        "import_ms_median": 1e3 * median(inside),
        "import_ms_max": 1e3 * max(inside),
        "start_ms_median": 1e3 * median(whole),
        "bare_start_ms_median": 1e3 * median(bare),
        "start_over_bare": median(whole) / median(bare),
        "trials": trials,
    }


def _start(program: str) -> tuple[float, str]:
    """How long a fresh interpreter took from start to end, and what it printed."""
    started = time.perf_counter()
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return time.perf_counter() - started, printed
