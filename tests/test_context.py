"""Long sequences and two sequences: context parallelism of every kind, encoders and decoders."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from parallelsim.search.grid import grid_search
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.costs import CostTable
from parallelsim.exporters.megatron import export_megatron
from parallelsim.layer_costs import layer_costs
from parallelsim.layers import Block, Layer
from parallelsim.model import ModelSpec
from parallelsim.operators import OperatorKeys
from parallelsim.plan import CP_COMM_TYPES, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import broken_rules, reasons
from parallelsim.simulate import simulate
from parallelsim.sublayers import work

CLUSTER = load_cluster("hgx-h100", num_gpus=128)
MEGATRON = load_framework("megatron-core")
MILLION = 1_048_576
LONG = load_model("llama3-8b", {"max_seq_length": MILLION}).with_seq_length(MILLION)
HYBRID = "a2a+p2p"


def keys_of(plans: list[Plan]) -> OperatorKeys:
    """The fields of the plans that shapes depend on."""
    batch = PlanBatch.from_plans(plans)
    fields = {name: getattr(batch, name) for name in PlanBatch.__slots__}
    fields["selective"] = np.zeros(len(plans), np.int64)
    return OperatorKeys(**{name: fields[name] for name in OperatorKeys.__slots__})


def table_of(model: ModelSpec, plans: list[Plan]) -> CostTable:
    """The costs of the plans, and a row for each."""
    return CostTable(model, CLUSTER, MEGATRON, PlanBatch.from_plans(plans))


def layer_column(model: ModelSpec, plans: list[Plan], name: str) -> np.ndarray:
    table = table_of(model, plans)
    return getattr(table.layer, name)[table.rows(PlanBatch.from_plans(plans))]


def plan(kind: str, tp: int = 1, cp: int = 8, cp_a2a: int = 1) -> Plan:
    """One sequence on tp * cp of the GPUs."""
    dp = 128 // (tp * cp)
    shared = {"global_batch_size": dp, "zero": 1, "sequence_parallel": tp > 1}
    return Plan(tp=tp, cp=cp, dp=dp, cp_comm_type=kind, cp_a2a=cp_a2a, **shared)


EVERY_KIND = [plan(kind, cp_a2a=2 if kind == HYBRID else 1) for kind in CP_COMM_TYPES]


@pytest.mark.parametrize(
    "name", ["llama3-8b", "gemma2-27b", "t5-11b", "deepseek-v3", "llama4-scout"]
)
def test_every_kind_of_context_parallelism_computes_as_much(name: str) -> None:
    """Ring, gathered keys, Ulysses and the hybrid share the pairs of a sequence evenly."""
    model, keys = load_model(name), keys_of(EVERY_KIND)
    alone = keys_of([plan("p2p", cp=1)])
    for layer, _ in model.layer_kinds:
        for part in layer.sublayers:
            cores = [
                work(model, layer, part, MEGATRON, CLUSTER.accelerator, each).core
                for each in (keys, alone)
            ]
            if cores[0] is not None and cores[1] is not None:
                np.testing.assert_array_equal(cores[0].flops, cores[0].flops[0])
                np.testing.assert_allclose(8 * cores[0].flops[0], cores[1].flops[0], 1e-12)


def test_every_kind_keeps_the_same_tensors() -> None:
    saved = layer_column(LONG, EVERY_KIND, "saved_bytes")
    np.testing.assert_array_equal(saved, saved[0])


@pytest.mark.parametrize("name", ["attention_s", "memory_bound_s", "cp_exposed_s"])
def test_the_hybrid_lies_between_a_ring_and_an_exchange(name: str) -> None:
    """With one rank in a group it is the ring, with all of them the exchange."""
    ring, exchange = plan("p2p"), plan("a2a")
    ends = [replace(ring, cp_comm_type=HYBRID), replace(exchange, cp_comm_type=HYBRID, cp_a2a=8)]
    as_hybrid = layer_column(LONG, ends, name)
    itself = layer_column(LONG, [ring, exchange], name)
    np.testing.assert_allclose(as_hybrid, itself, 1e-12)


def test_dealing_out_heads_shortens_the_ring() -> None:
    """Of 64 ranks over 8 nodes a ring makes 63 steps between nodes; of 8 groups of 8 it makes 7."""
    plans = [plan("p2p", cp=64), *(plan(HYBRID, cp=64, cp_a2a=n) for n in (2, 4, 8))]
    exposed = layer_column(LONG.with_seq_length(131_072), plans, "cp_exposed_s")
    assert (np.diff(exposed) < 0).all()


def test_gathered_keys_and_values_count_in_memory() -> None:
    """K, V and their gradients of a million tokens in 16 bits, 1024 columns: 8.6 GB a rank."""
    runs = (simulate(LONG, CLUSTER, MEGATRON, plan(kind)) for kind in ("all-gather", "p2p"))
    gathered, ring = runs
    more = gathered.memory.working_bytes[0] - ring.memory.working_bytes[0]
    assert more == pytest.approx(4 * 2 * 1024 * MILLION, rel=1e-12)


def test_a_million_tokens_have_a_plan_of_both_sorts_of_parallelism() -> None:
    result = grid_search(SearchSpace(LONG, CLUSTER, MEGATRON, 4), 5, 0.8)
    best = result.plans.plans.plan(0)
    assert result.proven
    assert result.elapsed_s < 5
    assert best.tp * best.cp >= 32  # 8,192 to 32,768 tokens a GPU
    assert best.pp == 1
    assert 0.45 < result.plans.mfu[0] < 0.65  # nearly all of it attention


@pytest.mark.parametrize(
    ("name", "seq_length", "allowed"),
    [
        ("llama3-8b", 8192, {"p2p", "all-gather", "a2a", HYBRID}),
        ("gemma2-27b", 8192, {"all-gather", "a2a"}),  # windows of 4,096
        ("gpt-oss-20b", 8192, {"a2a"}),  # sinks
        ("llama4-scout", 8192, {"p2p", "all-gather", "a2a", HYBRID}),  # one chunk
        ("llama4-scout", 32_768, {"all-gather", "a2a"}),  # four chunks
        ("deepseek-v3", 4096, {"p2p"}),  # values narrower than keys
    ],
)
def test_windows_chunks_and_sinks_choose_the_kind(
    name: str, seq_length: int, allowed: set[str]
) -> None:
    model = load_model(name, {"max_seq_length": seq_length}).with_seq_length(seq_length)
    plans = [plan(kind, cp=4, cp_a2a=2 if kind == HYBRID else 1) for kind in CP_COMM_TYPES]
    masks = broken_rules(model, CLUSTER, MEGATRON, PlanBatch.from_plans(plans))
    about = ("window", "sinks", "latent", "hybrid", "a2a-heads")
    broken = [[r for r in reasons(mask) if r.startswith(about)] for mask in masks]
    assert {kind for kind, names in zip(CP_COMM_TYPES, broken, strict=True) if not names} == allowed


def test_megatron_gets_the_sizes_of_the_hybrid() -> None:
    chosen = replace(plan(HYBRID, tp=4, cp=32, cp_a2a=2), cross_entropy_fusion=True)
    script = export_megatron(LONG, CLUSTER, MEGATRON, chosen)
    assert "--cp-comm-type a2a+p2p" in script
    assert "--hierarchical-context-parallel-sizes 2 16" in script


T5 = load_model("t5-11b")
ENCODER, DECODER = (layer for layer, _ in T5.layer_kinds)


def test_an_encoder_pays_for_its_own_tokens() -> None:
    """Four times the decoder's: products, collectives and saved tensors of the same layer."""
    plain = replace(T5, blocks=(Block(24, (replace(ENCODER, seq_length=None),)),))
    longer = replace(plain, seq_length=512)
    network = table_of(T5, [plan("p2p", tp=8, cp=1)]).network
    keys = keys_of([plan("p2p", tp=8, cp=1)])
    costs = [
        layer_costs([(layer, 1)], model, network, MEGATRON, keys)
        for model, layer in ((T5, ENCODER), (longer, longer.layers[0]))
    ]
    for name in ("gemm_s", "attention_s", "memory_bound_s", "tp_exposed_s", "saved_bytes"):
        np.testing.assert_array_equal(getattr(costs[0], name), getattr(costs[1], name), name)


def test_an_encoder_decoder_embeds_and_keeps_both_sequences() -> None:
    edge = table_of(T5, [plan("p2p", cp=1)]).edge
    hidden, elements = T5.hidden_size, 512 + 128
    assert edge.embedding_bytes[0] == (2 + 1) * elements * hidden  # with a dropout mask
    assert edge.checkpoint_bytes[0] == 2 * hidden * elements / 2  # the mean of both halves


def test_tokens_of_the_other_sequence_are_split_over_context_parallel_ranks() -> None:
    layer = Layer(cross_attention=DECODER.cross_attention, num_norms=1)
    model = replace(T5, blocks=(Block(24, (layer,)),), relative_position_buckets=0)
    for tp, cp in product((1, 8), (1, 4)):
        each = keys_of([plan("p2p", tp=tp, cp=cp)])
        asked = work(model, layer, layer.sublayers[0], MEGATRON, CLUSTER.accelerator, each)
        *_, keys_and_values = asked.gemms
        assert keys_and_values.m[0] == 512 / cp
        assert keys_and_values.n[0] == 2 * 128 * 128 / tp
        assert asked.core is not None
        assert asked.core.flops[0] == 4 * 128 * 128 * 128 * 512 / (tp * cp)


def test_stages_of_an_encoder_decoder_are_refused_with_a_reason() -> None:
    """A pipeline passes on tensors of one shape; the two sequences differ."""
    staged = Plan(pp=2, dp=64, global_batch_size=64, schedule="1f1b", layout="even")
    (mask,) = broken_rules(T5, CLUSTER, MEGATRON, PlanBatch.from_plans([staged]))
    assert reasons(mask) == ["cross-attention-needs-one-stage"]
