"""report.html: what a grid found, in one file that needs no network."""
