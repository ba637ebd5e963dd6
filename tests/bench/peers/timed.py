"""What every peer's script measures, in the peer's own environment: nothing of optbuilder is imported here.

A script gives `build(work) -> pipe`; this calls the pipeline as often as all do, and prints one line of JSON: when the
first picture was there, every later call's seconds, and the process's peak. The pictures go to an .npy file.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def measured(build: Callable[[dict[str, Any]], Any]) -> None:
    """Do the work that the command line describes as JSON."""
    work = json.loads(sys.argv[1])
    import numpy as np
    import torch

    pipe = build(work)
    pipe.set_progress_bar_config(disable=True)

    def call() -> Any:
        generator = torch.Generator("cpu").manual_seed(work["seed"])
        return pipe(work["prompt"], generator=generator, output_type="np", **work["call"]).images[0]

    picture, first_at, seconds = call(), time.time(), []
    call()
    for _ in range(work["repeats"]):
        start = time.perf_counter()
        picture = call()
        seconds.append(time.perf_counter() - start)
    np.save(work["picture"], picture)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"first_at": first_at, "calls_s": seconds, "peak_bytes": peak}))
