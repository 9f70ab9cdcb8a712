"""The pages of the project: what every test of documents reads."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks"
GROUPS = ("start", "guides", "strategies", "internals")
PAGES = sorted(
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *BENCHMARKS.glob("*.md"), *(ROOT / "oracles" / "embedded").glob("*.md")]
)
