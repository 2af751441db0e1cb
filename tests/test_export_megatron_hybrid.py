"""Scripts of hybrids of attention and state spaces: the exact flags, or the refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from megatron_scripts import DATA_PARALLEL as PLAN
from megatron_scripts import array, export

from parallelsim.catalog import load_model
from parallelsim.errors import ExportError
from parallelsim.exporters.megatron_hybrid import chunk_layers
from parallelsim.layers import Attention, Block
from parallelsim.model import ModelSpec

OLD = "core_v0.15.0"
HYBRID = load_model("nemotron-h-8b")


def test_hybrid_is_a_pattern_of_letters_between_stages():
    plan = replace(PLAN, pp=2, dp=4, schedule="1f1b")
    script = export(HYBRID, plan)
    assert array(script, "HYBRID_ARGS") == [
        "--hybrid-layer-pattern='M-M-M-M*-M-M-M-M-M*-M-M-M-|M-M*-M-M-M-M-M*-M-M-M-M-M-'",
        "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec",
        "--mamba-num-heads 128",
        "--mamba-head-dim 64",
        "--mamba-state-dim 128",
        "--mamba-num-groups 8",
    ]
    assert '"${MEGATRON_PATH}/pretrain_hybrid.py"' in script
    assert "--num-layers" not in script
    assert {"--squared-relu", "--position-embedding-type none", "--disable-bias-linear"} <= set(
        array(script, "MODEL_ARGS")
    )


def test_older_version_names_the_pattern_otherwise():
    script = export(HYBRID, replace(PLAN, pp=2, dp=4, schedule="1f1b"), OLD)
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    assert array(script, "HYBRID_ARGS")[:4] == [
        "--is-hybrid-model",
        "--num-layers 52",
        f"--hybrid-override-pattern='{pattern}'",
        "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec",
    ]
    assert '"${MEGATRON_PATH}/pretrain_mamba.py"' in script


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"}, [13] * 4),
        (
            {"pp": 2, "layout": "first-last", "first_stage_layers": 25, "last_stage_layers": 27},
            [25, 27],
        ),
        ({"pp": 2, "layout": "embedding-loss"}, [26, 26]),
        ({"pp": 4}, [13] * 4),
    ],
)
def test_stages_of_a_hybrid_are_the_plans(changes, lengths):
    pp = changes["pp"]
    plan = replace(PLAN, **{"dp": 8 // pp, "schedule": "1f1b", **changes})
    script = export(HYBRID, plan)
    pattern = array(script, "HYBRID_ARGS")[0].split("'")[1]
    assert [len(segment) for segment in pattern.split("|")] == lengths
    assert chunk_layers(HYBRID.num_layers, plan) == lengths
    for flag in ("--num-virtual", "--account-for", "--decoder-first"):
        assert flag not in script


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pp": 2, "vpp": 2, "dp": 4, "schedule": "interleaved-1f1b"}, "without virtual ones"),
        ({"recompute": "full"}, "does not recompute whole layers"),
        ({"cuda_graphs": True}, "no CUDA graphs of hybrids"),
    ],
)
def test_what_the_older_version_cannot_do_with_hybrids_is_refused(changes, reason):
    with pytest.raises(ExportError, match=reason):
        export(HYBRID, replace(PLAN, **changes), OLD)
    export(HYBRID, replace(PLAN, **changes))


def changed_mixer(**changes: object) -> ModelSpec:
    def changed(layer):
        mixer = layer.state_space
        return replace(layer, state_space=replace(mixer, **changes)) if mixer else layer

    blocks = (Block(b.repeat, tuple(map(changed, b.layers))) for b in HYBRID.blocks)
    return replace(HYBRID, blocks=tuple(blocks))


@pytest.mark.parametrize(
    ("model", "plan", "reason"),
    [
        (changed_mixer(chunk_size=256), PLAN, "scan 128 tokens at once"),
        (changed_mixer(conv_kernel=3), PLAN, "convolution of 4 tokens"),
        (changed_mixer(num_heads=4, num_groups=1), replace(PLAN, cp=8, dp=1), "cp=8"),
        (
            changed_mixer(num_heads=4, num_groups=4, head_dim=5, state_size=5),
            replace(PLAN, precision="fp8-current"),
            "columns must divide by 16",
        ),
    ],
)
def test_hybrids_that_megatron_cannot_run_are_refused(model, plan, reason):
    with pytest.raises(ExportError, match=reason):
        export(model, plan)


def test_modules_of_multi_token_prediction_follow_the_pattern():
    mixer, mlp = HYBRID.layers[0], HYBRID.layers[1]
    model = replace(HYBRID, num_mtp_layers=2, mtp_layers=(mixer, mlp))
    (pattern, *_) = array(export(model), "HYBRID_ARGS")
    assert pattern.endswith("M-M-/M-/M-'")
    with pytest.raises(ExportError, match="no multi-token prediction of hybrids for core_v0.15.0"):
        export(model, version=OLD)


def test_mixers_alone_need_no_attention():
    mixers = tuple(layer for layer in HYBRID.layers if layer.state_space)
    model = replace(HYBRID, blocks=(Block(1, mixers),))
    script = export(model)
    assert f"--hybrid-layer-pattern='{'M' * len(mixers)}'" in script
    assert "--num-attention-heads 128" in script


def test_layers_of_two_sublayers_are_two_letters():
    pairs = tuple(
        replace(mixer, mlp=mlp.mlp, num_norms=2)
        for mixer, mlp in zip(HYBRID.layers[:2:2], HYBRID.layers[1:2:2], strict=True)
    )
    model = replace(HYBRID, blocks=(Block(4, pairs),))
    plan = replace(PLAN, pp=2, dp=4, schedule="1f1b")
    assert "--hybrid-layer-pattern='M-M-|M-M-'" in export(model, plan)
    assert "--num-layers 8" in export(model, plan, OLD)
    with pytest.raises(ExportError, match="counts sub-layers in hybrids"):
        export(model, replace(plan, recompute="full", recompute_num_layers=1))


def test_windows_of_hybrids_are_refused_where_they_cut():
    attention = Attention(32, 8, 128, window=4096)
    layers = tuple(
        replace(layer, attention=attention) if layer.attention else layer for layer in HYBRID.layers
    )
    model = replace(HYBRID, blocks=(Block(1, layers),))
    with pytest.raises(ExportError, match="no attention windows"):
        export(model)
    export(model.with_seq_length(4096))
