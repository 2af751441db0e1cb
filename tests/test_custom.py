"""Layers that list their own operators: the same numbers as layers of a known kind, published
parameter and operation counts, and one line for every mistake.
"""

from dataclasses import replace

import numpy as np
import pytest

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.costs import CostTable
from parallelsim.custom_layers import custom_from_file
from parallelsim.errors import ExportError, SpecError
from parallelsim.exporters.megatron import export_megatron
from parallelsim.expressions import MAX_CHARACTERS, Expression
from parallelsim.huggingface import model_from_config
from parallelsim.layers import MLP, Attention, Block, Layer
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.schemas_build import build_model
from parallelsim.schemas_model import checked_model
from parallelsim.simulate import simulate
from parallelsim.yaml_io import parse_yaml

CLUSTER = load_cluster("hgx-h100", num_gpus=64)
TORCHTITAN = load_framework("torchtitan")
HEADS, GROUPS, DIM, FFN, HIDDEN = 32, 8, 128, 14336, 4096
DENSE = Layer(Attention(HEADS, GROUPS, DIM), MLP(FFN, gated=True))
WIDTH = f"{(HEADS + 2 * GROUPS) * DIM} / tp"
# Spelled out from docs/equations.md for compiled torchtitan: no gathered inputs or unfused norms:
# norm and residual 10 and 11 bytes a hidden unit, 4 of them kept; RoPE 4 bytes of queries and keys;
# flash attention keeps Q, K, V, the output and a log-sum-exp.
SPELLED_OUT = [
    {"name": "qkv", "kind": "gemm", "m": "tokens", "n": WIDTH, "k": "hidden"},
    {
        "name": "rope",
        "kind": "memory-bound",
        "forward_bytes": f"4 * tokens * {(HEADS + GROUPS) * DIM} / tp",
        "backward_bytes": f"4 * tokens * {(HEADS + GROUPS) * DIM} / tp",
    },
    {
        "name": "core",
        "kind": "attention",
        "num_heads": HEADS,
        "num_query_groups": GROUPS,
        "head_dim": DIM,
        "saved_bytes": f"tokens * (4 * {(HEADS + GROUPS) * DIM} + 4 * {HEADS}) / tp",
    },
    {
        "name": "projection",
        "kind": "gemm",
        "m": "tokens",
        "n": "hidden",
        "k": f"{HEADS * DIM} / tp",
    },
    {
        "name": "norms and residuals",
        "kind": "memory-bound",
        "forward_bytes": "2 * 10 * tokens * hidden / sp",
        "backward_bytes": "2 * 11 * tokens * hidden / sp",
        "parameters": "2 * hidden",
        "saved_bytes": "2 * 4 * tokens * hidden / sp",
    },
    {"name": "attention's collectives", "kind": "tensor-parallel-region"},
    {"name": "up", "kind": "gemm", "m": "tokens", "n": f"2 * {FFN} / tp", "k": "hidden"},
    {
        "name": "swiglu",
        "kind": "memory-bound",
        "forward_bytes": f"6 * tokens * {FFN} / tp",
        "backward_bytes": f"10 * tokens * {FFN} / tp",
        "saved_bytes": f"6 * tokens * {FFN} / tp",
    },
    {"name": "down", "kind": "gemm", "m": "tokens", "n": "hidden", "k": f"{FFN} / tp"},
    {"name": "mlp's collectives", "kind": "tensor-parallel-region"},
]


def model_of(layer: Layer) -> ModelSpec:
    """Llama-3-8B's frame around 32 of the layer."""
    return replace(load_model("llama3-8b"), blocks=(Block(32, (layer,)),))


PLANS = PlanBatch.from_plans(
    [
        Plan(dp=64, compile=True, global_batch_size=128, zero=3),
        Plan(tp=2, cp=2, dp=16, compile=True, global_batch_size=64, zero=3, micro_batch_size=2),
        Plan(tp=8, dp=8, compile=True, global_batch_size=64, zero=3, sequence_parallel=True),
        Plan(cp=4, dp=16, compile=True, global_batch_size=16, zero=3, cp_comm_type="all-gather"),
        Plan(
            tp=4,
            pp=4,
            dp=4,
            compile=True,
            global_batch_size=64,
            schedule="1f1b",
            recompute="full",
        ),
    ]
)


def test_a_dense_layer_spelled_out_has_the_dense_layers_numbers() -> None:
    custom = model_of(Layer(custom=custom_from_file(SPELLED_OUT), num_norms=0))
    dense = model_of(DENSE)
    assert custom.num_parameters == dense.num_parameters == 8_030_261_248
    assert custom.flops_per_sequence() == pytest.approx(dense.flops_per_sequence(), rel=1e-12)
    tables = [CostTable(model, CLUSTER, TORCHTITAN, PLANS) for model in (custom, dense)]
    ours, theirs = (table.layer for table in tables)
    # Launches differ: ten operators are not the kernels of a dense layer.
    for name in (
        *("gemm_s", "attention_s", "memory_bound_s", "tp_exposed_s", "cp_exposed_s"),
        *("weight_s", "saved_bytes", "parameters"),
    ):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), 1e-9, err_msg=name)
    runs = [simulate(model, CLUSTER, TORCHTITAN, PLANS) for model in (custom, dense)]
    np.testing.assert_allclose(runs[0].peak_memory_bytes, runs[1].peak_memory_bytes, 1e-9)


@pytest.mark.parametrize(
    ("name", "giga_macs"),
    [("resnet-50", 4.089), ("vit-l-16", 61.555), ("vit-h-14", 167.295), ("dit-xl-2", 118.64)],
)
def test_operations_of_an_image_are_the_published_ones(name: str, giga_macs: float) -> None:
    """torchvision's ``_ops`` of the three classifiers; arXiv:2212.09748 table 1 for DiT, which also
    counts its small element-wise operations.
    """
    forward = load_model(name).flops_per_sequence() / 3 / 2
    assert forward == pytest.approx(giga_macs * 1e9, rel=2e-4)


@pytest.mark.parametrize(
    ("cluster", "framework", "precision", "measured"),
    [("dgx-a100-80gb", "torchtitan", "bf16", 16_621), ("dgx-v100", "deepspeed", "fp16", 8_322)],
)
def test_resnet_trains_within_a_quarter_of_the_published_throughput(
    cluster: str, framework: str, precision: str, measured: int
) -> None:
    """NVIDIA/DeepLearningExamples PyTorch/Classification/ConvNets/resnet50v1.5: 8 GPUs, 256 images
    each, mixed precision. Nothing here was fitted to image models, nor to these programs.
    """
    node, software = load_cluster(cluster, num_gpus=8), load_framework(framework)
    zero = software.capabilities.zero_stages[0]
    plan = Plan(dp=8, global_batch_size=2048, micro_batch_size=256, zero=zero, precision=precision)
    run = simulate(load_model("resnet-50"), node, software, plan)
    assert run.obeys_rules[0]
    assert 8 * run.tokens_per_s_per_gpu[0] == pytest.approx(measured, rel=0.25)


def test_statistics_synchronized_over_replicas_cost_time() -> None:
    sync = {"name": "statistics", "kind": "all-reduce", "bytes": "8 * hidden", "group": "dp"}
    plain, synchronized = (
        model_of(Layer(custom=custom_from_file([*SPELLED_OUT, *more]), num_norms=0))
        for more in ([], [sync])
    )
    plan = Plan(dp=64, global_batch_size=64, zero=3)
    runs = [simulate(model, CLUSTER, TORCHTITAN, plan) for model in (plain, synchronized)]
    assert runs[1].time.tp_exposed_s[0] > runs[0].time.tp_exposed_s[0] == 0


def test_a_convolution_reads_an_input_once() -> None:
    """One of kernel 3 moves far less than the product of its windows, and computes as much."""
    common = {"samples": 1, "height": 56, "width": 56, "in_channels": 8, "out_channels": 8}
    conv = {k: v for k, v in common.items() if k != "samples"} | {"kernel_size": 3}
    operators = [{"name": "conv", "kind": "convolution", **conv}]
    gemm = [{"name": "gemm", "kind": "gemm", "m": "samples * 3136", "n": 8, "k": 72}]
    costs = []
    for each in (operators, gemm):
        layer = Layer(custom=custom_from_file(each), num_norms=0)
        model = replace(model_of(layer), seq_length=1)
        plans = PlanBatch.from_plans([Plan(dp=64, global_batch_size=8192, micro_batch_size=128)])
        assert model.layer_flops(layer) == 3 * 2 * 3136 * 8 * 72
        costs.append(CostTable(model, CLUSTER, TORCHTITAN, plans).layer.gemm_s[0])
    assert costs[0] < costs[1]


MISTAKES = {
    "kind": ({"kind": "fourier"}, "unknown kind 'fourier'"),
    "negative": ({"kind": "memory-bound", "forward_bytes": -1, "backward_bytes": 0}, "negative"),
    "negative flops": ({"m": "0 - tokens"}, "'conv1': m '0 - tokens' is negative"),
    "no side": ({"k": 0}, "operator 'conv1': k '0' is 0: leave the operator out"),
    "symbol": ({"m": "tokenz"}, "operator 'conv1': m 'tokenz': unknown symbol 'tokenz'"),
    "zero": ({"m": "tokens / (tp - tp)"}, "divides by zero"),
    "attribute": ({"m": "tokens.real"}, "only + - * / // ( ) ceil, max and min"),
    "call": ({"m": "__import__('os')"}, "expected ceil(a), max(a, b) or min(a, b)"),
    "power": ({"m": "9 ** 9"}, "only + - * / // ( ) ceil, max and min"),
    "text": ({"m": "tokens +"}, "is no arithmetic expression"),
    "long": ({"m": "+".join(["1"] * MAX_CHARACTERS)}, f"at most {MAX_CHARACTERS} characters"),
    "deep": ({"m": "(" * 0 + "-" * 30 + "1"}, "nested deeper than 20"),
    "infinite": ({"m": "1e400"}, "is no number of a size"),
    "parameters": ({"n": "tokens"}, "n depends on tokens: a number of parameters cannot"),
    "missing": ({"k": None}, "gemm needs k"),
    "other": ({"stride": 2}, "gemm has no stride"),
    "group": ({"group": "ep"}, "unknown group 'ep'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_operator(name: str) -> None:
    changes, words = MISTAKES[name]
    operator = {"name": "conv1", "kind": "gemm", "m": "tokens", "n": 8, "k": 8}
    if "kind" in changes:
        operator = {"name": "conv1"}
    given = {k: v for k, v in {**operator, **changes}.items() if v is not None}
    with pytest.raises(SpecError) as raised:
        model_of(Layer(custom=custom_from_file([given]), num_norms=0))
    text = str(raised.value)
    assert words in text
    assert "'conv1'" in text
    assert "\n" not in text


def test_a_size_that_some_plan_makes_negative_is_an_error_of_that_plan() -> None:
    operators = [{"name": "odd", "kind": "gemm", "m": "tokens", "n": "2 - tp", "k": "hidden"}]
    model = model_of(Layer(custom=custom_from_file(operators), num_norms=0))
    with pytest.raises(SpecError, match=r"operator 'odd': n '2 - tp' is negative"):
        simulate(model, CLUSTER, TORCHTITAN, Plan(tp=4, dp=16, global_batch_size=16))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("tokens * 3 * hidden / tp", 3 * 8192 * 4096 / 2),
        ("ceil(seq_length / 3) // 2", 1365),
        ("max(tp, cp) - min(sp, 1) + -1 * -2", 5),
        ("7", 7),
    ],
)
def test_expressions_are_arithmetic(text: str, value: float) -> None:
    symbols = {"tokens": 8192, "hidden": 4096, "tp": 2, "cp": 4, "sp": 1, "seq_length": 8192}
    arrays = {name: np.array([float(number)] * 3) for name, number in symbols.items()}
    np.testing.assert_array_equal(Expression(text).value(arrays), np.full(3, float(value)))


@pytest.mark.parametrize("name", ["resnet-50", "vit-l-16", "dit-xl-2"])
def test_megatron_refuses_custom_operators_in_one_line(name: str) -> None:
    model, megatron = load_model(name), load_framework("megatron-core")
    plan = Plan(dp=64, global_batch_size=64)
    with pytest.raises(ExportError) as raised:
        export_megatron(model, CLUSTER, megatron, plan)
    assert "\n" not in str(raised.value)


def test_the_vit_configuration_is_the_catalogues_model() -> None:
    config = {
        "model_type": "vit",
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "intermediate_size": 4096,
        "image_size": 224,
        "patch_size": 16,
        "num_labels": 1000,
    }
    ours, theirs = model_from_config(config, "vit"), load_model("vit-l-16")
    assert ours.num_parameters == theirs.num_parameters
    assert ours.flops_per_sequence() == theirs.flops_per_sequence()


def test_a_model_without_vocabulary_needs_both_edges() -> None:
    model = load_model("vit-l-16")
    with pytest.raises(SpecError, match="needs output_operators"):
        replace(model, output_operators=None)
    with pytest.raises(SpecError, match="vocab_size"):
        replace(model, input_operators=None, output_operators=None)


DOCUMENTED = """
name: mine
architecture:
  source: own design
  hidden_size: 1024
  vocab_size: 50304
  max_seq_length: 4096
  position_embedding: none
  norm: rmsnorm
  tied_embeddings: true
  blocks:
    - repeat: 12
      layers:
        - mlp: {ffn_hidden_size: 4096, gated: true, activation: silu}
          operators:
            - {name: mix in, kind: gemm, m: tokens, n: 2 * hidden / tp, k: hidden,
               saved_bytes: 2 * tokens * hidden / sp}
            - {name: gate, kind: memory-bound, forward_bytes: 6 * tokens * hidden / tp,
               backward_bytes: 10 * tokens * hidden / tp, saved_bytes: 4 * tokens * hidden / tp}
            - {name: mix out, kind: gemm, m: tokens, n: hidden, k: hidden / tp}
            - {name: exchange, kind: tensor-parallel-region}
training:
  source: own plan
  seq_length: 4096
  global_batch_tokens: 1048576
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("m: tokens", "m: [1]", "operators[0].m: expected a number, or arithmetic in symbols"),
        ("kind: gemm", "kind: gem", "operator 'mix in': unknown kind 'gem'"),
        ("m: tokens", "m: tokens, o: 1", "operators[0].o: unknown key"),
        ("k: hidden", "k: hiden", "operator 'mix in': k 'hiden': unknown symbol 'hiden'"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(right: str, wrong: str, message: str) -> None:
    data = parse_yaml(DOCUMENTED.replace(right, wrong, 1), "mine.yaml")
    with pytest.raises(SpecError) as raised:
        build_model(checked_model(data, "mine.yaml"), "mine.yaml")
    assert message in str(raised.value)
    assert str(raised.value).startswith("mine.yaml: ")


def test_a_users_own_layer_is_read_from_yaml() -> None:
    model = build_model(checked_model(parse_yaml(DOCUMENTED, "mine.yaml"), "mine.yaml"), "mine")
    each = 3 * 1024 * 4096 + 3 * 1024 * 1024 + 1024
    assert model.num_parameters == 12 * each + 50304 * 1024 + 1024
    run = simulate(model, CLUSTER, TORCHTITAN, Plan(tp=2, dp=32, global_batch_size=64, zero=3))
    assert run.obeys_rules[0]
    assert 0 < run.mfu[0] < 1
