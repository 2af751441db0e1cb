"""Configurations of public checkpoints count the parameters that the checkpoints hold.

``published/huggingface_configs.json`` holds the keys that decide shapes and counts, beside the
parameters of the checkpoint. The falcon-180b checkpoint stores an output matrix of its own, which
its configuration does not say: the key is added there.
"""

import copy
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallelsim.catalog import load_model
from parallelsim.errors import OutputError, ParallelSimError, SpecError
from parallelsim.huggingface import known_model_types, model_from_config
from parallelsim.layers import Block

PUBLISHED = json.loads(
    (Path(__file__).parent / "published" / "huggingface_configs.json").read_text(encoding="utf-8")
)
CHECKPOINTS = {name: (row["config"], row["parameters"]) for name, row in PUBLISHED.items()}
"""Configuration and parameters of the checkpoint; BERT with its masked-language-model head."""
NEMOTRON_340B = {
    "model_type": "nemotron",
    "hidden_size": 18432,
    "num_hidden_layers": 96,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "intermediate_size": 73728,
    "vocab_size": 256000,
    "max_position_embeddings": 4096,
    "hidden_act": "relu2",
    "head_dim": 192,
}
FALCON = {
    "model_type": "falcon",
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 65024,
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parameters_equal_the_checkpoint(name):
    config, parameters = CHECKPOINTS[name]
    model = model_from_config(config, name)
    assert model.num_parameters == parameters
    assert model.name == name


def test_every_known_architecture_is_tested():
    tested = {config["model_type"] for config, _ in CHECKPOINTS.values()} | {
        "nemotron",
        "bamba",
        "switch_transformers",
        "llama4_text",
        "vit",
    }
    assert tested == set(known_model_types())


@pytest.mark.parametrize(
    ("name", "catalogue"),
    [
        ("llama-7b", "llama-7b"),
        ("llama-3-70b", "llama3-70b"),
        ("llama-3.1-405b", "llama3.1-405b"),
        ("mistral-7b-v0.1", "mistral-7b-v0.1"),
        ("qwen2.5-72b", "qwen2.5-72b"),
        ("qwen3-32b", "qwen3-32b"),
        ("gemma-2-27b", "gemma2-27b"),
        ("gpt2-xl", "gpt2-xl"),
        ("falcon-180b", "falcon-180b"),
        ("bloom", "bloom-176b"),
        ("bert-large-uncased", "bert-large"),
        ("mixtral-8x7b", "mixtral-8x7b"),
        ("grok-1", "grok-1"),
        ("mixtral-8x22b", "mixtral-8x22b"),
        ("qwen3-30b-a3b", "qwen3-30b-a3b"),
        ("qwen3-235b-a22b", "qwen3-235b-a22b"),
        ("gpt-oss-20b", "gpt-oss-20b"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("llama-4-scout", "llama4-scout"),
        ("llama-4-maverick", "llama4-maverick"),
        ("deepseek-v2", "deepseek-v2"),
        ("deepseek-v2-lite", "deepseek-v2-lite"),
        ("deepseek-v3", "deepseek-v3"),
        ("kimi-k2", "kimi-k2"),
        ("t5-11b", "t5-11b"),
    ],
)
def test_a_configuration_describes_the_catalogue_model(name, catalogue):
    ours, theirs = load_model(catalogue), model_from_config(CHECKPOINTS[name][0], catalogue)
    for field in (
        "hidden_size",
        "vocab_size",
        "max_seq_length",
        "blocks",
        "num_mtp_layers",
        "relative_position_buckets",
        "tied_embeddings",
        "norm",
        "position_embedding",
        "rotary_base",
        "norm_bias",
        "embedding_norm",
        "final_norm",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field


def test_nemotron_is_the_catalogue_model():
    assert model_from_config(NEMOTRON_340B, "n").blocks == load_model("nemotron4-340b").blocks


BAMBA_9B = {
    "model_type": "bamba",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 262144,
    "attn_layer_indices": [9, 18, 27],
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
}
SWITCH_C = {
    "model_type": "switch_transformers",
    "d_model": 2080,
    "d_kv": 64,
    "d_ff": 6144,
    "num_layers": 15,
    "num_heads": 32,
    "num_experts": 2048,
    "num_sparse_encoder_layers": 15,
    "num_sparse_decoder_layers": 15,
    "vocab_size": 32128,
}
NEMOTRON_H_8B = {
    **CHECKPOINTS["nemotron-nano-9b-v2"][0],
    "hidden_size": 4096,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "intermediate_size": 21504,
    "mamba_head_dim": 64,
    "max_position_embeddings": 8192,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
}


def test_a_hybrid_is_the_catalogue_model():
    ours, theirs = load_model("nemotron-h-8b"), model_from_config(NEMOTRON_H_8B, "n")
    assert ours.layers == theirs.layers
    assert ours.num_parameters == theirs.num_parameters
    names = {"M": "mamba", "-": "mlp", "*": "attention"}
    config = {key: NEMOTRON_H_8B[key] for key in NEMOTRON_H_8B if key != "hybrid_override_pattern"}
    config["layers_block_type"] = [names[c] for c in NEMOTRON_H_8B["hybrid_override_pattern"]]
    assert model_from_config(config, "n").layers == ours.layers


def test_a_hybrids_module_of_multi_token_prediction_has_layers_of_its_own():
    config = CHECKPOINTS["nemotron-3-nano-30b-a3b"][0]
    predicting = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
    plain, model = (model_from_config({**config, **more}, "n") for more in ({}, predicting))
    kinds = [layer.sublayers[0].__class__.__name__ for layer in model.mtp_layers]
    assert kinds == ["Attention", "MixtureOfExperts"]
    assert model.num_parameters == plain.num_parameters
    h = model.hidden_size
    layers = sum(model.layer_parameters(layer) for layer in model.mtp_layers)
    assert model.mtp_parameters() == layers + 2 * h * h + 3 * h


def test_jamba_attends_in_every_eighth_layer_and_has_experts_in_every_second():
    model = model_from_config(CHECKPOINTS["jamba-v0.1"][0], "j")
    assert [i for i, layer in enumerate(model.layers) if layer.attention] == [4, 12, 20, 28]
    assert [i for i, layer in enumerate(model.layers) if layer.experts] == [*range(1, 32, 2)]
    assert round(model.num_active_parameters / 1e9) == 12


def test_bamba_rounds_to_the_published_count():
    model = model_from_config(BAMBA_9B, "b")  # Bamba-9B: 9.78 B on its card
    assert round(model.num_parameters / 1e9, 2) == 9.78
    assert [i for i, layer in enumerate(model.layers) if layer.attention] == [9, 18, 27]


def test_switch_is_the_catalogue_model():
    assert model_from_config(SWITCH_C, "s").blocks == load_model("switch-c-2048").blocks
    half = {**SWITCH_C, "num_layers": 12, "num_sparse_encoder_layers": 6}
    half["num_sparse_decoder_layers"] = 3
    layers = model_from_config(half, "s").layers
    assert [i for i, layer in enumerate(layers[:12]) if layer.experts] == [1, 3, 5, 7, 9, 11]
    assert [i for i, layer in enumerate(layers[12:]) if layer.experts] == [1, 5, 9]


def test_experts_skip_the_layers_that_a_configuration_names():
    config = {**CHECKPOINTS["qwen3-30b-a3b"][0], "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    layers = model_from_config(config, "q").layers
    assert [i for i in range(8) if layers[i].experts] == [1, 5, 7]
    assert layers[0].mlp.ffn_hidden_size == 6144
    text = {**CHECKPOINTS["llama-4-scout"][0]["text_config"], "moe_layers": [0, 2]}
    text["no_rope_layers"] = [0] + [1] * 47
    layers = model_from_config(text, "l").layers
    assert [i for i, layer in enumerate(layers) if layer.experts] == [0, 2]
    assert [i for i, layer in enumerate(layers) if layer.attention.window is None] == [0]


def test_multi_token_prediction_is_read():
    assert model_from_config(CHECKPOINTS["deepseek-v3"][0], "d").num_mtp_layers == 1


def test_training_is_not_stated():
    model = model_from_config(CHECKPOINTS["llama-3-8b"][0], "x")
    assert (model.seq_length, model.default_global_batch_tokens) == (0, 0)
    assert model.with_seq_length(4096).seq_length == 4096


def test_windows_follow_each_architecture():
    def windows(config):
        return [layer.attention.window for layer in model_from_config(config, "x").layers]

    mistral = {**CHECKPOINTS["mistral-7b-v0.1"][0]}
    assert windows(mistral) == [4096] * 32
    del mistral["sliding_window"]
    assert windows(mistral) == [4096] * 32
    assert windows(CHECKPOINTS["mistral-7b-v0.3"][0]) == [None] * 32
    qwen = {**CHECKPOINTS["qwen2.5-7b"][0], "use_sliding_window": True, "max_window_layers": 20}
    assert windows(qwen) == [None] * 20 + [131072] * 8
    assert windows(CHECKPOINTS["gemma-2-9b"][0]) == [4096, None] * 21
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 7
    assert (
        windows({**CHECKPOINTS["gemma-2-9b"][0], "layer_types": kinds}) == ([4096] * 5 + [None]) * 7
    )


def test_blocks_are_as_few_as_the_pattern_allows():
    def shape(kinds):
        config = {**CHECKPOINTS["gemma-2-9b"][0], "num_hidden_layers": len(kinds)}
        names = {"s": "sliding_attention", "f": "full_attention"}
        config["layer_types"] = [names[kind] for kind in kinds]
        blocks: tuple[Block, ...] = model_from_config(config, "x").blocks
        return [(block.repeat, len(block.layers)) for block in blocks]

    assert shape("ssss") == [(4, 1)]
    assert shape("fffs") == [(3, 1), (1, 1)]
    assert shape("sf" * 6) == [(6, 2)]
    assert shape("sssssf" * 3 + "ss") == [(3, 6), (1, 2)]


def test_falcon_generations_differ_in_norms_and_heads():
    def kind(**more):
        layer = model_from_config({**FALCON, **more}, "x").layers[0]
        return layer.num_norms, layer.parallel, layer.attention.num_query_groups

    assert kind() == (1, True, 1)
    assert kind(parallel_attn=False) == (2, False, 1)
    assert kind(multi_query=False) == (1, True, 8)
    assert kind(new_decoder_architecture=True, num_kv_heads=2) == (2, True, 2)
    assert kind(new_decoder_architecture=True, num_ln_in_parallel_attn=1) == (1, True, 8)


def test_biases_are_read():
    config = {**CHECKPOINTS["llama-3-8b"][0], "attention_bias": True, "mlp_bias": True}
    biases = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    assert model_from_config(config, "x").num_parameters == 8_030_261_248 + biases


def test_dropout_is_read():
    model = model_from_config({**CHECKPOINTS["gpt2"][0], "attn_pdrop": 0.25}, "x")
    assert (model.hidden_dropout, model.attention_dropout) == (0.1, 0.25)


LLAMA = CHECKPOINTS["llama-3-8b"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "grok-9"},
            "model_type: 'grok-9' is not known; known: bamba, bert, bloom",
        ),
        ({"model_type": None}, "model_type: this key is missing"),
        ({"model_type": ["llama"]}, "model_type: expected text, got a list of 1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: a quantised checkpoint"),
        ({"num_local_experts": 8}, "num_local_experts: a mixture of experts is not supported"),
        ({"vision_config": {}}, "vision_config: a model of several modalities"),
        ({"hidden_size": None}, "hidden_size: this key is missing"),
        ({"hidden_size": "4096"}, "hidden_size: expected a whole number of at least 1, got '4096'"),
        ({"hidden_size": True}, "got true"),
        ({"hidden_size": 10**5000}, "got a huge number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected at most 10000"),
        ({"num_attention_heads": 33}, "33 heads do not divide hidden size 4096"),
        ({"num_key_value_heads": 7}, "32 heads cannot share 7"),
        ({"hidden_act": "mish"}, "hidden_act: 'mish' is not known"),
        ({"attention_dropout": 1.5}, "attention_dropout: expected a number in [0, 1)"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false, got 1"),
        (
            {"model_type": "gemma2", "layer_types": ["x"]},
            "layer_types: expected a list of 32 names",
        ),
        ({"model_type": "gemma2", "layer_types": ["x"] * 32}, "got 'x'"),
        ({"model_type": "bert", "position_embedding_type": "relative"}, "expected 'absolute'"),
        (
            {"model_type": "jamba", "mamba_proj_bias": True},
            "mamba_proj_bias: biases of these projections",
        ),
        (
            {"model_type": "jamba", "attn_layer_offset": 8},
            "attn_layer_offset: expected less than attn_layer_period=8, got 8",
        ),
        ({"model_type": "vit", "id2label": 5}, "id2label: expected a mapping, got 5"),
        ({"model_type": "mamba", "time_step_rank": -3}, "time_step_rank: expected a whole number"),
        ({"model_type": "mixtral"}, "num_local_experts: this key is missing"),
        ({"model_type": "mixtral", "sliding_window": 4096}, "sliding_window: a sliding window is"),
        (
            {"model_type": "mixtral", "quantization_config": {"bits": 4}},
            "quantization_config: a quantised checkpoint",
        ),
        ({"model_type": "llama4"}, "text_config: expected a mapping, got nothing"),
        ({"model_type": "deepseek_v2", "attention_bias": True}, "biases of latent attention"),
        ({"model_type": "deepseek_v2", "moe_layer_freq": 2}, "moe_layer_freq: expected experts"),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern or layers_block_type: expected"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"}, "expected up to 10000 of"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M*"},
            "num_hidden_layers: expected the 2 of the pattern, got 32",
        ),
        (
            {"model_type": "nemotron_h", "num_nextn_predict_layers": 1},
            "mtp_hybrid_override_pattern: this key is missing",
        ),
        ({"model_type": "mamba2", "use_bias": True}, "use_bias: biases of these projections"),
    ],
)
def test_wrong_configurations_are_refused_by_key(change, message):
    with pytest.raises(SpecError) as caught:
        model_from_config({**LLAMA, **change}, "x")
    assert message in str(caught.value)


def test_a_missing_group_count_is_an_error_where_its_default_is_no_head_count():
    config = {**LLAMA, "model_type": "mistral"}
    del config["num_key_value_heads"]
    with pytest.raises(SpecError, match="num_key_value_heads: this key is missing"):
        model_from_config(config, "x")
    assert model_from_config({**config, "model_type": "llama"}, "x").num_parameters > 8.03e9


def test_a_file_or_its_folder_is_loaded_under_the_name_of_the_folder(tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    with pytest.raises(OutputError, match=r"config.json: cannot read"):
        load_model(folder)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "other.json").write_text(json.dumps(LLAMA))
    assert load_model(folder).name == load_model(folder / "config.json").name == "My-Model"
    assert load_model(folder / "other.json", {"num_layers": 2}).num_layers == 2
    assert load_model(folder / "other.json").name == "other"
    (folder / "config.json").write_text('{"model_type": "xlnet"}')
    with pytest.raises(SpecError, match=r"config.json: model_type: 'xlnet' is not known"):
        load_model(folder)


junk = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 7, 10**9, 2**53, 10**30, 1e300, math.inf, math.nan, 0.5])
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.text(max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
FUZZED = {name: config for name, (config, _) in CHECKPOINTS.items()}
FUZZED |= {"bamba": BAMBA_9B, "switch": SWITCH_C, "nemotron-h": NEMOTRON_H_8B}
FUZZED["llama4-text"] = CHECKPOINTS["llama-4-scout"][0]["text_config"]
KEYS = sorted({key for config in FUZZED.values() for key in config} | {"layer_types"})


def attempt(config):
    try:
        return model_from_config(config, "x")
    except ParallelSimError as error:
        line = str(error)
    assert line.isprintable()
    return None


@settings(max_examples=300)
@given(st.sampled_from(sorted(FUZZED)), st.data())
def test_mutated_configurations_load_or_are_refused(name, data):
    config = copy.deepcopy(FUZZED[name])
    for _ in range(data.draw(st.integers(1, 3))):
        config[data.draw(st.sampled_from(KEYS))] = data.draw(junk)
    for key in data.draw(st.lists(st.sampled_from(KEYS), max_size=1)):
        config.pop(key, None)
    model = attempt(config)
    assert model is None or model.num_parameters > 0


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from([*KEYS]) | st.text(max_size=4), junk, max_size=8))
def test_random_configurations_load_or_are_refused(config):
    model = attempt(config)
    assert model is None or model.num_parameters > 0
