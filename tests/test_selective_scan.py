"""Mamba-1 mixers: their work on one rank, and who runs them."""

from dataclasses import replace

import pytest

from parallelsim.catalog import load_cluster, load_framework
from parallelsim.errors import ExportError
from parallelsim.exporters.megatron import export_megatron
from parallelsim.layers import Block, Layer, SelectiveScan
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import explain
from parallelsim.simulate import simulate

H, INNER, N, R, LAYERS = 2560, 5120, 16, 160, 64
MAMBA = ModelSpec(
    "mamba-2.8b",
    hidden_size=H,
    vocab_size=50280,
    seq_length=2048,
    max_seq_length=2**20,
    default_global_batch_tokens=0,
    blocks=(Block(LAYERS, (Layer(state_space=SelectiveScan(INNER, N, R), num_norms=1),)),),
    tied_embeddings=True,
    position_embedding="none",
)
CLUSTER, TITAN = load_cluster("hgx-h100", num_gpus=8), load_framework("torchtitan")
PLAN = Plan(dp=8, global_batch_size=16, zero=3, compile=True)


def test_products_are_those_of_the_projections_and_the_scan_is_linear_in_the_sequence() -> None:
    weights = 3 * H * INNER + INNER * (R + 2 * N) + R * INNER
    scan = 3 * 7 * INNER * N
    per_token = 6 * (LAYERS * weights + H * 50280) + LAYERS * scan
    for length in (2048, 65536):
        model = MAMBA.with_seq_length(length)
        assert model.flops_per_sequence() == pytest.approx(length * per_token)


def test_a_step_takes_the_same_however_tokens_are_cut_into_sequences() -> None:
    plans = PlanBatch.from_plans([PLAN, replace(PLAN, micro_batch_size=2, global_batch_size=32)])
    long = simulate(MAMBA.with_seq_length(4096), CLUSTER, TITAN, plans)
    short = simulate(MAMBA, CLUSTER, TITAN, plans)
    assert long.step_time_s[0] == pytest.approx(short.step_time_s[1], rel=1e-3)
    assert long.peak_memory_bytes[0] == pytest.approx(short.peak_memory_bytes[1], rel=1e-3)


def test_every_parameter_has_its_moments() -> None:
    held = simulate(MAMBA, CLUSTER, TITAN, PlanBatch.from_plans([PLAN])).memory.optimizer_bytes[0]
    padded = 24 * H  # rows of the vocabulary, up to a multiple of 128
    assert held * PLAN.dp == pytest.approx(8 * (MAMBA.num_parameters + padded))


@pytest.mark.parametrize("degree", ["tp", "cp"])
def test_its_channels_are_not_split(degree: str) -> None:
    plan = replace(PLAN, dp=4, **{degree: 2})
    (found,) = explain(MAMBA, CLUSTER, TITAN, plan)
    assert f"{degree}=2" in found


def test_megatron_neither_runs_nor_exports_it() -> None:
    megatron, plan = load_framework("megatron-core"), replace(PLAN, zero=1, compile=False)
    (found,) = explain(MAMBA, CLUSTER, megatron, plan)
    assert "does not run selective-scan" in found
    with pytest.raises(ExportError, match="Mamba-2, not Mamba-1"):
        export_megatron(MAMBA, CLUSTER, megatron, plan)
