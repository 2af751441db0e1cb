"""Files are read as they are written, or refused in one line."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallelsim.errors import OutputError, ParallelSimError, SpecError
from parallelsim.yaml_io import (
    MAX_FILE_BYTES,
    dump_yaml,
    parse_json,
    parse_yaml,
    read_json,
    read_yaml,
    require_sources,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
documents = st.dictionaries(st.text(max_size=8), plain, max_size=5)


def attempt(call, *arguments):
    """What the call gives, or None after an error of one printable line; any other error fails."""
    try:
        return call(*arguments)
    except ParallelSimError as error:
        line = str(error)
    assert line.isprintable()
    return None


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, "f.yaml")
    message = str(caught.value)
    assert message.startswith("f.yaml: ")
    assert message.isprintable()
    return message


def test_numbers_and_text_follow_yaml_1_2():
    text = "{a: 1e6, b: 1_000, c: yes, d: 010, e: .5, f: -3, g: true, h: ~, i: '7', j: 1:30, k: 3.}"
    assert parse_yaml(text, "f") == {
        "a": 1e6, "b": 1000, "c": "yes", "d": "010", "e": 0.5, "f": -3, "g": True, "h": None,
        "i": "7", "j": "1:30", "k": 3.0,
    }  # fmt: skip


def test_keys_are_text():
    assert parse_yaml("{8: a, true: b}", "f") == {"8": "a", "true": "b"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\na: 2", "duplicate key 'a' (line 2)"),
        ("a: {b: 1, b: 2}", "duplicate key 'b'"),
        ("a: &x [1]\nb: *x", "anchors and aliases"),
        ("a: *x", "anchors and aliases"),
        ("a: !!python/object/apply:os.system [ls]", "tag"),
        ("%TAG ! tag:x,2000:\n---\na: 1", "directives"),
        ("a: 1\n---\nb: 2", "second document"),
        ("[1, 2]: 3", "a key must be text"),
        ("a: .nan", "not a finite number"),
        ("a: -.inf", "not a finite number"),
        ("a: 1e400", "not a finite number"),
        ("a: 9007199254740993", "beyond 2**53"),
        ("a: " + "9" * 100_000, "not a finite number"),
        ("a: " + "[" * 60, "nested deeper than 50"),
        ("a: " + "[" * 1_000_000, "nest"),
        ("{" * 60, "a key must be text"),
        ("a: [" + "1," * 200_001 + "]", "more than 200000 values"),
        ("- a", "expected a mapping of keys to values, got a list of 1"),
        ("", "expected a mapping of keys to values, got nothing"),
        ("just text", "got 'just text'"),
        ("a: [1", "not valid YAML"),
        ("a: \x07", "not valid YAML"),
        ("\t- :", "not valid YAML"),
    ],
)
def test_what_could_be_misread_is_refused(text, reason):
    assert reason in refused(text)


def test_an_alias_bomb_is_refused_without_expansion():
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    assert "anchors" in refused("\n".join(lines))


def test_errors_name_the_key_by_its_path():
    assert "a.b[1].c: not a finite" in refused("a: {b: [0, {c: .inf}]}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "a: duplicate key"),
        ('{"a": NaN}', "not a finite number"),
        ('{"a": 1e999}', "not a finite number"),
        ('{"a": ' + "9" * 5000 + "}", "not a finite number"),
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested deeper"),
        ("[1]", "expected a mapping"),
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_json_has_the_same_bounds(text, reason):
    with pytest.raises(SpecError) as caught:
        parse_json(text, "f.json")
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


def test_unreadable_paths_are_output_errors(tmp_path):
    for path in (tmp_path / "missing.yaml", tmp_path, "a\0b.yaml", "x" * 5000):
        with pytest.raises(OutputError):
            read_yaml(path)
        with pytest.raises(OutputError):
            read_json(path)


def test_file_names_cannot_break_the_line(tmp_path):
    path = tmp_path / "a\nb.yaml"
    path.write_text("[]")
    with pytest.raises(SpecError) as caught:
        read_yaml(path)
    assert str(caught.value).isprintable()


def test_big_and_binary_files_are_refused(tmp_path):
    big = tmp_path / "big.yaml"
    big.write_bytes(b"a: " + b"x" * MAX_FILE_BYTES)
    with pytest.raises(SpecError, match="larger than 4 MiB"):
        read_yaml(big)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8"):
        read_yaml(binary)


@settings(max_examples=200, deadline=None)
@given(documents)
def test_what_is_written_is_read_back_equal(data):
    text = dump_yaml(data)
    assert parse_yaml(text, "f") == data
    assert parse_json(json.dumps(data), "f") == data


def test_text_that_looks_like_a_number_stays_text():
    data = {"a": "1e6", "b": "1_000", "c": "true", "d": "", "e": "~", "f": ".inf", "g": "yes"}
    assert parse_yaml(dump_yaml(data), "f") == data


def test_repeated_objects_are_written_out():
    shared = {"x": [1]}
    assert parse_yaml(dump_yaml({"a": shared, "b": shared}), "f") == {"a": shared, "b": shared}


@settings(max_examples=500)
@given(st.text(max_size=40) | st.text("{}[]:,-&*!|>'\"%@`#?~0 1.e\n\ta", max_size=30))
def test_random_text_is_read_or_refused(text):
    for parse in (parse_yaml, parse_json):
        assert isinstance(attempt(parse, text, "f"), dict | None)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    path.write_bytes(content)
    for read in (read_yaml, read_json):
        assert isinstance(attempt(read, path), dict | None)


@pytest.mark.parametrize(
    "data",
    [
        {"a": 1, "source": "paper"},
        {"source": "paper", "a": {"b": [{"c": 1}]}},
        {"a": {"source": "paper", "b": 1}, "name": "x", "flag": True},
        {"a": [{"source": "x", "b": 1}]},
    ],
)
def test_numbers_with_a_source_above_are_accepted(data):
    require_sources(data, "f")


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"a": 1}, "a"),
        ({"a": 1, "source": " "}, "a"),
        ({"a": {"b": [[1.5]]}}, "a.b[0][0]"),
        ({"a": {"source": "x", "b": 1}, "c": {"d": 2}}, "c.d"),
        ({"a": 1, "source": 3}, "a"),
    ],
)
def test_numbers_without_source_are_refused(data, key):
    with pytest.raises(SpecError, match="source: own measurement") as caught:
        require_sources(data, "f")
    assert caught.value.key == key


def test_finite_extremes_survive():
    assert parse_yaml("a: 1.7976931348623157e308", "f")["a"] < math.inf
