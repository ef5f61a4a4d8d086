"""Simulated bisections, Racewatch's beside its neighbours': see `bisect_simulation.py`.

python3 benchmarks/bisect.py --seeds 200 --jobs 2 --out docs/results/bisect-simulation.txt
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # This folder goes, or the standard library's `bisect` would be this file.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.bisect_simulation import main

    main()
else:
    # Scripts beside this one find it where the standard library asks for its own.
    from _bisect import *  # noqa: F403
    from _bisect import bisect_right as bisect
    from _bisect import insort_right as insort

    __all__ = ["bisect", "insort"]
