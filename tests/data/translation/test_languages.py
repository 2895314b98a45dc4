"""Languages by the names of columns, and how their translations are scored."""

import pytest

from harness.data.translation.languages import guessed, script, spaced, tokenizer, tokenizers

CHINESE = ["zh", "zho", "chi", "cmn", "zh-CN", "zh_TW", "zho_Hans", "zho_Hant", "yue", "wuu", "lzh"]
CHARACTERS = [
    *("ja", "jpn", "ja_XX", "jpn_Jpan", "th", "tha", "tha_Thai", "km", "khm", "km_KH", "my", "mya"),
    *("bur", "my_MM", "lo", "lao", "lao_Laoo", "shn", "bo", "bod_Tibt", "dz", "dzo"),
]
KOREAN = ["ko", "kor", "ko_KR", "kor_Hang"]
WORDS = [
    *(
        "de",
        "deu",
        "ger",
        "de-AT",
        "en",
        "eng_Latn",
        "pt-BR",
        "pt_BR",
        "ru",
        "arb_Arab",
        "hi",
        "vi",
    ),
    *("zha", "za", "jav", "zh-Latn", "lao-Latn", "tl", "fil"),
]
UNKNOWN = [
    "src",
    "tgt",
    "TGT",
    "english",
    "bk",
    "xx",
    "und",
    "mul",
    "x-thai",
    "1",
    "a",
    "my_text",
    "",
]


@pytest.mark.parametrize(
    ("names", "tokenized", "parted"),
    [
        (CHINESE, "zh", False),
        (CHARACTERS, "char", False),
        (KOREAN, "char", True),
        (WORDS, "13a", True),
        (UNKNOWN, "13a", True),
    ],
)
def test_a_language_is_known_by_any_of_its_codes(
    names: list[str], tokenized: str, parted: bool
) -> None:
    for name in names:
        assert (name, tokenizer(name), spaced(name)) == (name, tokenized, parted)
        assert bool(script(name)) == (name not in UNKNOWN)


def test_a_name_that_is_no_code_is_said_to_be_guessed() -> None:
    assert guessed([*CHINESE, *CHARACTERS, *KOREAN, *WORDS]) == []
    assert guessed(["thai", "de", "thai"]) == [
        "BLEU into 'thai' is by sacrebleu's tokenizer 13a, made for European languages; name its "
        "column by a language code, as de, zho, th or pt-BR"
    ]
    assert (
        tokenizers(["th", "tgt", "zho_Hans"]) == "th char, tgt 13a (no language code), zho_Hans zh"
    )
