"""The model catalogue: every file counts the parameters that its source states."""

import copy
import math
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import paths

from parallelsim.catalog import OVERRIDES, load_model, model_names
from parallelsim.errors import OutputError, ParallelSimError, SpecError, UnknownNameError
from parallelsim.layer_checks import LIMITS
from parallelsim.report.specs import MODEL_VIEW
from parallelsim.schemas_build import build_model
from parallelsim.schemas_model import checked_model
from parallelsim.yaml_io import dump_yaml, parse_yaml

EXACT = {
    "bert-large": 335_174_458,
    "bloom-176b": 176_247_271_424,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "dit-xl-2": 675_129_632,
    "falcon-180b": 179_522_565_120,
    "gemma2-27b": 27_227_128_320,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gpt2-xl": 1_557_611_200,
    "kimi-k2": 1_026_408_232_448,
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
    "llama4-maverick": 400_711_848_960,
    "llama4-scout": 107_769_861_120,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "resnet-50": 25_557_032,
    "t5-11b": 11_307_321_344,
    "vit-h-14": 632_045_800,
    "vit-l-16": 304_326_632,
}
"""Parameters of the released checkpoints."""
ROUNDED = {
    "gpt3-6.7b": 6.7e9,
    "grok-1": 314e9,
    "gpt3-175b": 175e9,
    "megatron-22b": 22e9,
    "megatron-530b": 530e9,
    "megatron-1t": 1e12,
    "nemotron4-15b": 15.7e9,
    "nemotron4-340b": 341e9,
    "switch-c-2048": 1571e9,
}
"""Figures of papers without a released checkpoint: within 1 %."""
ROUNDED_TO_BILLIONS = {"nemotron-h-8b": 8e9, "nemotron-h-56b": 56e9}
"""Names of checkpoints whose exact count no source states; the same layers count exactly for
Nemotron Nano 9B v2 in the tests of Hugging Face configurations.
"""
ACTIVE = {
    "mixtral-8x7b": (12.9, 0.05, True),
    "mixtral-8x22b": (39, 0.5, True),
    "deepseek-v2": (21, 0.5, True),
    "deepseek-v2-lite": (2.4, 0.1, False),
    "deepseek-v3": (36.6, 0.05, False),
    "kimi-k2": (32, 0.5, False),
    "qwen3-30b-a3b": (3.3, 0.1, True),
    "qwen3-235b-a22b": (22, 0.5, True),
    "gpt-oss-20b": (3.61, 0.005, False),
    "gpt-oss-120b": (5.13, 0.005, False),
    "llama4-scout": (17, 0.5, True),
    "llama4-maverick": (17, 0.5, True),
}
"""Published active parameters in billions, their rounding, and whether they count the embedding.

Sources: the models' cards; arXiv:2401.04088 (12.9B, its 13B rounded), DeepSeek-V3's
README_WEIGHTS.md (36.6B, of which 0.9B is the head) and arXiv:2508.10925 table 1 (unembedding
counted, embedding not). DeepSeek-V2-Lite and Qwen3-30B-A3B (3.35 B) state digits that are cut
rather than rounded, hence 0.1.
"""
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
    assert sorted([*EXACT, *ROUNDED, *ROUNDED_TO_BILLIONS]) == sorted(model_names())
    sparse = [n for n in EXACT if load_model(n).num_active_parameters < EXACT[n]]
    assert sorted(ACTIVE) == sorted(sparse)


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


@pytest.mark.parametrize("name", ROUNDED_TO_BILLIONS)
def test_parameters_round_to_the_name(name):
    published = document(name)["published_parameters"]
    assert published["value"] == ROUNDED_TO_BILLIONS[name]
    assert published["exact"] is False
    assert abs(load_model(name).num_parameters - ROUNDED_TO_BILLIONS[name]) < 0.5e9


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_round_to_the_published_figure(name):
    published, rounding, with_embedding = ACTIVE[name]
    model = load_model(name)
    embedding = 0 if with_embedding else model.vocab_size * model.hidden_size
    assert abs((model.num_active_parameters - embedding) / 1e9 - published) <= rounding


def test_deepseek_v3_counts_its_whole_checkpoint():
    model = load_model("deepseek-v3")
    whole = 680_571_043_840 + 3_918_786_560 + 59 * 256  # fp8 and bf16 tensors, fp32 router biases
    copies = 2 * model.vocab_size * model.hidden_size  # the module's embedding and head
    assert model.num_parameters + model.mtp_parameters() + copies == whole


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
        ("deepseek-v3", 4096, 15_360 * 4096),
        ("kimi-k2", 4096, 64 * 2**20),
        ("nemotron-h-56b", 8192, 768 * 8192),
        ("t5-11b", 128, 2048 * 128),
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
LAYER = ("architecture", "blocks", 0, "layers", 0)
ATTENTION = (*LAYER, "attention")
EXPERTS = {
    "num_experts": 4,
    "top_k": 2,
    "ffn_hidden_size": 64,
    "gated": True,
    "activation": "silu",
}
LATENT = {
    "num_attention_heads": 4,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
SCAN = {"inner_width": 64, "state_size": 16, "dt_rank": 4}
MIXER = {"num_heads": 8, "head_dim": 8, "state_size": 16, "num_groups": 2}


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
        ((*ATTENTION, "window"), 8193, "window: 8193 tokens are more than the longest sequence, 8"),
        (("architecture", "source"), DELETE, "architecture.hidden_size: a number without a source"),
        (("training", "seq_length"), 16384, "expected at most max_seq_length=8192, got 16384"),
        (("training", "source"), "", "without a source"),
        (("training",), None, "training: expected a mapping, got nothing"),
        (("name",), 3, "name: expected text, got 3"),
        ((*ATTENTION, "chunked"), True, "window: chunked attention needs a window"),
        ((*ATTENTION, "kv_seq_length"), 8, "attention.kv_seq_length: unknown key"),
        ((*LAYER, "attention"), DELETE, None),
        ((*LAYER, "num_norms"), 9, "num_norms: expected 0 to 8, got 9"),
        ((*LAYER, "seq_length"), 0, "seq_length: expected 1 to"),
        ((*LAYER, "experts"), EXPERTS, "experts: a layer has an mlp or experts, not both"),
        ((*LAYER, "latent_attention"), LATENT, "latent_attention: a layer has attention or"),
        ((*LAYER, "cross_attention"), {}, "num_attention_heads: this key is missing"),
        (LAYER, {"num_norms": 1}, "layers: a layer needs at least one sub-layer"),
        (LAYER, {"experts": {**EXPERTS, "top_k": 5}}, "top_k: expected 1 to num_experts=4, got 5"),
        (LAYER, {"experts": {**EXPERTS, "top_k": 0}}, "top_k: expected 1 to num_experts=4, got 0"),
        (LAYER, {"experts": {**EXPERTS, "num_groups": 3}}, "3 groups do not divide 4 experts"),
        (
            LAYER,
            {"experts": {**EXPERTS, "num_groups": 2, "group_top_k": 3}},
            "group_top_k: expected 1 to num_groups=2, got 3",
        ),
        (
            LAYER,
            {"experts": {**EXPERTS, "num_groups": 4, "group_top_k": 1}},
            "top_k: 1 of 4 groups hold 1 experts, too few for 2",
        ),
        (
            LAYER,
            {"experts": {**EXPERTS, "capacity_factor": 0}},
            "capacity_factor: expected above 0",
        ),
        (LAYER, {"experts": {**EXPERTS, "load_cv": -1}}, "load_cv: expected 0 to 100, got -1"),
        (LAYER, {"experts": {**EXPERTS, "shared_gate": True}}, "there is no shared expert to gate"),
        (LAYER, {"experts": {**EXPERTS, "router": "linear"}}, "expected 'softmax' or 'sigmoid'"),
        (LAYER, {"experts": {**EXPERTS, "latent_size": 0}}, "latent_size: expected 1 to"),
        (
            LAYER,
            {"latent_attention": {**LATENT, "kv_lora_rank": -1}},
            "kv_lora_rank: expected 1 to",
        ),
        (LAYER, {"state_space": {**MIXER, "state_size": 0}}, "state_size: expected 1 to"),
        (LAYER, {"state_space": {**MIXER, "num_groups": 3}}, "8 heads cannot share 3 groups"),
        (LAYER, {"state_space": MIXER, "selective_scan": SCAN}, "state_space or selective_scan"),
        (LAYER, {"selective_scan": {**SCAN, "dt_rank": 0}}, "dt_rank: expected 1 to"),
        (("architecture", "mtp_layers"), [{"experts": EXPERTS}], "mtp_layers: needs num_mtp"),
        (("architecture", "num_mtp_layers"), -1, "num_mtp_layers: expected 0 to 100, got -1"),
        (
            ("architecture", "relative_position_buckets"),
            -1,
            "relative_position_buckets: expected 0 to 100000, got -1",
        ),
        (("training", "lora"), {"rank": 0}, "rank: expected 1 to 100000, got 0"),
        (
            ("training", "lora"),
            {"rank": 8, "targets": ["q_proj"]},
            "expected some of linear_qkv, linear_proj, linear_fc1, linear_fc2, got 'q_proj'",
        ),
        (("training", "lora"), {"rank": 8, "targets": []}, "targets: expected some of"),
    ],
)
def test_a_wrong_file_is_refused_by_key(path, value, message):
    data = set_key(LLAMA, path, value)
    del data["published_parameters"]
    if message is None:
        assert loaded(data).num_parameters > 0
        return
    with pytest.raises(SpecError) as caught:
        loaded(data, "f.yaml")
    assert str(caught.value).startswith("f.yaml: ")
    assert message in str(caught.value)


def test_relative_positions_need_heads():
    data = set_key(LLAMA, LAYER, {"state_space": MIXER})
    data = set_key(data, ("architecture", "relative_position_buckets"), 32)
    with pytest.raises(SpecError, match="needs attention heads in the first layer"):
        loaded(data)


def test_norms_are_as_many_as_sub_layers_unless_stated():
    alone = {"state_space": MIXER}
    both = {"state_space": MIXER, "experts": EXPERTS}
    for layer, norms in ((alone, 1), (both, 2), ({**alone, "num_norms": 2}, 2)):
        data = set_key(LLAMA, LAYER, layer)
        del data["published_parameters"]
        assert loaded(data).layers[0].num_norms == norms


def test_one_expert_is_the_dense_network_and_a_router():
    dense = {"mlp": {"ffn_hidden_size": 64, "gated": True, "activation": "silu"}, "num_norms": 2}
    sparse = {"experts": {**EXPERTS, "num_experts": 1, "top_k": 1}, "num_norms": 2}
    models = [set_key(LLAMA, LAYER, layer) for layer in (dense, sparse)]
    for data in models:
        del data["published_parameters"]
    first, second = map(loaded, models)
    assert second.num_parameters == first.num_parameters + 80 * 8192
    assert second.num_active_parameters == second.num_parameters
    assert second.flops_per_sequence() == first.flops_per_sequence()


def test_huge_models_are_refused():
    data = set_key(LLAMA, ("architecture", "hidden_size"), 10**6)
    data["architecture"]["blocks"][0]["repeat"] = 10_000
    data["architecture"]["blocks"][0]["layers"][0]["mlp"]["ffn_hidden_size"] = 10**7
    with pytest.raises(SpecError, match="parameters; at most 1e"):
        loaded(data)


junk = (
    st.none()
    | st.booleans()
    | st.sampled_from([DELETE, 0, -1, 1, 10**9, 2**53, 10**30, 1e300, math.inf, math.nan, 0.5])
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


KINDS = ("deepseek-v3", "gpt-oss-20b", "nemotron-h-8b", "t5-11b")
MUTATED = [LLAMA, *map(document, KINDS)]


@settings(max_examples=300)
@given(st.data())
def test_mutated_documents_load_or_are_refused(data):
    mutated = data.draw(st.sampled_from(MUTATED))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths(mutated)))
        mutated = set_key(mutated, path, data.draw(junk))
    model = attempt(loaded, mutated)
    assert model is None or model.num_parameters > 0


TEXT = dump_yaml(LLAMA)


@settings(max_examples=250)
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


def test_overrides_reach_every_kind_of_sub_layer():
    changes = {"num_attention_heads": 16, "num_experts": "64", "top_k": 4, "ffn_hidden_size": 1024}
    changes |= {"moe_ffn_hidden_size": 512, "shared_ffn_hidden_size": 0, "num_mtp_layers": 0}
    model = load_model("deepseek-v3", changes)
    assert {layer.attention.num_heads for layer in model.layers} == {16}
    assert [layer.mlp.ffn_hidden_size for layer in model.layers[:3]] == [1024] * 3
    experts = model.layers[-1].experts
    assert (experts.num_experts, experts.top_k, experts.ffn_hidden_size) == (64, 4, 512)
    assert (experts.shared, model.num_mtp_layers) == (None, 0)


def test_num_layers_resizes_the_block_that_repeats_most():
    shapes = [
        [block.repeat for block in load_model(name, {"num_layers": layers}).blocks]
        for name, layers in (("deepseek-v3", 20), ("nemotron-h-56b", 52), ("llama4-maverick", 8))
    ]
    assert shapes == [[3, 17], [1, 3, 1], [2]]


def test_an_encoder_of_another_length():
    model = load_model("t5-11b", {"encoder_seq_length": 1024})
    assert {layer.seq_length for layer in model.layers} == {1024, None}
    assert model.layers[-1].cross_attention.kv_seq_length == 1024
    assert model.flops_per_sequence() > load_model("t5-11b").flops_per_sequence() * 1.7


def test_adapters_train_few_parameters():
    qkv_proj = {"lora_rank": 16, "lora_targets": "linear_qkv+linear_proj"}
    model = load_model("llama2-70b", qkv_proj)
    assert model.num_trainable_parameters == 80 * 16 * (8192 + 10240 + 8192 + 8192)
    assert model.num_parameters == load_model("llama2-70b").num_parameters
    everything = load_model("llama2-70b", {"lora_rank": 16}).num_trainable_parameters
    mlp = 80 * 16 * (8192 + 2 * 28672 + 28672 + 8192)
    assert everything == model.num_trainable_parameters + mlp
    for free in (load_model("llama2-70b"), load_model("llama2-70b", {"lora_rank": 0})):
        assert free.num_trainable_parameters == free.num_parameters
    experts = load_model("mixtral-8x7b", {"lora_rank": 1, "lora_targets": "linear_fc2"})
    assert experts.num_trainable_parameters == 32 * 8 * (14336 + 4096)
    cross = load_model("t5-11b", {"lora_rank": 1, "lora_targets": "linear_qkv"})
    own, other = 1024 + 3 * 16384, 1024 + 16384 + 1024 + 2 * 16384
    assert cross.num_trainable_parameters == 24 * own + 24 * (own + other)


def test_adapters_are_read_from_a_file():
    data = set_key(LLAMA, ("training", "lora"), {"rank": 16, "targets": ["linear_qkv"]})
    assert loaded(data).lora.targets == ("linear_qkv",)
    assert loaded(data).num_trainable_parameters == 80 * 16 * (8192 + 10240)


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
        ("num_experts", 8, "--set num_experts: llama3-70b has no layer with such a size"),
        ("encoder_seq_length", 8, "--set encoder_seq_length: llama3-70b has no layer"),
        ("num_mtp_layers", 101, "--set num_mtp_layers: expected 0 to 100"),
        ("lora_rank", 10**6, "--set lora_rank: expected 1 to 100000"),
        ("lora_rank", -1, "--set lora_rank: expected a whole number, got -1"),
        ("lora_targets", "linear_qkv", "--set lora_targets: needs lora_rank as well"),
        ("lora_targets", "a\nb", "--set lora_targets: needs lora_rank as well"),
        ("lora_targets", 3, "--set lora_targets: expected names joined by +, got 3"),
    ],
)
def test_wrong_overrides_are_refused(key, value, message):
    with pytest.raises(SpecError) as caught:
        load_model("llama3-70b", {key: value})
    assert message in str(caught.value)


def test_an_encoder_without_tokens_is_refused_by_its_own_name():
    with pytest.raises(SpecError, match="--set encoder_seq_length: expected 1 or more, got 0"):
        load_model("t5-11b", {"encoder_seq_length": 0})


def test_num_layers_of_a_repeated_pair_is_even():
    with pytest.raises(SpecError, match="repeats 2 layers; expected a multiple, got 3"):
        load_model("gemma2-27b", {"num_layers": 3})
    with pytest.raises(SpecError, match="1 layers beside 3 others; expected a multiple more, got"):
        load_model("deepseek-v3", {"num_layers": 3})
    with pytest.raises(SpecError, match="has 2 kinds of blocks; write a model file instead"):
        load_model("t5-11b", {"num_layers": 10})
    with pytest.raises(SpecError, match="expected 1 to num_experts=4, got 8"):
        load_model("qwen3-30b-a3b", {"num_experts": 4})


@settings(max_examples=150)
@given(
    st.sampled_from(["llama3-70b", "deepseek-v3", "t5-11b", "nemotron-h-8b"]),
    st.dictionaries(
        st.sampled_from(OVERRIDES) | st.text(max_size=5),
        st.integers() | st.text(max_size=5) | st.booleans() | st.sampled_from([1, 8, 64, "128"]),
        max_size=4,
    ),
)
def test_random_overrides_load_or_are_refused(name, overrides):
    model = attempt(load_model, name, overrides)
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama3-8b", ["32 layers with attention: 32 heads of 128, 8 key/value heads"]),
        (
            "deepseek-v3",
            [
                "37,552,297,472 active for a token (36,625,618,432 without the embedding)",
                "61 layers with latent attention: 128 heads of 128+64/128",
                "58 layers with experts: 8 of 256, each 2048 wide, gated silu, sigmoid router",
                "1 multi-token-prediction module: 11,610,068,224 parameters more",
            ],
        ),
        ("gpt-oss-20b", ["over a window of 128 tokens, sinks"]),
        ("llama4-scout", ["in chunks of 8192 tokens", "shared experts 8192 wide"]),
        ("nemotron-h-8b", ["24 layers with a Mamba-2 mixer: 128 heads of 64, 128 states"]),
        ("t5-11b", ["bidirectional attention", "over 512 tokens of the encoder"]),
    ],
)
def test_a_model_is_shown_in_words(name, words):
    shown = "\n".join(MODEL_VIEW.details(name, load_model(name)))
    assert [each for each in words if each not in shown] == []
    assert "sources:" in shown


def test_adapters_are_shown():
    model = load_model("llama2-70b", {"lora_rank": 16, "lora_targets": "linear_qkv+linear_proj"})
    line = "LoRA of rank 16 on linear_qkv, linear_proj: 44,564,480 parameters are trained"
    assert line in "\n".join(MODEL_VIEW.summary(model))


def test_the_list_has_active_parameters_and_experts():
    row = MODEL_VIEW.row(load_model("deepseek-v3"))
    assert row[:3] == ["deepseek-v3", "671 B", "37.6 B"]
    assert {"MLA 128", "8 of 256 + shared"} < set(row)
    assert MODEL_VIEW.row(load_model("llama3-8b"))[2] == "all"
    assert "32/8 + Mamba" in MODEL_VIEW.row(load_model("nemotron-h-8b"))


def test_the_example_of_the_documentation_loads():
    text = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    model = loaded(parse_yaml(text.split("```yaml\n")[1].split("```")[0], "docs/models.md"))
    assert model.num_layers == 24
    assert model.num_active_parameters < model.num_parameters
    assert model.lora.rank == 16
