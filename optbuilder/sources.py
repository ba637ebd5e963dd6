"""Functions of this package as a text of their own: with all that they use, and without what only a plan needs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from symtable import SymbolTable, symtable

DECLARATIONS = ("technique",)  # decorators that say what a plan must know, and that change no function


@dataclass
class Sources:
    """Texts in the order in which Python must read them, the imports that they need, and where each name is from."""

    own: tuple[str, ...]  # packages and modules whose definitions are taken over; others are imported
    imports: dict[str, str] = field(default_factory=dict)  # line by name
    texts: dict[str, str] = field(default_factory=dict)  # definition by name
    origins: dict[str, str] = field(default_factory=dict)

    def add(self, module: str, name: str) -> None:
        """Take over a definition and all that it uses. Raises ValueError where two modules give a name two meanings."""
        path, definitions = parsed(module)
        node = definitions[name]
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self._imported(node, name)
        if name in self.origins:
            return self._same(module, name)
        self.origins[name] = module
        for used in sorted(names_used(node) & definitions.keys()):
            self.add(module, used)
        for line in (n for n in ast.walk(node) if isinstance(n, ast.ImportFrom) and self._is_own(n.module)):
            for alias in line.names:
                self.add(str(line.module), alias.name)
        self.texts[name] = self._text(path, node, definitions)
        return None

    def _same(self, module: str, name: str) -> None:
        path, definitions = parsed(module)
        if self.origins[name] != module and self.texts.get(name) != self._text(path, definitions[name], definitions):
            raise ValueError(f"{name!r} means one thing in {self.origins[name]} and another in {module}")

    def _is_own(self, module: str | None) -> bool:
        return any(module == own or str(module).startswith(f"{own}.") for own in self.own)

    def _imported(self, node: ast.Import | ast.ImportFrom, name: str) -> None:
        alias = next(a for a in node.names if (a.asname or a.name).partition(".")[0] == name)
        if self._own_import(node):
            self.add(node.module or "", alias.name)  # type: ignore[union-attr]
        else:
            renamed = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
            start = f"from {node.module} import " if isinstance(node, ast.ImportFrom) else "import "
            self.imports[name] = start + renamed

    def _text(self, path: Path, node: ast.stmt, definitions: dict[str, ast.stmt]) -> str:
        """The source of a definition: without declarations, imports of what stands here too, and types that do not."""
        lines = path.read_text(encoding="utf-8").splitlines()
        for annotation in annotations(node):
            if any(self._defines_own(name, definitions) for name in names(annotation)):
                lines[annotation.lineno - 1] = cut(lines[annotation.lineno - 1], annotation, "Any")
                self.imports["Any"] = "from typing import Any"
            else:
                for name in names(annotation) & definitions.keys():
                    self._imported(definitions[name], name)  # type: ignore[arg-type]
        for inner in ast.walk(node):
            if isinstance(inner, ast.ImportFrom) and self._is_own(inner.module):
                lines[inner.lineno - 1 : inner.end_lineno] = [DROPPED] * (inner.end_lineno - inner.lineno + 1)
        for decorator in getattr(node, "decorator_list", []):
            if {*names(decorator)} & {*DECLARATIONS}:
                start, end = decorator.lineno - 1, decorator.end_lineno or decorator.lineno
                lines[start:end] = [DROPPED] * (end - start)
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        return "\n".join(line for line in lines[first : node.end_lineno] if line is not DROPPED)

    def _defines_own(self, name: str, definitions: dict[str, ast.stmt]) -> bool:
        node = definitions.get(name)
        return node is not None and not (isinstance(node, ast.Import | ast.ImportFrom) and not self._own_import(node))

    def _own_import(self, node: ast.Import | ast.ImportFrom) -> bool:
        return isinstance(node, ast.ImportFrom) and self._is_own(node.module)

    def text(self) -> str:
        """The imports, the standard library's first, then the definitions."""
        lines = set(self.imports.values())
        standard = {line for line in lines if line.split()[1].partition(".")[0] in sys.stdlib_module_names}
        imports = "\n\n".join(filter(None, map(_sorted, (standard, lines - standard))))
        return "\n\n\n".join([imports, *self.texts.values()])


def _sorted(lines: Iterable[str]) -> str:
    """Plain imports, then one line for all names from a module."""
    plain, parts = sorted(line for line in lines if line.startswith("import ")), {}
    for line in sorted(set(lines) - set(plain)):
        module, _, name = line.partition(" import ")
        parts.setdefault(module, []).append(name)
    return "\n".join([*plain, *(f"{module} import {', '.join(names)}" for module, names in sorted(parts.items()))])


DROPPED = "\0"


@cache
def parsed(module: str) -> tuple[Path, dict[str, ast.stmt]]:
    """The file of a module, and its definitions by name, without importing it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"the module {module!r} has no source")
    path = Path(spec.origin)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return path, {name: node for node in tree.body for name in defined(node)}


def defined(node: ast.stmt) -> Iterator[str]:
    """The names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((a.asname or a.name).partition(".")[0] for a in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name))


def names(node: ast.AST) -> set[str]:
    """Every name in a piece of code."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def annotations(node: ast.AST) -> list[ast.expr]:
    """Every annotation, the last one first: cutting one leaves the places of those before it."""
    found = [i.annotation for i in ast.walk(node) if isinstance(i, ast.arg | ast.AnnAssign) and i.annotation]
    found += [i.returns for i in ast.walk(node) if isinstance(i, ast.FunctionDef) and i.returns]
    return sorted(found, key=lambda a: (a.lineno, a.col_offset), reverse=True)


def names_used(node: ast.stmt) -> set[str]:
    """The global names that running the code looks up: not those of annotations and declarations."""
    bare = Bare().visit(deepcopy(node))
    return set(_global_names(symtable(ast.unparse(bare), "<definition>", "exec")))


class Bare(ast.NodeTransformer):
    """Leaves out annotations and declarations."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        assigned = ast.Assign([node.target], node.value or ast.Constant(None))
        return ast.copy_location(self.generic_visit(assigned), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.decorator_list = [d for d in node.decorator_list if not names(d) & {*DECLARATIONS}]
        return self.generic_visit(node)


def _global_names(table: SymbolTable) -> Iterator[str]:
    outermost = table.get_type() == "module"
    yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (outermost or s.is_global()))
    for child in table.get_children():
        yield from _global_names(child)


def cut(line: str, annotation: ast.expr, instead: str) -> str:
    """The line with one annotation replaced. Raises ValueError for one that goes over several lines."""
    if annotation.end_lineno != annotation.lineno:
        raise ValueError(f"an annotation over several lines: {ast.unparse(annotation)}")
    return line[: annotation.col_offset] + instead + line[annotation.end_col_offset :]
