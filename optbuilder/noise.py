"""Library messages that a user can do nothing about. Each is named with its logger and the reason it says nothing."""

from __future__ import annotations

import logging
import os
import warnings

_SAYS_NOTHING = {
    # torchao's only wheel has CUDA libraries, which a CPU build of torch cannot load.
    "torchao": ("Failed to load", "Skipping import of cpp extensions"),
    "torchao.kernel.intmm": ("Detected no triton",),  # the CPU needs none
    # torchao registers its own enums in a way that the next torch will not take.
    "torch.utils._pytree": ("is an Enum subclass",),
    # Matters only for checkpoints pickled by a torchao that is no longer supported.
    "diffusers.quantizers.torchao.torchao_quantizer": ("Unable to import `torchao` Tensor objects",),
    # Pipelines name image processors that text-to-image never calls.
    "transformers.utils.import_utils": ("requires torchvision",),
    # Stale: float16 runs on CPUs; where it is slow, the plan says so.
    "diffusers.pipelines.pipeline_utils": ("cannot run with `cpu` device",),
    "diffusers.models.modeling_utils": ("Attention backends are an experimental feature",),
}


def hush() -> None:
    """Filter these messages out; call it before torch and diffusers are imported. Everything else stays."""
    logging.raiseExceptions = False  # a log that cannot be written, on a full disk, draws no tracebacks
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "warning")  # it tells every block that it wraps
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces its start and stop on stderr
    # torchao's tensors give torch no stable name for its cache of joint graphs; inductor's own cache does without.
    warnings.filterwarnings("ignore", message=r"\w+ does not implement _stable_hash_for_caching")
    for name, fragments in _SAYS_NOTHING.items():
        log = logging.getLogger(name)
        log.filters = [f for f in log.filters if getattr(f, "__name__", "") != "_means_something"]
        log.addFilter(_filter(fragments))


def _filter(fragments: tuple[str, ...]) -> object:
    def _means_something(record: logging.LogRecord) -> bool:
        return not any(fragment in record.getMessage() for fragment in fragments)

    return _means_something


def to_run_log() -> None:
    """Send diffusers' and transformers' messages through the root logger, so that run.log has them, and draw no bars of
    theirs: ours show loading, compiling and denoising."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    for library in (diffusers_logging, transformers_logging):
        library.disable_default_handler()
        library.enable_propagation()
        library.disable_progress_bar()


class Once(logging.Filter):
    """Let a message through the first time: a warning of a library is repeated in every call otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        new = message not in self.seen
        self.seen.add(message)
        return new
