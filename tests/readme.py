"""Write the table of techniques into README.md: `python -m tests.readme`. A test sees to it that it is up to date."""

from __future__ import annotations

import yaml

from optbuilder.builder import find_function
from optbuilder.typed import conform, option_schema
from optbuilder.usage import summary
from tests.conftest import CONF, ROOT

BEGIN, END = "<!-- techniques: written by `python -m tests.readme` -->", "<!-- end of techniques -->"


def table() -> str:
    """One row per option of every stage: what it does, lossless or lossy, and its needs as it declares them."""
    rows = ["| option | what it does | | needs |", "| --- | --- | --- | --- |"]
    for stage in yaml.safe_load((CONF / "config.yaml").read_text())["stages"]:
        for path in sorted(p for p in (CONF / stage).glob("*.yaml") if p.stem != "none"):
            node = yaml.safe_load(path.read_text())
            function = find_function(node.pop("_target_"), [])
            options, _ = conform(option_schema(function), node, stage)
            kind = "lossless" if function.technique.is_lossless(options) else "lossy"
            what = summary(path).replace(" Lossless.", "").replace(" Lossy.", "")
            rows.append(f"| `{stage}={path.stem}` | {what} | {kind} | {function.technique.describe_needs(options)} |")
    return "\n".join(rows)


def written(text: str) -> str:
    """The README's text with the table in its place."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(written(readme.read_text()))
