"""The model catalogue: every file counts the parameters that its source states."""

import copy
import math
import sys
import time
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallelsim.catalog import OVERRIDES, load_model, model_names
from parallelsim.errors import OutputError, ParallelSimError, SpecError, UnknownNameError
from parallelsim.model import LIMITS
from parallelsim.schemas_build import build_model
from parallelsim.schemas_model import checked_model
from parallelsim.yaml_io import dump_yaml, parse_yaml

EXACT = {
    "bert-large": 335_174_458,
    "bloom-176b": 176_247_271_424,
    "falcon-180b": 179_522_565_120,
    "gemma2-27b": 27_227_128_320,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-32b": 32_762_123_264,
}
"""Parameters of the released checkpoints."""
ROUNDED = {
    "gpt3-6.7b": 6.7e9,
    "gpt3-175b": 175e9,
    "megatron-22b": 22e9,
    "megatron-530b": 530e9,
    "megatron-1t": 1e12,
    "nemotron4-15b": 15.7e9,
    "nemotron4-340b": 341e9,
}
"""Figures of papers without a released checkpoint: within 1 %."""
LLAMA = parse_yaml(files("parallelsim.models").joinpath("llama3-70b.yaml").read_text(), "f")


def attempt(call, *arguments):
    """What the call gives, or None after an error of one printable line; any other error fails."""
    try:
        return call(*arguments)
    except ParallelSimError as error:
        line = str(error)
    assert line.isprintable()
    return None


def loaded(data, file="f"):
    return build_model(checked_model(data, file), file)


def document(name):
    return parse_yaml(files("parallelsim.models").joinpath(f"{name}.yaml").read_text(), name)


def test_the_tables_above_cover_the_catalogue():
    assert sorted([*EXACT, *ROUNDED]) == sorted(model_names())


@pytest.mark.parametrize("name", EXACT)
def test_parameters_equal_the_checkpoint(name):
    published = document(name)["published_parameters"]
    assert load_model(name).num_parameters == EXACT[name] == published["value"]
    assert published["exact"] is True


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_agree_with_the_paper(name):
    published = document(name)["published_parameters"]
    assert published["value"] == ROUNDED[name]
    assert published["exact"] is False
    assert load_model(name).num_parameters == pytest.approx(ROUNDED[name], rel=0.01)


@pytest.mark.parametrize("name", model_names())
def test_a_file_is_named_after_its_model(name):
    model = load_model(name)
    assert model.name == name
    assert document(name)["title"]
    assert 0 < model.seq_length <= model.max_seq_length
    assert model.default_global_batch_tokens % 1 == 0


@pytest.mark.parametrize(
    ("name", "seq_length", "tokens"),
    [
        ("llama3-70b", 8192, 4 * 2**20),
        ("llama3.1-405b", 8192, 16 * 2**20),
        ("gpt3-175b", 2048, 3_200_000),
        ("megatron-1t", 2048, 512 * 2048),
        ("mistral-7b-v0.1", 8192, 0),
    ],
)
def test_training_defaults_are_those_of_the_source(name, seq_length, tokens):
    model = load_model(name)
    assert (model.seq_length, model.default_global_batch_tokens) == (seq_length, tokens)


def test_nothing_in_the_file_but_the_architecture_decides_the_count():
    data = document("llama3-8b")
    del data["published_parameters"]
    assert loaded(data).num_parameters == EXACT["llama3-8b"]
    data["architecture"]["blocks"][0]["repeat"] = 31
    assert loaded(data).num_parameters < EXACT["llama3-8b"]


def test_a_file_that_contradicts_its_published_count_is_refused():
    data = document("llama3-8b")
    data["architecture"]["blocks"][0]["repeat"] = 31
    with pytest.raises(SpecError, match="the architecture counts 7812149248"):
        loaded(data)


def test_gemma_alternates_local_and_global_layers():
    windows = [layer.attention.window for layer in load_model("gemma2-27b").layers]
    assert windows == [4096, None] * 23


def test_unknown_names_come_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"did you mean llama3-70b"):
        load_model("lama3-70b")
    with pytest.raises(UnknownNameError):
        load_model("x" * 100_000)
    with pytest.raises(UnknownNameError):
        load_model("")


def test_a_path_is_read_as_a_file(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text(dump_yaml({**LLAMA, "name": "mine"}))
    assert load_model(path).name == load_model(str(path)).name == "mine"
    monkeypatch.chdir(tmp_path)
    assert load_model("mine.yaml").name == "mine"
    (tmp_path / "llama3-8b").mkdir()
    assert load_model("llama3-8b").name == "llama3-8b"
    for missing in ("./nothing", "nothing.yaml", "a\0b/c", tmp_path):
        with pytest.raises(OutputError):
            load_model(missing)


def set_key(data, path, value):
    data = copy.deepcopy(data)
    inner = data
    for part in path[:-1]:
        inner = inner[part]
    if value is DELETE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return data


DELETE = object()
ATTENTION = ("architecture", "blocks", 0, "layers", 0, "attention")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("architecture", "hidden_size"), DELETE, "architecture.hidden_size: this key is missing"),
        (("architecture", "hidden_sizes"), 3, "architecture.hidden_sizes: unknown key"),
        (
            ("architecture", "hidden_size"),
            "8192",
            "architecture.hidden_size: expected a whole number, got '8192'",
        ),
        (("architecture", "hidden_size"), 8192.5, "expected a whole number, got 8192.5"),
        (("architecture", "hidden_size"), True, "expected a whole number, got true"),
        (("architecture", "hidden_size"), 0, "hidden_size: expected 1 to 1000000, got 0"),
        (("architecture", "norm"), "batchnorm", "expected 'rmsnorm' or 'layernorm', got 'batch"),
        (("architecture", "blocks"), [], "architecture.blocks: "),
        (("architecture", "blocks", 0, "repeat"), 10**9, "num_layers: expected 1 to 10000"),
        (("architecture", "blocks", 0, "repeat"), -1, "num_layers: expected 1 to 10000"),
        ((*ATTENTION, "num_query_groups"), 7, "64 heads cannot share 7 key/value groups"),
        ((*ATTENTION, "window"), 0, "window: expected 1 to"),
        (("architecture", "source"), DELETE, "architecture.hidden_size: a number without a source"),
        (("training", "seq_length"), 16384, "expected at most max_seq_length=8192, got 16384"),
        (("training", "source"), "", "without a source"),
        (("training",), None, "training: expected a mapping, got nothing"),
        (("name",), 3, "name: expected text, got 3"),
    ],
)
def test_a_wrong_file_is_refused_by_key(path, value, message):
    with pytest.raises(SpecError) as caught:
        loaded(set_key(LLAMA, path, value), "f.yaml")
    assert str(caught.value).startswith("f.yaml: ")
    assert message in str(caught.value)


def test_huge_models_are_refused():
    data = set_key(LLAMA, ("architecture", "hidden_size"), 10**6)
    data["architecture"]["blocks"][0]["repeat"] = 10_000
    data["architecture"]["blocks"][0]["layers"][0]["mlp"]["ffn_hidden_size"] = 10**7
    with pytest.raises(SpecError, match="parameters; at most 1e"):
        loaded(data)


def paths(data, prefix=()):
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*prefix, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*prefix, key))


junk = (
    st.none()
    | st.booleans()
    | st.sampled_from([DELETE, 0, -1, 1, 10**9, 2**53, 10**30, 1e300, math.inf, math.nan, 0.5])
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


@settings(max_examples=800, deadline=None)
@given(st.data())
def test_mutated_documents_load_or_are_refused(data):
    mutated = LLAMA
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(paths(mutated))))
        mutated = set_key(mutated, path, data.draw(junk))
    model = attempt(loaded, mutated)
    assert model is None or model.num_parameters > 0


TEXT = dump_yaml(LLAMA)


@settings(max_examples=700, deadline=None)
@given(
    st.integers(0, len(TEXT)),
    st.integers(0, 30),
    st.text("{}[]:,-&*!|>'\"%#?~01.e\n\tax\x00\ud800é", max_size=6),
)
def test_mutated_text_loads_or_is_refused(at, length, inserted):
    text = TEXT[:at] + inserted + TEXT[at + length :]
    model = attempt(lambda: loaded(parse_yaml(text, "f")))
    assert model is None or model.num_parameters > 0


def test_overrides_change_every_layer_at_once():
    model = load_model("gemma2-27b", {"num_layers": "12", "num_attention_heads": 8,
                                      "num_query_groups": "4", "head_dim": 64,
                                      "ffn_hidden_size": 1000, "hidden_size": "512",
                                      "vocab_size": 1000, "tied_embeddings": "false"})  # fmt: skip
    assert model.num_layers == 12
    for layer in model.layers:
        attention = layer.attention
        assert (attention.num_heads, attention.num_query_groups, attention.head_dim) == (8, 4, 64)
        assert layer.mlp.ffn_hidden_size == 1000
    assert (model.hidden_size, model.vocab_size, model.tied_embeddings) == (512, 1000, False)


def test_a_longer_context_is_an_override():
    assert load_model("llama3-70b", {"max_seq_length": 32768}).with_seq_length(32768)
    assert load_model("llama3-70b", {"max_seq_length": 1024}).seq_length == 1024


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("layers", 3, "known keys are num_layers, hidden_size"),
        ("num_layers", "x", "--set num_layers: expected a whole number, got 'x'"),
        ("num_layers", "9" * 10_000, "expected a whole number"),
        ("num_layers", 10**9, "--set num_layers: expected 1 to 10000"),
        ("num_layers", 0, "--set num_layers"),
        ("num_layers", True, "expected a whole number, got true"),
        ("num_layers", 1.5, "expected a whole number, got 1.5"),
        ("num_query_groups", 7, "cannot share 7"),
        ("tied_embeddings", "maybe", "expected true or false"),
        ("hidden_size", 10**7, "--set hidden_size: expected 1 to 1000000"),
    ],
)
def test_wrong_overrides_are_refused(key, value, message):
    with pytest.raises(SpecError) as caught:
        load_model("llama3-70b", {key: value})
    assert message in str(caught.value)


def test_num_layers_of_a_repeated_pair_is_even():
    with pytest.raises(SpecError, match="repeats 2 layers; expected a multiple, got 3"):
        load_model("gemma2-27b", {"num_layers": 3})


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(OVERRIDES) | st.text(max_size=5),
        st.integers() | st.text(max_size=5) | st.booleans() | st.sampled_from([1, 8, 64, "128"]),
        max_size=4,
    )
)
def test_random_overrides_load_or_are_refused(overrides):
    model = attempt(load_model, "llama3-70b", overrides)
    assert model is None or model.num_parameters > 0


def test_limits_hold_every_catalogue_model_with_room():
    assert (
        max(load_model(name).hidden_size for name in model_names()) * 10 < LIMITS["hidden_size"][1]
    )


def test_loading_is_fast():
    load_model("llama3-70b")
    start = time.perf_counter()
    for name in model_names():
        load_model(name)
    assert (time.perf_counter() - start) / len(model_names()) < 0.02


def test_importing_the_catalogue_reads_no_heavy_library():
    import subprocess

    code = (
        "import sys, parallelsim.catalog; print('yaml' in sys.modules, 'pydantic' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "False"]
