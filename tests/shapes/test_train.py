"""Training: resumed runs end where unbroken ones do, kill -9 leaves a usable checkpoint, folders are ordinary."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from diffusers import AutoencoderKL, DiffusionPipeline

from optbuilder.shapes import data, decoder, flux, loop, sdxl, vae

ENDLESS = """
import sys
from pathlib import Path
import torch
from optbuilder.shapes import loop
net = torch.nn.Linear(64, 64)
loop.fit(net, lambda random: net(torch.randn(8, 64, generator=random)).square().mean(), Path(sys.argv[1]),
         loop.Budget(steps=10**9, checkpoint_steps=1))
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with a few pictures and an autoencoder that has seen two batches of them."""
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "PICTURES", 40)
        patch.setattr(vae, "BATCH", 4)
        vae.train(folder, loop.Budget(steps=2))
    return folder


def lesson(part: ModuleType, work: Path) -> tuple[torch.nn.Module, loop.Loss]:
    """A fresh network of this part and its loss."""
    net = part.build()
    if part is vae:
        pictures = data.pictures(work, 40)
        return net, lambda random: vae.loss(net, pictures, random)
    learned = data.lessons(work, 1.0, 0.0, part.tokenizers())
    return net, part.loss_on(net, learned)


def interrupted(advance: Callable[..., float], at: int) -> Callable[..., float]:
    """`advance`, failing after this many steps."""

    def step(state: dict, *rest: object) -> float:
        if state["step"] == at:
            raise KeyboardInterrupt
        return advance(state, *rest)

    return step


@pytest.mark.parametrize("part", [vae, sdxl, flux], ids=["vae", "sdxl", "flux"])
def test_a_resumed_run_ends_where_an_unbroken_one_does(
    part: ModuleType, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "BATCH", 4)
    budget = loop.Budget(steps=4, checkpoint_steps=2)
    unbroken, loss = lesson(part, work)
    loop.fit(unbroken, loss, tmp_path / "unbroken.pt", budget)
    broken, loss = lesson(part, work)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "advance", interrupted(loop.advance, at=3))
        loop.fit(broken, loss, tmp_path / "broken.pt", budget)
    resumed, loss = lesson(part, work)
    assert loop.fit(resumed, loss, tmp_path / "broken.pt", budget)["step"] == 4
    for name, weight in unbroken.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name


def test_the_decoder_trains_alone(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "BATCH", 4)
    monkeypatch.setattr(data, "PICTURES", 40)
    folders = tuple(tmp_path / name for name in ("first", "second"))
    for folder in folders:
        shutil.copytree(sdxl.FOLDER / "vae", folder / "vae")
    before = AutoencoderKL.from_pretrained(folders[0] / "vae").state_dict()
    decoder.train(work, loop.Budget(steps=2), folders)
    for folder in folders:
        after = AutoencoderKL.from_pretrained(folder / "vae").state_dict()
        changed = {name.split(".")[0] for name, weight in after.items() if not torch.equal(weight, before[name])}
        assert changed == {"decoder", "post_quant_conv"}


def test_kill_9_leaves_a_usable_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "endless.pt"
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(20)]
        process.send_signal(signal.SIGKILL)
    state = loop.start(torch.nn.Linear(64, 64), peak=1e-3, seed=0)
    loop.restore(state, path)
    assert state["step"] >= int(lines[-1].split()[2])


@pytest.mark.parametrize("part", [sdxl, flux], ids=["sdxl", "flux"])
def test_training_writes_an_ordinary_folder(
    part: ModuleType, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "BATCH", 4)
    part.train(work, loop.Budget(steps=1), tmp_path / "folder")
    pipe = DiffusionPipeline.from_pretrained(tmp_path / "folder")
    pipe.set_progress_bar_config(disable=True)
    picture = (
        pipe("a red circle", num_inference_steps=2, height=64, width=64, max_sequence_length=16).images[0]
        if (part is flux)
        else pipe("a red circle", num_inference_steps=2).images[0]
    )
    assert picture.size == (64, 64)
    for path in (tmp_path / "folder").rglob("*.json"):
        assert "_name_or_path" not in path.read_text(), path
