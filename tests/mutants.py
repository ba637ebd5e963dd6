"""Mutation testing: every small change of the code that decides and measures must fail a test. Run it by hand:

python -m tests.mutants                  # all modules below; leaves tests/mutants.md
python -m tests.mutants checks samples   # some of them, on the terminal alone

mutmut and cosmic-ray start a new pytest for each change, which here imports torch each time. This one imports it once,
and forks. Texts are not changed: a message's words are checked where they matter, by whole lines.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "mutants.md"
PACKAGE = Path(__file__).parent.parent / "optbuilder"
TIMEOUT_S = 120
TESTS = {  # the fast tests of each module
    "samples": ["tests/test_samples.py"],
    "measure": ["tests/test_measure.py"],
    "checks": ["tests/test_refusals.py"],
    "builder": ["tests/test_refusals.py"],
}
_OPPOSITE = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be changed into, one thing at a time."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPPOSITE:
        yield ast.Compare(node.left, [_OPPOSITE[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPPOSITE:
        yield ast.BinOp(node.left, _OPPOSITE[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(_OPPOSITE[type(node.op)](), node.values)
        yield from node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.If):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield ast.comprehension(node.target, node.iter, [], node.is_async)
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()


def mutants(source: str) -> Iterator[tuple[int, str, ast.Module]]:
    """Line, what it is changed from and to, and the changed module. Annotations and texts stay."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        for which, new in enumerate(changes(node)):
            if hasattr(node, "lineno") and not _is_annotation(tree, node):
                mutated = copy.deepcopy(tree)
                old = next(n for i, n in enumerate(ast.walk(mutated)) if i == number)
                changed = _Replace(old, list(changes(old))[which]).visit(mutated)
                said = f"`{ast.unparse(node).splitlines()[0][:90]}` to `{ast.unparse(new).splitlines()[0][:90]}`"
                yield node.lineno, said, ast.fix_missing_locations(changed)
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.comprehension) and node.ifs:
            mutated = copy.deepcopy(tree)
            old = next(n for i, n in enumerate(ast.walk(mutated)) if i == number)
            said = f"`if {ast.unparse(node.ifs[0])[:90]}` left out"
            old.ifs = []  # type: ignore[attr-defined]
            yield node.ifs[0].lineno, said, ast.fix_missing_locations(mutated)


def _is_annotation(tree: ast.Module, node: ast.AST) -> bool:
    places = [n for n in ast.walk(tree) if isinstance(n, (ast.arg, ast.AnnAssign, ast.FunctionDef))]
    told = [n.annotation for n in places if getattr(n, "annotation", None)]
    told += [n.returns for n in places if getattr(n, "returns", None)]
    return any(node is inner for annotation in told for inner in ast.walk(annotation))


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else super().generic_visit(node)


class _Loader:
    """Imports one module of the package from a changed tree."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree

    def find_spec(self, name: str, *_: Any) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == f"optbuilder.{self.name}" else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(PACKAGE / f"{self.name}.py")
        exec(compile(self.tree, module.__file__, "exec"), module.__dict__)


def survives(name: str, tree: ast.Module) -> bool:
    """Whether the module's tests pass with the changed tree: in a fork of this process, which ends when they fail."""
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT_S)  # a change that never ends is one that is seen
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            sys.meta_path.insert(0, _Loader(name, tree))  # type: ignore[arg-type]
            import pytest

            os._exit(int(pytest.main(["-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider", *TESTS[name]])))
    return os.waitpid(child, 0)[1] == 0


def tested(name: str) -> tuple[int, list[str]]:
    """The number of changes, and those that no test sees."""
    source, lived, count = (PACKAGE / f"{name}.py").read_text(), [], 0
    assert survives(name, ast.parse(source)), f"the tests of {name} fail without a change"
    for line, said, tree in mutants(source):
        count += 1
        if survives(name, tree):
            lived.append(f"{name}.py:{line} {said}")
            print(lived[-1], flush=True)
    return count, lived


def main() -> None:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import hydra  # noqa: F401 - all that takes time, once, before the forks
    import torch  # noqa: F401
    import torchmetrics  # noqa: F401

    import tests.conftest  # noqa: F401

    names, lines = sys.argv[1:] or list(TESTS), ["What `python -m tests.mutants` found last.", ""]
    for name in names:
        start = time.monotonic()
        count, lived = tested(name)
        seen = count - len(lived)
        lines += [f"`{name}.py`: {seen} of {count} changes fail a test ({100 * seen / count:.0f} %). The others:", ""]
        lines += [*(f"- {each}" for each in lived), ""]
        print(f"{name}: {seen} of {count}, {time.monotonic() - start:.0f} s", flush=True)
    if not sys.argv[1:]:
        FILE.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
