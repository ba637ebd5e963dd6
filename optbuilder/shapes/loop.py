"""The training loop of all three models: resumable after kill -9, averaged weights, a learning rate that ends low."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from optbuilder.shapes.data import save

AVERAGE = 0.997  # of the old averaged weights, per step
WARM_UP = 200  # steps
DECAY = 0.4  # the last share of the budget, over which the learning rate falls
CHECKPOINT_EVERY = 60.0  # seconds
Loss = Callable[[torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Budget:
    """How long to train in all, earlier runs of the same checkpoint included: minutes (0: not at all), or steps."""

    minutes: float = 60.0
    steps: int | None = None
    checkpoint_steps: int | None = None
    compiled: bool = False  # compiles the denoiser first: minutes of waiting, then steps of a third of the time

    def progress(self, step: int, seconds: float) -> float:
        """The share of the budget that is used up, 0 to 1."""
        if self.steps:
            return min(1.0, step / self.steps)
        return min(1.0, seconds / 60 / self.minutes) if self.minutes else 1.0


def has_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; emulated bfloat16 would be slower than float32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def start(net: nn.Module, peak: float, seed: int) -> dict[str, Any]:
    """A fresh training state; `net` holds the weights, the rest is what a resumed run needs besides them."""
    return {
        "net": net,
        "adam": torch.optim.AdamW(net.parameters(), lr=peak, betas=(0.9, 0.99), weight_decay=0.01, fused=True),
        "average": {k: v.detach().clone() for k, v in net.state_dict().items()},
        "random": torch.Generator().manual_seed(seed),
        "step": 0,
        "seconds": 0.0,
    }


def store(state: dict[str, Any], path: Path) -> None:
    """Writes the checkpoint."""
    kept = {k: state[k] for k in ("average", "step", "seconds")}
    kept |= {"net": state["net"].state_dict(), "adam": state["adam"].state_dict()}
    save(kept | {"random": state["random"].get_state()}, path)


def restore(state: dict[str, Any], path: Path) -> None:
    """Takes up a checkpoint, if there is one."""
    if not path.exists():
        return
    kept = torch.load(path, weights_only=True)
    state |= {k: kept[k] for k in ("average", "step", "seconds")}
    state["net"].load_state_dict(kept["net"])
    state["adam"].load_state_dict(kept["adam"])
    state["random"].set_state(kept["random"])


def advance(state: dict[str, Any], loss: Loss, rate: float) -> float:
    """One step at this learning rate; returns the loss."""
    # Written-out attention: at these few tokens the fused kernel's backward pass takes a quarter of the step.
    with sdpa_kernel(SDPBackend.MATH):
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bf16()):
            value = loss(state["random"])
        value.backward()
    nn.utils.clip_grad_norm_(state["net"].parameters(), 1.0)
    for group in state["adam"].param_groups:
        group["lr"] = rate
    state["adam"].step()
    state["adam"].zero_grad()
    state["step"] += 1
    follow(state)
    return float(value.detach())


def follow(state: dict[str, Any]) -> None:
    """Moves the averaged weights towards the present ones; faster in the first steps."""
    keep = min(AVERAGE, state["step"] / (state["step"] + 10))
    new = state["net"].state_dict()
    floats = [k for k, v in new.items() if v.is_floating_point()]
    torch._foreach_lerp_([state["average"][k] for k in floats], [new[k] for k in floats], 1 - keep)


def rate(peak: float, step: int, progress: float) -> float:
    """The learning rate: a warm-up by steps, level, then down to 1 % of the peak over the budget's last part."""
    return peak * min(1.0, (step + 1) / WARM_UP, max(0.01, (1 - progress) / DECAY))


def fit(net: nn.Module, loss: Loss, path: Path, budget: Budget, peak: float = 1e-3, seed: int = 0) -> dict[str, Any]:
    """Trains `net` until the budget is used up, resuming from `path`; leaves the averaged weights in `net`."""
    state = start(net, peak, seed)
    restore(state, path)
    first, earlier, saved = state["step"], state["seconds"], 0.0
    began = time.monotonic()
    while (progress := budget.progress(state["step"], state["seconds"])) < 1:
        value = advance(state, loss, rate(peak, state["step"], progress))
        passed = time.monotonic() - began
        state["seconds"] = earlier + passed
        every = budget.checkpoint_steps
        if state["step"] % every == 0 if every else passed - saved > CHECKPOINT_EVERY:
            store(state, path)
            saved = passed
            print(f"{path.stem} step {state['step']} loss {value:.5f} used {progress:.0%}", flush=True)
    if state["step"] > first:
        store(state, path)
    net.load_state_dict(state["average"])
    return state
