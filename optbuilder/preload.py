"""What the server that jobs are started from imports, once: a job then begins in a moment. No thread may start here."""

import gc
import os
import signal

import optbuilder.noise

signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # Ctrl-C reaches the parent too, which says so
optbuilder.noise.hush()

import diffusers  # noqa: E402
import transformers  # noqa: E402

import optbuilder.baseline  # noqa: E402
import optbuilder.counters  # noqa: E402
import optbuilder.state  # noqa: E402

# The pipeline classes are imported lazily; the loader takes most of the time.
_ = diffusers.DiffusionPipeline, transformers.PreTrainedModel
gc.freeze()  # what is there by now stays to the end: no job needs to look for garbage in it
