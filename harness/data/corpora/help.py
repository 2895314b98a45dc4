"""Parallel corpora from LibreOffice's help: German-English pairs, and rows of 18 languages.

The texts are under the Mozilla Public License 2.0, written and translated by the LibreOffice
contributors. What comes out of version 4:7.4.7-1+deb12u14 is known by its hash.
"""

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from harness.data.corpora.pages import Key, require, texts
from harness.data.corpora.tables import SPLITS, Corpus, Row, digest

LANGUAGES = (
    *("cs", "de", "el", "es", "fi", "fr", "hu", "it", "ja", "ko"),
    *("nl", "pl", "pt-BR", "ru", "sv", "tr", "zh-CN"),
)
WITHOUT_SPACES = {"ja", "zh-CN"}
TRANSLATIONS = 14  # that a row of many languages has at least
ROWS = {"train": 5000, "valid": 300, "test": 300}  # of many languages
WORDS, MANY_WORDS = 50, 25  # English words in a pair, in a row of many languages
MORE_WORDS = 15  # that a translation of such a row may have
CHARACTERS = 320

END = re.compile(r"""[.!?]["”“»)]?\s+(?=["„“»(]?[A-ZÄÖÜ0-9])""")
ABBREVIATED = (
    "Abb|Dr|Mr|No|Nr|St|approx|bzw|ca|engl|etc|evtl|ggf|incl|inkl|max|min|usw|vgl|vs"
    r"|[A-Za-zÄÖÜä]|\d{1,2}"  # z. B., o. ä., e. g., the 3. of them
)
NO_END = re.compile(rf"(?:\b(?:{ABBREVIATED})|\.\.)\.$")
# Formulas, calls, addresses, paths, markup, and characters that were lost.
SYMBOLS = re.compile(r"^[=/#]|://|=\s?[A-ZÄÖÜ.]+\(|[A-Z]{3,}\(|;\S|[{}<>\\^|~@$_\ufffd]")


def german_english(folder: Path) -> Corpus:
    """Pairs of sentences and short texts, each side once; ConfigError when help is missing."""
    require(folder, ("en-US", "de"))
    german, english = texts(folder, "de"), texts(folder, "en-US")
    left_out: Counter[str] = Counter()
    pages: defaultdict[Row, list[str]] = defaultdict(list)
    for key in sorted(english.keys() & german.keys()):
        for pair in _pairs(german[key], english[key]):
            if reason := fault(*pair, WORDS):
                left_out[reason] += 1
            else:
                pages[pair].append(key[0])
    left_out["repeated"] = sum(map(len, pages.values())) - len(pages)
    rows = {pair: _split(pages[pair]) for pair in _one_to_one(pages)}
    left_out["another translation"] = len(pages) - len(rows)
    apart = _apart(rows)
    left_out["near another split"] = len(rows) - len(apart)
    return _corpus(("src", "tgt"), apart, lambda pair: pair, left_out)


def multilingual(folder: Path) -> Corpus:
    """English sentences with up to 17 translations; ConfigError when help is missing."""
    require(folder, ("en-US", *LANGUAGES))
    english = texts(folder, "en-US")
    pages: defaultdict[str, set[str]] = defaultdict(set)
    for (page, _), text in english.items():
        if 3 <= len(text.split()) <= MANY_WORDS and len(sentences(text)) == 1:
            pages[text].add(page)
    by_language = [_translations(texts(folder, each), english, pages, each) for each in LANGUAGES]
    rows = {
        row: _split(pages[row[0]])
        for row in ((text, *(each.get(text, "") for each in by_language)) for text in pages)
        if len(row) - row.count("") > TRANSLATIONS
    }
    left_out = Counter({f"fewer than {TRANSLATIONS} translations": len(pages) - len(rows)})
    met: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (_RANK[rows[row]], _shuffled(row[0]))):
        met.setdefault(folded(row[0]), row)
    left_out["near another row"] = len(rows) - len(met)
    apart = {row: rows[row] for row in met.values()}
    corpus = _corpus(("en", *LANGUAGES), apart, lambda row: row[:1], left_out)
    splits = {split: corpus.splits[split][: ROWS[split]] for split in SPLITS}
    left_out["more than wanted"] = len(met) - sum(map(len, splits.values()))
    return Corpus(corpus.columns, splits, dict(+left_out), digest(corpus.columns, splits)[:12])


def sentences(text: str) -> list[str]:
    """The text cut where a sentence ends and another begins, not after an abbreviation."""
    cut, start = [], 0
    for end in END.finditer(text):
        sentence = text[start : end.end()].strip()
        if not NO_END.search(sentence):
            cut.append(sentence)
            start = end.end()
    rest = text[start:].strip()
    return [*cut, rest] if rest else cut


def fault(text: str, english: str, words: int, spaces: bool = True) -> str:
    """Why a text and its English are no pair to learn from; empty where they are one."""
    own, others = text.split(), english.split()
    too_long = len(text) > CHARACTERS or len(english) > CHARACTERS
    if too_long or not 3 <= len(others) <= words or (spaces and not 2 <= len(own) <= words):
        return "too short or long"
    if text == english:
        return "not translated"
    low, high = (0.5, 2.2) if spaces else (0.12, 1.2)
    if not low <= len(text) / len(english) <= high:
        return "lengths differ"
    if any(SYMBOLS.search(each) or _letters(each) < 0.75 for each in (text, english)):
        return "symbols"
    shared = len(set(own) & set(others)) / min(len(set(own)), len(set(others)))
    return "not translated" if shared > 0.6 else ""


def folded(text: str) -> str:
    """What near repetitions have in common: all but case, digits' values and punctuation."""
    digits = re.sub(r"\d", "0", text.casefold())
    return "".join(character for character in digits if character.isalnum())


def _pairs(german: str, english: str) -> list[tuple[str, str]]:
    """Sentence by sentence where both have as many, of plausible lengths; else the whole text."""
    sides = sentences(german), sentences(english)
    if len(sides[0]) == len(sides[1]):
        pairs = list(zip(*sides, strict=True))
        if all(0.45 <= len(a) / len(b) <= 2.4 for a, b in pairs):
            return pairs
    return [(german, english)]


def _letters(text: str) -> float:
    """The share of letters, spaces, and marks on letters."""
    counted = sum(c.isalpha() or c == " " or unicodedata.category(c) in ("Mn", "Mc") for c in text)
    return counted / len(text)


def _one_to_one(pages: Mapping[Row, list[str]]) -> list[Row]:
    """Each source and each target once, in the pair that occurs most often."""
    kept: list[Row] = []
    met: tuple[set[str], set[str]] = set(), set()
    for pair in sorted(pages, key=lambda pair: (-len(pages[pair]), pair)):
        sides = [side.casefold() for side in pair]
        if not any(side in seen for side, seen in zip(sides, met, strict=True)):
            kept.append(pair)
            for side, seen in zip(sides, met, strict=True):
                seen.add(side)
    return kept


def _translations(
    translated: Mapping[Key, str], english: Mapping[Key, str], wanted: Iterable[str], language: str
) -> dict[str, str]:
    """The most frequent translation of each English text."""
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    spaces = language not in WITHOUT_SPACES
    for key in english.keys() & translated.keys():
        text, source = translated[key], english[key]
        if source in wanted and not fault(text, source, MANY_WORDS + MORE_WORDS, spaces):
            votes[source][text] += 1
    return {text: min(each, key=lambda t: (-each[t], t)) for text, each in votes.items()}


def _split(pages: Iterable[str]) -> str:
    """The split of all these pages; 'train' where they are of several. Whole pages are held out."""
    found = set()
    for page in pages:
        place = int(hashlib.sha256(page.encode()).hexdigest()[:8], 16) % 1000
        found.add("test" if place < 50 else "valid" if place < 100 else "train")
    return found.pop() if len(found) == 1 else "train"


_RANK = {"train": 0, "test": 1, "valid": 2}  # a near repetition stays in the first of these


def _apart(rows: Mapping[Row, str]) -> dict[Row, str]:
    """Without the rows of which a side nearly repeats one of a split of higher rank."""
    kept: dict[Row, str] = {}
    taken: set[str] = set()
    for split in _RANK:
        new = [row for row in rows if rows[row] == split and not taken & set(map(folded, row))]
        kept |= dict.fromkeys(new, split)
        taken |= {folded(side) for row in new for side in row}
    return kept


def _shuffled(*sides: str) -> str:
    """Sorts texts in an order that is fixed and says nothing of them."""
    return hashlib.sha256("\t".join(sides).encode()).hexdigest()


def _corpus(
    columns: Row, rows: Mapping[Row, str], key: Callable[[Row], Row], left_out: Counter[str]
) -> Corpus:
    ordered = sorted(rows, key=lambda row: _shuffled(*key(row)))
    splits = {split: [row for row in ordered if rows[row] == split] for split in SPLITS}
    return Corpus(columns, splits, dict(+left_out), digest(columns, splits)[:12])
