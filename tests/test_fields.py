"""Values as they are typed on a command line: where commas part them, and where that is a guess."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.errors import ConfigError
from harness.fields import Count, Positive, Rate, Strict, Typed, read_list, split_list, write_list

ONE_NUMBER = [  # may be one number, in any field
    *("1,000", "1,050", "10,000", "100,000", "1,000,000", "1,234,056", "3,064", "-1,000"),
    *("1,000.5", "5,1,000", "1,000,2,000", "5, 1,000", "64,1,000", "1,500", "8,192", "16,384"),
    *("12,500", "1,234,567", " 1,000 ", "scheme,1,000", "1,000,x"),
    *("1,00,000", "12,34,056", "1,05", "10,01"),
]
ONE_REAL = [  # may be one number, in a field of a real number
    *("1,0", "0,0", "0,5", "1,5", "12,25", "-0,5", "1,5e-3", "1,5E+3", "64,128", "0,001"),
    *("1.000,5", "1.234.567,89", "0,05,0,1", "0,5,0,7", "1,0,2,0", "00,05"),
]
SEVERAL = [  # are several values, in any field
    *("6, 12", "1, 0", "1,  000", "1 ,0.5", "0.5,1", "1e-3,2e-3", "1.0,0.0", "0,1,2", "6,12,18,24"),
    *("1,2,4,8", "1,000x", "a1,000", "0.1,0.01", "pre_norm,deepnorm", "1e3,1e4", "0, 001"),
    *("a,b.txt", "true,false", "6,12,24", "32, 64, 128", "5,64,128"),
]
SEVERAL_WHOLE = [  # ... in a field of a whole number
    *(
        "1,0",
        "0,1",
        "2,4",
        "64,128",
        "128,256,512",
        "100,101",
        "0,100",
        "0,5,0,7",
        "01,02",
        "24,100",
    ),
    *("001,120,003", "01,12,02", "001,002,003", "0,001", "6,12", "16,128", "1000,2000", "1000,500"),
]


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("text", ONE_NUMBER)
def test_what_may_be_a_grouped_number_is_refused_in_every_field(text: str, real: bool) -> None:
    with pytest.raises(ConfigError, match="one number or several values") as caught:
        read_list(text, real=real)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ONE_REAL)
def test_what_may_be_a_decimal_comma_is_refused_where_a_field_is_real(text: str) -> None:
    with pytest.raises(ConfigError, match="one number or several values"):
        read_list(text, real=True)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("text", SEVERAL)
def test_what_is_no_one_number_is_several_values(text: str, real: bool) -> None:
    assert read_list(text, real=real) == [word.strip() for word in text.split(",")]


@pytest.mark.parametrize("text", SEVERAL_WHOLE)
def test_whole_numbers_are_several_values_where_no_field_is_real(text: str) -> None:
    assert read_list(text) == text.split(",")


@pytest.mark.parametrize("text", [*ONE_NUMBER, *ONE_REAL, *SEVERAL, *SEVERAL_WHOLE])
def test_the_remedy_that_is_named_is_read(text: str) -> None:
    """With a space behind each comma, they are several values in every field."""
    apart = ", ".join(word.strip() for word in text.split(","))
    assert read_list(apart, real=True) == apart.split(", ")


@pytest.mark.parametrize(
    ("text", "real", "remedy"),
    [
        ("1,000", False, "write one as 1000, several as '1, 000'"),
        ("1,000", True, "write one as 1000 or 1.000, several as '1, 000'"),
        ("-1,5e-3", True, "write one as -1.5e-3, several as '-1, 5e-3'"),
        ("1.000,5", True, "write one as 1000.5, several as '1.000, 5'"),
        ("1,000,000", True, "write one as 1000000, several as '1, 000, 000'"),
        ("1,000,2,000", False, "write one without a comma, several as '1, 000, 2, 000'"),
    ],
)
def test_a_refusal_names_both_readings(text: str, real: bool, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_list(text, real=real)
    assert str(caught.value) == f"'{text}': one number or several values? {remedy}"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('"a,b.txt"', ["a,b.txt"]),
        (' "a,b.txt" , "c" ,d', ["a,b.txt", "c", "d"]),
        ('"1,000","x"', ["1,000", "x"]),
        (r'"a\"b,c\\d\u00e4"', ['a"b,c\\dä']),
        ('"a[,b"', ["a[,b"]),
        ('a"b,c"', ['a"b', 'c"']),  # within a word a quote is a character
        ("it's,x", ["it's", "x"]),
        ("[0.9,0.98],[0.9,0.999]", ["[0.9,0.98]", "[0.9,0.999]"]),
        ('{"a":[1,2]},{"b":"],"}', ['{"a":[1,2]}', '{"b":"],"}']),
        ('["en>de","de>en"]', ['["en>de","de>en"]']),
        ("*.[ch],x", ["*.[ch]", "x"]),
        ("a]", ["a]"]),  # as before: without a comma there is nothing to part
    ],
)
def test_quotes_and_brackets_hold_commas(text: str, values: list[str]) -> None:
    found = read_list(text, real=True)
    assert found == values
    assert all(type(value) is Typed for value in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an empty value; write v or v,v"),
        ("1,,2", "an empty value; write v or v,v"),
        ("1,2,", "an empty value; write v or v,v"),
        ('"a,b', 'a quote without its end; write "a,b"'),
        ('{"a:1},b', 'a quote without its end; write "a,b"'),
        ("a[,b", 'a bracket without its partner; write such text as "a[,b"'),
        ("a],[b", 'a bracket without its partner; write such text as "a[,b"'),
        ('"a"b', r"not a JSON string; write \\ for \ and nothing behind the quotes"),
        (r'"C:\x"', r"not a JSON string; write \\ for \ and nothing behind the quotes"),
    ],
)
def test_what_cannot_be_parted_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_list(text)
    assert str(caught.value) == f"'{text}': {said}"


class Fields(Strict):
    """One of each kind."""

    steps: Count = 0
    depth: Positive = 1
    rate: Rate = 1.0


@pytest.mark.parametrize("text", ["1.000", "10.000", "1.000.000", "-1.000"])
@pytest.mark.parametrize("field", ["steps", "depth"])
def test_a_point_that_may_part_groups_is_refused_in_a_whole_number(field: str, text: str) -> None:
    with pytest.raises(ValidationError, match="integer"):
        Fields.model_validate({field: Typed(text)})


def test_other_points_are_those_of_numbers() -> None:
    for text in ("64", "64.0", "064", "64.00", "6.4e1"):
        assert Fields.model_validate({"depth": Typed(text)}).depth == 64
    assert Fields.model_validate({"rate": Typed("1.000")}).rate == 1
    assert Fields.model_validate({"steps": 1.000}).steps == 1  # a number of a file is a number


@given(st.lists(st.text(min_size=1), min_size=1))
def test_quoted_texts_come_back_whatever_they_hold(texts: list[str]) -> None:
    assert read_list(",".join(map(json.dumps, texts)), real=True) == texts


@given(st.text(alphabet='a1",[]{}\\ '))
def test_words_are_the_text_or_it_is_refused(text: str) -> None:
    try:
        words = split_list(text)
    except ConfigError:
        return
    assert ",".join(words) == text


@given(st.lists(st.text(min_size=1).filter(str.strip).map(str.strip), min_size=1), st.booleans())
def test_a_list_that_is_written_is_read_as_it_was(values: list[str], real: bool) -> None:
    assert read_list(write_list(values), real=real) == values


def test_a_list_is_written_without_quotes_where_it_can_be() -> None:
    values = ["pre_norm", "0.1", "a,b", '{"beta":false,"alpha":true}', "en>*"]
    assert write_list(values) == 'pre_norm, 0.1, "a,b", {"beta":false,"alpha":true}, en>*'
