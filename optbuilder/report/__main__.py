"""python -m optbuilder.report DIR ...: makes report.html again, also of several grids, from several machines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from optbuilder.errors import Refused
from optbuilder.report.page import write_report


def main() -> None:
    """Write the page and print where it is. Exits with 2 where there is nothing to report."""
    parser = argparse.ArgumentParser(prog="python -m optbuilder.report", description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="of a grid, or of a run")
    parser.add_argument("--output", type=Path, help="the page; report.html in the one DIR, or here")
    given = parser.parse_args()
    single = given.directories[0] if len(given.directories) == 1 else Path()
    try:
        print(write_report(given.directories, given.output or single / "report.html"))
    except Refused as refused:
        print(refused, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
