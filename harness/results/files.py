"""Files written whole or not at all."""

import os
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, and never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.part")  # one name: what a kill leaves is overwritten
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
