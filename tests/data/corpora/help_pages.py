"""Makes help pages, and Debian packages of them, as LibreOffice's are."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

TEXT = "usr/share/libreoffice/help/{language}/text"
FRAME = '<html><body><p id="par_frame">Frame</p><div id="DisplayArea" x="y">{}</div></body></html>'

Pages = Mapping[str, str]  # name: content


def write_pages(root: Path, language: str, pages: Pages) -> None:
    folder = root / TEXT.format(language=language)
    for name, content in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(FRAME.format(content), encoding="utf-8")


def write_deb(folder: Path, language: str, pages: Pages, packing: str = "xz") -> Path:
    data = io.BytesIO()
    below = TEXT.format(language=language)
    with tarfile.open(fileobj=data, mode=f"w:{packing}") as archive:  # type: ignore[call-overload]
        for name, content in {
            **{f"./{below}/{name}": FRAME.format(text) for name, text in pages.items()},
            f"./{below}/notes.txt": "not a page",
            f"./{below}/../../../../../../escaped.html": FRAME.format(""),
            "./usr/share/doc/copyright.html": FRAME.format(""),
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()))
    path = folder / f"libreoffice-help-{language.lower()}_4%3a7.4.7-1_all.deb"
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", f"data.tar.{packing}": data}
    raw = b"!<arch>\n"
    for name, content in members.items():
        content = content.getvalue() if isinstance(content, io.BytesIO) else content
        raw += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        raw += content + b"\n" * (len(content) % 2)
    path.write_bytes(raw)
    return path
