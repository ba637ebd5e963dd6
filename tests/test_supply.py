"""The lock and the bill of materials are of one set of versions, the one that the tests run with."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.supply import LOCK, ROOT, SBOM, locked, plain


def test_every_line_of_the_lock_has_a_version_and_hashes():
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith(("#", " "))]
    found = locked()
    assert len(lines) == len(found) > 100
    assert all(hashes for _, hashes in found.values())


def test_the_lock_holds_the_pinned_versions_and_every_dependency():
    found = {name: version.partition("+")[0] for name, (version, _) in locked().items()}
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert {plain(name): version for name, version in pins.items()}.items() <= found.items()


def test_the_bill_of_materials_is_that_of_the_lock():
    bill = json.loads(SBOM.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert {c["name"]: c["version"] for c in bill["components"]} == {n: v for n, (v, _) in locked().items()}
    assert all(c["purl"].startswith(f"pkg:pypi/{c['name']}@") for c in bill["components"])
    assert sum("licenses" in c for c in bill["components"]) > 0.9 * len(bill["components"])


def test_no_address_of_an_index_is_written_down():
    for path in (LOCK, SBOM, Path(ROOT / "constraints.txt")):
        assert not re.search(r"https?://|file:/|--(extra-)?index-url[ =]|--find-links", path.read_text())
