"""Tags and entities in the texts of a corpus: markup that was taken for text."""

import html.entities
import re
from pathlib import Path

from harness.data.files import decoded, unpacked

TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>\t]*)?/?>|<!--")
ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")


def notes(path: Path) -> list[str]:
    """In words, how many lines of a corpus file hold tags, how many entities, and the first."""
    found: dict[str, list[tuple[int, str]]] = {"tags": [], "entities": []}
    for number, line in enumerate(decoded(path, unpacked(path)).split("\n"), start=1):
        if tag := TAG.search(line):
            found["tags"].append((number, tag[0]))
        if entity := next(filter(_is_entity, ENTITY.findall(line)), None):
            found["entities"].append((number, entity))
    return [
        f"{len(lines)} line{'s' * (len(lines) != 1)} with {kind}, the first is line {lines[0][0]}: "
        f"{lines[0][1]!r}"
        for kind, lines in found.items()
        if lines
    ]


def _is_entity(text: str) -> bool:
    return text.startswith("&#") or text[1:] in html.entities.html5
