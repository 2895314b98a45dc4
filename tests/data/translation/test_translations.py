"""The file of a run's translations is read as it was written, or not at all."""

import pytest

from harness.data.translation.scores import score
from harness.data.translation.translations import Translated, dumps, loads

PAIRS = [
    Translated("de>en", "Er zeigt zwei Seiten.", "He shows two pages.", "He shows two pages."),
    Translated("de>en", "# 1\x0bzwei", '"one", two', "one\u2028two"),
    Translated("en>zh", "one", "一", ""),
]


def test_what_was_written_is_read() -> None:
    assert loads(dumps(PAIRS)) == PAIRS
    assert loads(dumps([])) == []
    assert dumps(PAIRS).splitlines()[0] == "direction\tsource\treference\thypothesis"


def test_tabs_and_ends_of_lines_become_spaces_and_change_no_score() -> None:
    texts = ["two\told pages\r\n", " He shows\n\n\ttwo pages.", "he looks for a file"]
    references = ["two old pages", "He shows two pages.", "He looks for the file"]
    pairs = [Translated("de>en", "x", *both) for both in zip(references, texts, strict=True)]
    read = [each.hypothesis for each in loads(dumps(pairs))]
    assert read == ["two old pages", "He shows two pages.", "he looks for a file"]
    assert score(read, references, "en") == score(texts, references, "en")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no translations\n",
        dumps(PAIRS)[:-1],
        dumps(PAIRS).replace("direction", "run"),
        dumps(PAIRS).replace("\tone\t", "\tone "),
        dumps(PAIRS) + "\n",
    ],
)
def test_a_file_that_is_not_whole_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole file|expected 4 cells"):
        loads(text)
