"""Gather the corpus, check it, or make a new manifest: ``python -m oracles.factory.corpus``."""

from collections.abc import Sequence
from pathlib import Path

from exactspec.ending import as_program
from exactspec.parser import Parser, refusing
from oracles.factory.corpus.corpus_builder import build_manifest
from oracles.factory.corpus.corpus_reading import GATHERED, read_split, stdlib_folder, wheel_folder
from oracles.factory.corpus.gather import gather, verify
from oracles.factory.corpus.manifest import SPLITS, Manifest, load_manifest, save_manifest


def main(argv: Sequence[str] | None = None) -> None:
    """Do what is asked for, then read every split and print its size."""
    parser = Parser(__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--gather", action="store_true", help="download the wheels of the manifest and verify them")
    action.add_argument("--check", action="store_true", help="verify every wheel and file by its hash")
    action.add_argument("--write", action="store_true", help="make a new manifest from the wheels in the folder")
    parser.add_argument("--root", type=Path, default=GATHERED, help="the gathered folder (runs/corpus)")
    args = parser.parse_args(argv)
    folder = wheel_folder(args.root)
    with refusing("oracles.factory.corpus"):
        if args.write:
            _write(folder)
        manifest = load_manifest()
        if args.gather:
            gather(manifest, folder)
        verify(manifest, folder)
        _read_all(args.root, manifest)


def _write(folder: Path) -> None:
    manifest, builder = build_manifest(sorted(folder.glob("*.whl")), stdlib_folder())
    save_manifest(manifest)
    print("left out for their licence: " + (", ".join(builder.refused) or "none"))
    print("files left out: " + ", ".join(f"{count} {reason}" for reason, count in builder.dropped.most_common()))


def _read_all(root: Path, manifest: Manifest) -> None:
    for split in SPLITS:
        entries = [source.entry for source in read_split(split, root, manifest)]
        packages = {entry.package for entry in entries}
        num_bytes = sum(entry.num_bytes for entry in entries)
        print(f"{split}: {len(entries):,} files of {len(packages)} packages, {num_bytes:,} bytes")


if __name__ == "__main__":
    as_program(main)
