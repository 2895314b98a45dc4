"""Small parallel corpora in made-up words, written as the harness reads them."""

import itertools
from pathlib import Path

NUMBERS = ["ein", "zwei", "drei", "vier", "acht"], ["one", "two", "three", "four", "eight"]
COLOURS = ["rote", "blaue", "alte", "neue", "kleine"], ["red", "blue", "old", "new", "small"]
THINGS = ["Seiten", "Bilder", "Dateien", "Felder"], ["pages", "pictures", "files", "fields"]
VERBS = ["zeigt", "sucht", "löscht"], ["shows", "looks for", "deletes"]
SIZES = {"train": 200, "valid": 30, "test": 24}


def pairs() -> list[tuple[str, str]]:
    """300 different pairs in a fixed order in which neighbours have little in common."""
    kinds = (VERBS, NUMBERS, COLOURS, THINGS)
    both = [itertools.product(*(kind[side] for kind in kinds)) for side in (0, 1)]
    said = [
        (f"Er {' '.join(a)}{'.' * (i % 3 > 0)}", f"He {' '.join(b)}{'.' * (i % 3 > 0)}")
        for i, (a, b) in enumerate(zip(*both, strict=True))
    ]
    return [said[i * 77 % len(said)] for i in range(len(said))]


def write(folder: Path, name: str = "toy", **sizes: int) -> Path:
    """The corpus `name` in a data folder: columns src (German) and tgt (English)."""
    lines, start, said = ["split\tsrc\ttgt"], 0, pairs()
    for split, size in (SIZES | sizes).items():
        lines += [f"{split}\t{a}\t{b}" for a, b in said[start : start + size]]
        start += size
    assert start <= len(said)
    path = folder / f"{name}.tsv"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def write_many(folder: Path, name: str = "many") -> Path:
    """English with three languages, two of them English backwards and in capitals."""
    lines, start, said = ["split\ten\tde\tbk\tzh-CN"], 0, pairs()
    for split, size in SIZES.items():
        for i, (a, b) in enumerate(said[start : start + size]):
            chinese = "" if i % 4 == 0 else "".join(chr(0x4E00 + ord(c)) for c in b.lower()[3:])
            lines.append(f"{split}\t{b}\t{a}\t{b[::-1].upper()}\t{chinese}")
        start += size
    path = folder / f"{name}.tsv"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path
