"""Sharded data parallelism, compilers, optimizers, adapters: what holds for any constants."""

from dataclasses import fields, replace

import numpy as np
import pytest

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cluster import ClusterSpec
from parallelsim.collectives import Network
from parallelsim.lora import LoRA
from parallelsim.plan import OPTIMIZERS, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import explain, obeys_rules
from parallelsim.sharded import added_time
from parallelsim.simulate import Simulation, simulate

OVERLAPPED = {"overlap_grad_reduce": True, "overlap_param_gather": True}
ROUNDING = 1e-12


def of(
    plans: list[Plan], *, gpus: int, model: str = "llama3-8b", framework: str = "torchtitan"
) -> Simulation:
    cluster = load_cluster("hgx-h100", num_gpus=gpus)
    known = load_framework(framework)
    batch = PlanBatch.from_plans(plans)
    assert obeys_rules(load_model(model), cluster, known, batch).all()
    return simulate(load_model(model), cluster, known, batch)


def sharded(dp: int, **fields: object) -> Plan:
    settings = {"dp": dp, "global_batch_size": 4 * dp, "zero": 3, **OVERLAPPED, **fields}
    return Plan(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_sharding_over_one_gpu_equals_none(model: str) -> None:
    cluster, framework = load_cluster("hgx-h100", num_gpus=1), load_framework("torchtitan")
    plans = [Plan(global_batch_size=4, zero=zero) for zero in (0, 3)]
    result = simulate(load_model(model), cluster, framework, PlanBatch.from_plans(plans))
    assert result.step_time_s[0] == pytest.approx(result.step_time_s[1], rel=ROUNDING)
    assert result.peak_memory_bytes[0] == pytest.approx(result.peak_memory_bytes[1], rel=ROUNDING)


def test_one_replica_of_a_hybrid_group_is_plain_sharding_and_all_replicas_the_most_memory() -> None:
    plans = [sharded(64, dp_replicate=n) for n in (1, 2, 4, 8, 16, 32)]
    result = of([sharded(64), *plans], gpus=64)
    assert result.step_time_s[0] == result.step_time_s[1]
    states = sum(
        getattr(result.memory, f"{name}_bytes") for name in ("gradients", "optimizer", "parameters")
    )
    assert (np.diff(states[1:]) > 0).all()


def test_replicas_of_the_optimizer_gather_inside_a_node_and_own_more() -> None:
    model, framework = load_model("llama2-7b"), load_framework("internevo")
    cluster = load_cluster("dgx-a100-80gb", num_gpus=64)
    plans = [sharded(64, zero=1, dp_replicate=n) for n in (1, 8)]
    flat, inside = (simulate(model, cluster, framework, [plan]) for plan in plans)
    assert inside.time.dp_exposed_s[0] < flat.time.dp_exposed_s[0]
    assert inside.memory.optimizer_bytes[0] == pytest.approx(8 * flat.memory.optimizer_bytes[0])
    whole = simulate(model, cluster, framework, [replace(plans[0], zero=0)])
    assert flat.time.dp_exposed_s[0] > whole.time.dp_exposed_s[0]  # InternEvo sums everything


@pytest.mark.parametrize("gpus", [16, 64, 256])
@pytest.mark.parametrize("zero", [0, 3])
def test_overlap_is_never_worse_than_none(gpus: int, zero: int) -> None:
    plans = [
        sharded(gpus, zero=zero, overlap_grad_reduce=reduce, overlap_param_gather=gather)
        for reduce, gather in ((False, False), (True, False), (True, True))
        if zero or not gather
    ]
    times = of(plans, gpus=gpus).step_time_s
    assert (np.diff(times) <= ROUNDING * times[1:]).all()


def test_overlapped_traffic_costs_at_least_its_contention_and_at_most_itself() -> None:
    compute = np.repeat([1.0, 2.0, 5.0], 4)
    hidden = np.tile([0.0, 0.5, 2.0, 9.0], 3)
    added = added_time(compute, hidden, np.zeros(12), 0.12)
    assert (added <= hidden + ROUNDING).all()
    assert (added >= 0.12 * np.minimum(hidden, compute) - ROUNDING).all()
    assert (added >= hidden - compute - ROUNDING).all()


def test_more_ranks_never_hold_more_states() -> None:
    held = []
    for gpus in (8, 16, 64, 256):
        memory = of([sharded(gpus, micro_batch_size=1)], gpus=gpus).memory
        held.append(memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes)
    assert (np.diff(np.concatenate(held)) < 0).all()


def test_kept_parameters_save_a_gather_and_cost_the_model_in_16_bits() -> None:
    model = load_model("llama3-8b")
    result = of([sharded(64), sharded(64, reshard_after_forward=False)], gpus=64)
    assert result.step_time_s[1] <= result.step_time_s[0]
    added = result.memory.total_bytes[1] - result.memory.total_bytes[0]
    assert 1.6 * model.num_parameters < added < 2 * model.num_parameters


def test_stages_gather_and_scatter_once_a_step_and_keep_both_between() -> None:
    model = load_model("llama3-8b")
    staged = {"pp": 4, "schedule": "1f1b", "reshard_after_forward": False}
    plans = [sharded(16, **{**staged, "global_batch_size": 16 * m}) for m in (4, 8)]
    alone = sharded(16, pp=4, schedule="1f1b", zero=0, overlap_param_gather=False)
    result = of([*plans, alone], gpus=64)
    assert result.time.dp_exposed_s[0] == pytest.approx(result.time.dp_exposed_s[1])
    assert result.step_time_s[0] < 2 * result.step_time_s[2]
    table = model.vocab_size * model.hidden_size
    layer = (model.num_parameters - 2 * table) / 32
    held = 8 * layer + table  # of the first or the last stage
    memory = result.memory
    assert memory.optimizer_bytes[0] == pytest.approx(8 * held / 16, rel=0.01)
    assert memory.gradients_bytes[0] == pytest.approx((4 / 16 + 4) * held, rel=0.01)
    assert memory.parameters_bytes[0] == pytest.approx((4 / 16 + 2) * held, rel=0.01)
    scattered = memory.working_bytes[0] - memory.working_bytes[2]
    assert scattered == pytest.approx((2 + 4) * layer, rel=0.01)


@pytest.mark.parametrize(
    ("framework", "fields", "words"),
    [
        ("torchtitan", {"zero": 3}, "use zero=3 with reshard_after_forward=false"),
        ("deepspeed", {"zero": 2}, "which deepspeed does not do in a pipeline (pp=4)"),
        ("megatron-core", {"zero": 3}, "which megatron-core does not do in a pipeline (pp=4)"),
    ],
)
def test_software_that_shards_no_stages_says_so(
    framework: str, fields: dict[str, object], words: str
) -> None:
    plan = sharded(2, pp=4, schedule="1f1b", **fields)
    cluster = load_cluster("hgx-h100", num_gpus=8)
    (found,) = explain(load_model("llama3-8b"), cluster, load_framework(framework), plan)
    assert words in found


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_compiler_never_slows_a_step_nor_adds_memory(recompute: str) -> None:
    plans = [sharded(8, recompute=recompute, compile=on) for on in (False, True)]
    result = of(plans, gpus=8)
    assert result.step_time_s[1] < result.step_time_s[0]
    assert result.peak_memory_bytes[1] <= result.peak_memory_bytes[0]


def test_recompute_of_operators_lies_between_none_and_full() -> None:
    result = of([sharded(64, recompute=kind) for kind in ("none", "selective", "full")], gpus=64)
    assert (np.diff(result.step_time_s) > 0).all()
    assert (np.diff(result.memory.activations_bytes) < 0).all()


def test_optimizers_keep_their_bytes() -> None:
    model = load_model("llama3-8b")
    cluster, framework = load_cluster("hgx-h100", num_gpus=8), load_framework("torchtitan")
    plans = PlanBatch.from_plans([sharded(8, optimizer=name) for name in OPTIMIZERS])
    result = simulate(model, cluster, framework, plans)
    held = dict(zip(OPTIMIZERS, result.memory.optimizer_bytes * 8, strict=True))
    n, edges = model.num_parameters, 2 * model.vocab_size * model.hidden_size
    assert held["adam"] == pytest.approx(8 * n)
    assert held["adam-bf16"] == pytest.approx(4 * n)
    assert held["adam-8bit"] == pytest.approx(2 * n * (1 + 4 / 256))
    assert held["sgd"] == pytest.approx(4 * n)
    assert held["muon"] == pytest.approx(4 * n + 4 * (edges + model.hidden_size))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dp_replicate": 3}, "dp_replicate=3 does not divide dp=8; use a divisor"),
        ({"dp_replicate": 2, "zero": 0}, "got zero=0; use zero=3 or dp_replicate=1"),
        ({"reshard_after_forward": False, "zero": 0}, "off needs zero=3, got zero=0"),
        ({"optimizer": "sgd"}, "does not have the optimizer sgd; it has adam"),
    ],
)
def test_what_cannot_run_is_refused_in_words(fields: dict[str, object], words: str) -> None:
    plan = sharded(8, **fields)
    inputs = (
        load_model("llama3-8b"),
        load_cluster("hgx-h100", num_gpus=8),
        load_framework("torchtitan"),
    )
    found = explain(*inputs, replace(plan, overlap_param_gather=plan.zero > 0))
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(
    "fields", [{"compile": True}, {"dp_replicate": 2, "zero": 3}, {"reshard_after_forward": False}]
)
def test_software_without_a_feature_refuses_it(fields: dict[str, object]) -> None:
    plan = Plan(dp=8, global_batch_size=8, **fields)  # type: ignore[arg-type]
    cluster = load_cluster("hgx-h100", num_gpus=8)
    found = explain(load_model("llama3-8b"), cluster, load_framework("megatron-lm-2022"), plan)
    assert any("does not have" in text for text in found)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_offload_trades_memory_for_at_most_its_transfers(recompute: str) -> None:
    plans = [
        sharded(8, zero=1, recompute=recompute, activation_offload_pct=pct)
        for pct in (0, 25, 50, 100)
    ]
    result = of(plans, gpus=8, framework="megatron-core")
    assert (np.diff(result.peak_memory_bytes) <= 0).all()
    assert result.peak_memory_bytes[-1] < result.peak_memory_bytes[0]
    assert (np.diff(result.step_time_s) >= 0).all()
    rate = load_cluster("hgx-h100").accelerator.host_bytes_per_s
    assert rate is not None
    both_ways = 2 * 4 * result.memory.activations_bytes[0] / rate
    assert result.step_time_s[-1] - result.step_time_s[0] <= 1.1 * both_ways


def test_an_offloaded_optimizer_leaves_its_bytes_and_steps_at_the_rate_of_the_host() -> None:
    plans = [sharded(8, zero=1, optimizer_offload_pct=pct) for pct in (0, 25, 50, 100)]
    result = of(plans, gpus=8, framework="megatron-core")
    n, cluster = load_model("llama3-8b").num_parameters, load_cluster("hgx-h100")
    link, memory = cluster.accelerator.host_bytes_per_s, cluster.host_memory_bytes_per_s
    assert link is not None
    assert memory is not None
    shares = np.array([1, 0.75, 0.5, 0])
    assert result.memory.optimizer_bytes == pytest.approx(12 * n / 8 * shares)
    on_host = n / 8 * (1 - shares)
    seconds = 28 * on_host / (0.43 * memory / 8) + 2 * on_host / link
    assert result.time.optimizer_s[1:] == pytest.approx(seconds[1:])
    assert 0 < result.time.optimizer_s[0] < seconds[1]


def test_an_optimizer_on_the_host_needs_one_that_holds_it() -> None:
    plan = sharded(8, zero=1, optimizer_offload_pct=100)
    framework, cluster = load_framework("megatron-core"), load_cluster("hgx-h100")
    small = replace(cluster, host_memory_bytes=100 * 2**30)
    unknown = replace(cluster, host_memory_bytes=None)

    def reasons(known: ClusterSpec, asked: Plan) -> list[str]:
        return explain(load_model("llama3-8b"), known, framework, asked)

    assert not reasons(cluster, plan)
    assert "needs 120 GiB of host memory a node, hgx-h100 has 100" in reasons(small, plan)[0]
    assert "no host_memory is known of hgx-h100" in reasons(unknown, plan)[0]
    assert "got zero=1, optimizer=sgd" in reasons(cluster, replace(plan, optimizer="sgd"))[0]
    one = Plan(global_batch_size=1, optimizer_offload_pct=100)
    node = replace(cluster, num_gpus=1)
    assert not explain(load_model("llama3-8b"), node, framework, one)
    gathered = replace(plan, precision="fp8-current", fp8_param_gather=True)
    assert "needs precision fp8-delayed" in reasons(cluster, gathered)[0]


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan"])
def test_adapters_train_faster_in_less_memory_than_the_whole_model(framework: str) -> None:
    model = load_model("llama3-8b")
    adapted = replace(model, lora=LoRA(16, ("linear_qkv",)))
    cluster, known = load_cluster("hgx-h100", num_gpus=8), load_framework(framework)
    zero = 3 if framework == "torchtitan" else 1
    plans = PlanBatch.from_plans([sharded(8, zero=zero, grad_dtype="bf16")])
    whole, part = (simulate(m, cluster, known, plans) for m in (model, adapted))
    assert 0.6 < part.step_time_s[0] / whole.step_time_s[0] < 0.85
    assert part.time.gemm_s[0] < 0.72 * whole.time.gemm_s[0]
    assert part.time.optimizer_s[0] < 0.01 * whole.time.optimizer_s[0]
    assert part.memory.optimizer_bytes[0] == pytest.approx(
        whole.memory.optimizer_bytes[0] * adapted.num_trainable_parameters / model.num_parameters
    )
    assert part.memory.gradients_bytes[0] < 0.01 * whole.memory.gradients_bytes[0]


def test_frozen_weights_need_no_transposed_copies_in_fp8() -> None:
    """Casts of one GPU move 3 bytes an element where those of the whole model move 4."""
    model, cluster = load_model("llama3-8b"), load_cluster("hgx-h100", num_gpus=1)
    adapted = replace(model, lora=LoRA(16, ("linear_qkv",)))
    plans = [Plan(precision=name, global_batch_size=1) for name in ("bf16", "fp8-current")]
    known = load_framework("megatron-core")
    memory = [
        simulate(each, cluster, known, plans).time.memory_bound_s for each in (model, adapted)
    ]
    whole, part = (seconds[1] - seconds[0] for seconds in memory)
    assert part / whole == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("target", "user_buffers", "gathers"),
    [("linear_qkv", False, 0), ("linear_qkv", True, 1), ("linear_proj", False, 1)],
)
def test_adapters_gather_what_sequence_parallelism_splits(
    target: str, user_buffers: bool, gathers: int
) -> None:
    """The input beside a column-parallel matrix where its own gather keeps it, the output beside a
    row-parallel one; as many scattered backward."""
    plain = load_model("llama3-8b")
    adapted = replace(plain, lora=LoRA(16, (target,)))
    cluster, framework = load_cluster("hgx-h100", num_gpus=8), load_framework("megatron-core")
    plan = Plan(tp=8, sequence_parallel=True, tp_comm_overlap=user_buffers, global_batch_size=2)
    plans = PlanBatch.from_plans([plan])
    seconds = [simulate(m, cluster, framework, plans).time for m in (plain, adapted)]
    network = Network(cluster)
    tensor = np.array([2.0 * plain.seq_length * plain.hidden_size])
    group = network.group(np.array([8]), np.array([1]))
    moved = network.all_gather(tensor, group) + network.reduce_scatter(tensor, group)
    shown = framework.overlap.tp_exposed * moved[0] * 2 * plain.num_layers
    added = seconds[1].tp_exposed_s[0] - seconds[0].tp_exposed_s[0]
    assert added == pytest.approx(gathers * shown, rel=1e-9, abs=1e-9)


def test_one_plan_alone_gives_what_it_gives_in_a_batch() -> None:
    plans = [
        sharded(64, dp_replicate=4),
        sharded(64, zero=0, overlap_param_gather=False),
        sharded(64, compile=True, optimizer="adam", recompute="selective"),
        sharded(64, reshard_after_forward=False, recompute="full"),
    ]
    together = of(plans, gpus=64)
    for i, plan in enumerate(plans):
        alone = of([plan], gpus=64)
        for part in ("time", "memory"):
            whole, one = getattr(together, part), getattr(alone, part)
            for f in fields(whole):
                values = np.broadcast_to(getattr(whole, f.name), (len(plans),))
                assert values[i] == np.broadcast_to(getattr(one, f.name), (1,))[0], f.name
