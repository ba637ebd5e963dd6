"""What the installed diffusers and torch say of their own classes and flags, read from their source, not imported.

Importing diffusers takes seconds; a plan needs four facts of one class.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class ClassFacts:
    """A diffusers model class: its bases, its own methods, its repeated blocks, whether its attention goes through the
    dispatcher, whether fuse_qkv_projections fuses anything, and whether its forward enters a device context. `known` is
    False for a class that diffusers does not define."""

    name: str
    known: bool = False
    bases: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    repeated_blocks: tuple[str, ...] = ()
    refuses_group_offload: bool = False
    shares_sequence: bool = False
    dispatches_attention: bool = False
    fuses_projections: bool = False
    enters_device: bool = False


@lru_cache
def class_facts(name: str) -> ClassFacts:
    """The facts of a model class by its name."""
    found = _definition(name, "models")
    if found is None:
        return ClassFacts(name)
    path, source = found
    node = _class(source, name)
    values = {
        t.id: s.value for s in node.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)
    }
    blocks, offloads = values.get("_repeated_blocks"), values.get("_supports_group_offloading")
    bases = tuple(ast.unparse(base) for base in node.bases)
    methods = frozenset(n.name for n in node.body if isinstance(n, ast.FunctionDef))
    sources = _attention_sources(path, source)
    return ClassFacts(
        name,
        True,
        bases,
        methods,
        tuple(ast.literal_eval(blocks) or ()) if blocks is not None else (),
        offloads is not None and ast.literal_eval(offloads) is False,
        "_cp_plan" in values,
        any("dispatch_attention_fn" in text for text in sources),
        "fuse_qkv_projections" in methods or ("AttentionMixin" in bases and any(map(_has_fusing_attention, sources))),
        'with torch.device("cpu")' in source,
    )


@lru_cache
def method_arguments(name: str, method: str, part: str) -> frozenset[str]:
    """The arguments of a class's own method; empty for a class that this part of diffusers does not define."""
    found = _definition(name, part)
    if found is None:
        return frozenset()
    methods = [n for n in _class(found[1], name).body if isinstance(n, ast.FunctionDef) and n.name == method]
    return frozenset(argument.arg for m in methods for argument in m.args.args + m.args.kwonlyargs)


def call_arguments(pipeline: str) -> frozenset[str]:
    """The arguments of a pipeline's `__call__`; empty for a class that diffusers does not define."""
    return method_arguments(pipeline, "__call__", "pipelines")


@lru_cache
def pipeline_source(pipeline: str) -> str:
    """The text of the file that defines a pipeline; empty for a class that diffusers does not define."""
    found = _definition(pipeline, "pipelines")
    return found[1] if found else ""


def passes_sigmas(pipeline: str, flow_sigmas: bool) -> bool:
    """Whether the pipeline gives its scheduler sigmas of its own when the user gives none. Some leave that to a
    scheduler with `flow_sigmas`, which computes the same."""
    source = pipeline_source(pipeline)
    given = re.search(r"sigmas = (np\.linspace|get_default)", source) is not None
    return given and not (flow_sigmas and "use_flow_sigmas" in source)


def lists_sigmas(pipeline: str) -> bool:
    """Whether the sigmas that a pipeline gives are a Python list, with which only some schedulers can compute."""
    return "sigmas = get_default" in pipeline_source(pipeline)


@lru_cache
def inductor_flags() -> frozenset[str]:
    """The names of torch._inductor.config's top-level flags."""
    statements = ast.parse((_package("torch") / "_inductor" / "config.py").read_text(encoding="utf-8")).body
    targets = [s.target for s in statements if isinstance(s, ast.AnnAssign)]
    targets += [s.targets[0] for s in statements if isinstance(s, ast.Assign)]
    return frozenset(t.id for t in targets if isinstance(t, ast.Name) and not t.id.startswith("_"))


def _definition(name: str, part: str) -> tuple[Path, str] | None:
    """The file in one part of diffusers that defines a class, and its text."""
    pattern = re.compile(rf"^class {re.escape(name)}\(", re.M)
    for path in sorted((_package("diffusers") / part).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if pattern.search(source):
            return path, source
    return None


def _class(source: str, name: str) -> ast.ClassDef:
    return next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name)


def _attention_sources(path: Path, source: str) -> list[str]:
    """The text of a model's file, and of the siblings that it takes attention classes from."""
    imports = [n for n in ast.parse(source).body if isinstance(n, ast.ImportFrom) and n.level == 1 and n.module]
    siblings = [
        path.with_name(f"{n.module}.py") for n in imports if any(re.search("Att|Block", a.name) for a in n.names)
    ]
    return [source, *(s.read_text(encoding="utf-8") for s in siblings if s.exists())]


def _has_fusing_attention(source: str) -> bool:
    """Whether a file defines an attention whose projections AttentionMixin's method fuses."""
    classes = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
    fusing = [c for c in classes if any("AttentionModuleMixin" in ast.unparse(base) for base in c.bases)]
    return any("_supports_qkv_fusion = False" not in map(ast.unparse, c.body) for c in fusing)


@lru_cache
def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed; pip install -e . installs what optbuilder needs")
    return Path(spec.origin).parent
