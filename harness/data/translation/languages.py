"""What a column's name says of its language: how sacrebleu is to part words. No torch.

Names are language codes: ISO 639 of two or three letters, BCP 47 (zh-Hans, pt-BR), FLORES
(zho_Hans) or mBART (ja_XX). langcodes knows them and the script that a language is written in.
"""

from collections.abc import Iterable, Sequence
from functools import cache

NEUTRAL = {"src", "tgt"}  # names of sides here, and codes of Sardinian and Tagbanwa in ISO 639-3
NO_LANGUAGE = {"mis", "mul", "und", "zxx"}
HAN = {"Hans", "Hant", "Hani", "Hanb"}
KANA = {"Jpan", "Hira", "Kana", "Hrkt"}
KOREAN = {"Kore", "Hang"}
# Scripts of the Unicode line breaking class SA (a space ends a phrase, not a word), and Tibetan,
# whose syllables end with a mark.
PHRASES = {"Thai", "Laoo", "Khmr", "Mymr", "Lana", "Tale", "Talu", "Tavt", "Ahom", "Tibt"}


@cache
def script(name: str) -> str:
    """The script of the language that a column is named by, such as 'Latn'; '' for other names."""
    import langcodes  # 0.2 s
    from langcodes.tag_parser import LanguageTagError

    try:
        tag = langcodes.Language.get(name)
    except LanguageTagError:
        return ""
    code = tag.language or ""  # longer for private tags and some that are out of use
    known = len(code) in (2, 3) and code not in NO_LANGUAGE | NEUTRAL and tag.is_valid()
    return tag.maximize().script or "" if known else ""


def tokenizer(name: str) -> str:
    """The tokenizer that sacrebleu's BLEU uses for a target; 13a, for European languages, where
    nothing else is known."""
    if script(name) in HAN:
        return "zh"
    return "char" if script(name) in KANA | KOREAN | PHRASES else "13a"


def spaced(name: str) -> bool:
    """Whether spaces part the words of a language."""
    return script(name) not in HAN | KANA | PHRASES


def guessed(targets: Iterable[str]) -> list[str]:
    """In words, how targets are scored whose names are no language codes."""
    return [
        f"BLEU into '{name}' is by sacrebleu's tokenizer {tokenizer(name)}, made for European "
        "languages; name its column by a language code, as de, zho, th or pt-BR"
        for name in dict.fromkeys(targets)
        if not script(name)
    ]


def tokenizers(columns: Sequence[str]) -> str:
    """The tokenizer of each column, in one line."""
    return ", ".join(
        f"{name} {tokenizer(name)}{'' if script(name) else ' (no language code)'}"
        for name in columns
    )
