"""BLEU and chrF, and what a test gives without learning."""

import math
from collections import Counter

import pytest

from harness.data.translation import scores
from harness.data.translation.scores import HeldOut, nearest, score
from tests import parallel

PAIRS = parallel.pairs()


def test_a_perfect_translation_has_one_hundred_and_silence_nothing() -> None:
    references = [target for _, target in PAIRS[:20]]
    found = score(references, references, "en")
    assert found.bleu == pytest.approx(100)
    assert found.chrf == pytest.approx(100)
    silent = score([""] * 20, references, "en")
    assert (silent.bleu, silent.chrf) == (0, 0)


def test_bleu_is_the_product_that_papineni_defines() -> None:
    said, reference = "the red file opens the page", "the red file opens a new page"
    precisions = []
    for n in range(1, 5):
        a, b = (
            Counter(zip(*(text.split()[i:] for i in range(n)), strict=False))
            for text in (said, reference)
        )
        precisions.append(sum((a & b).values()) / sum(a.values()))
    brevity = math.exp(1 - 7 / 6)
    expected = 100 * brevity * math.prod(precisions) ** (1 / 4)
    assert score([said], [reference], "en").bleu == pytest.approx(expected)


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        *(("en", "13a"), ("tgt", "13a"), ("pt-BR", "13a"), ("pt_BR", "13a"), ("zha", "13a")),
        *(("zh-CN", "zh"), ("zh_CN", "zh"), ("ZH", "zh"), ("ja", "char"), ("ko_KR", "char")),
        *(("zho_Hans", "zh"), ("cmn", "zh"), ("jpn", "char"), ("tha", "char"), ("lo", "char")),
    ],
)
def test_the_signature_names_how_words_were_told_apart(language: str, tokenizer: str) -> None:
    signature = score(["a b"], ["a b"], language).signature
    assert f"|tok:{tokenizer}|" in signature
    assert "nrefs:1|case:mixed|eff:no" in signature
    assert "version:" in signature


def test_no_pairs_have_no_score() -> None:
    assert score([], [], "en")[:2] == (0, 0)


def literal_nearest(query: str, among: list[str]) -> int:
    """TF-IDF and cosine as in a textbook."""
    documents = [Counter(text.lower().split()) for text in among]
    frequency = Counter(word for document in documents for word in document)

    def vector(words: Counter[str]) -> dict[str, float]:
        rarity = {w: math.log((1 + len(among)) / (1 + frequency[w])) + 1 for w in words}
        return {w: n * rarity[w] for w, n in words.items() if w in frequency}

    asked = vector(Counter(query.lower().split()))

    def likeness(document: Counter[str]) -> float:
        there = vector(document)
        norm = math.sqrt(sum(x * x for x in there.values()))
        return sum(asked.get(w, 0.0) * x for w, x in there.items()) / norm

    values = [likeness(document) for document in documents]
    best = max(values)
    return next(i for i, value in enumerate(values) if value > best - 1e-12)


@pytest.mark.parametrize("block", [7, 1000])
def test_the_nearest_is_the_nearest_of_the_textbook(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "BLOCK", block)
    monkeypatch.setattr(scores, "BATCH", 9)
    # Different rarities, so that no two are equally near but for rounding.
    among = [f"{s} {'wort' * (i % 7)} {i % 13} {'x ' * (i % 3)}" for i, (s, _) in enumerate(PAIRS)]
    queries = among[200:230]
    assert nearest(queries, among[:200]) == [literal_nearest(q, among[:200]) for q in queries]


def test_a_known_sentence_is_its_own_nearest_and_an_unknown_one_finds_the_first() -> None:
    sources = [source for source, _ in PAIRS]
    assert nearest(sources[:50], sources) == list(range(50))
    assert nearest(["ganz und gar fremd"], sources) == [0]
    assert nearest([], sources) == []


def test_baselines_are_scored_like_translations() -> None:
    test = HeldOut.of("de", "en", "", PAIRS[200:240], PAIRS[:200])
    sources, references = zip(*test.pairs, strict=True)
    closest = [PAIRS[i][1] for i in nearest(sources, [s for s, _ in PAIRS[:200]])]
    assert test.copied == score(sources, references, "en").bleu
    assert test.nearest == score(closest, references, "en").bleu
    assert test.copied < test.nearest < 100


def test_a_direction_without_training_pairs_has_no_nearest() -> None:
    test = HeldOut.of("de", "en", "", PAIRS[200:240], [])
    assert test.nearest == 0
    assert test.copied == HeldOut.of("de", "en", "", PAIRS[200:240], PAIRS[:9]).copied > 0


def test_a_language_without_spaces_is_compared_by_characters() -> None:
    pairs = [(f"打开{a}{b}页", f"{a}{b}") for a in "甲乙丙丁戊" for b in "子丑寅卯辰"]
    test = HeldOut.of("zh-CN", "en", "", [("关闭丙卯页", "x")], pairs)
    assert nearest(["关闭丙卯页"], [s for s, _ in pairs], spaced=False) == [13]
    assert nearest(["关闭丙卯页"], [s for s, _ in pairs]) == [0]
    assert test.nearest == score([pairs[13][1]], ["x"], "en").bleu


@pytest.mark.parametrize(
    "language", ["th", "km", "my", "lo", "jpn", "zho_Hans", "cmn", "yue", "bo"]
)
def test_a_language_without_spaces_is_scored_and_compared_by_characters(language: str) -> None:
    """Of sixteen characters twelve are right, and no word, as spaces part them."""
    references = ["".join(map(chr, range(start, start + 16))) for start in (0x4E00, 0x5E00)]
    said = [f"{text[:12]}丿丿丿丿" for text in references]
    assert score(said, references, "de").bleu == 0
    assert score(said, references, language).bleu > 50
    pairs = [("丿丿丿丿", "a"), (references[1], "b"), (references[0], "c")]
    found = HeldOut.of(language, "en", "", [(said[0], "c c c c")], pairs)
    assert found.nearest == score(["c"], ["c c c c"], "en").bleu
