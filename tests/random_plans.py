"""Random plans for the tests: reproducible, of exactly the cluster's size, obeying every rule."""

import random
from collections.abc import Iterator

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import RECOMPUTE_MODULES, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import obeys_rules


def random_cut(num_layers: int, num_chunks: int, rng: random.Random) -> tuple[int, ...]:
    """About equal chunks, between which a few layers were moved; ends may be empty."""
    each, left = divmod(num_layers, num_chunks)
    chunks = [each + (c < left) for c in range(num_chunks)]
    for _ in range(rng.randint(0, 6)):
        giver, taker = rng.randrange(num_chunks), rng.randrange(num_chunks)
        moved = rng.randint(0, min(chunks[giver], 2))
        chunks[giver] -= moved
        chunks[taker] += moved
    return tuple(chunks)


def random_plan(model: ModelSpec, num_gpus: int, rng: random.Random) -> Plan:
    """A plan of exactly ``num_gpus`` GPUs; it may break rules."""
    powers = [2**k for k in range(num_gpus.bit_length())]
    tp = rng.choice([t for t in powers if t <= 8])
    cp = rng.choice([1, 1, 1, 2, 4])
    layers = model.num_layers
    slots = {"even": 0, "embedding": 1, "loss": 1, "embedding-loss": 2}
    layouts = ["even", "even", "embedding", "loss", "embedding-loss", "first-last", "free"]
    layout = rng.choice(layouts)
    pp = rng.choice([p for p in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16) if num_gpus % p == 0])
    per_stage = (layers + slots.get(layout, 0)) // pp
    vpp = rng.choice([1, 1, *[v for v in (2, 3, 4, 5, 8) if pp > 1 and per_stage % v == 0]])
    schedule = "none" if pp == 1 else "interleaved-1f1b" if vpp > 1 else "1f1b"
    if schedule == "1f1b" and rng.random() < 0.2:
        schedule = "gpipe"
    dp = max(1, num_gpus // (tp * cp * pp))
    micro_batch_size = rng.choice([1, 1, 2, 4])
    first = last = 0
    if layout == "first-last" and pp > 2:
        first = rng.randint(1, max(1, layers // pp))
        last = rng.randint(1, max(1, layers // pp))
    recompute = rng.choice(["none", "none", "selective", "full", "full"])
    return Plan(
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        dp=dp,
        micro_batch_size=micro_batch_size,
        global_batch_size=dp * micro_batch_size * rng.choice([1, 2, 4, 8, 16, 32, 48]),
        schedule=schedule,
        layout=layout if pp > 1 else "even",
        first_stage_layers=first,
        last_stage_layers=last,
        chunk_layers=random_cut(layers, pp * vpp, rng) if layout == "free" and pp > 1 else (),
        sequence_parallel=tp > 1 and rng.random() < 0.7,
        zero=rng.choice([0, 1, 1, 2, 3]),
        recompute=recompute,
        recompute_modules=rng.choice(RECOMPUTE_MODULES)
        if recompute == "selective"
        else RECOMPUTE_MODULES[0],
        recompute_num_layers=rng.choice([0, 1, 2, 3, 5]) if recompute == "full" else 0,
        precision=rng.choice(["bf16", "bf16", "fp16"]),
        grad_dtype=rng.choice(["fp32", "fp32", "bf16"]),
        cp_comm_type=rng.choice(["p2p", "all-gather"]) if cp > 1 else "p2p",
        cross_entropy_fusion=rng.random() < 0.3,
    )


def valid_plans(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, count: int, seed: str
) -> Iterator[Plan]:
    """``count`` random plans that break no rule, from batches of candidates."""
    rng = random.Random(seed)
    found: dict[Plan, None] = {}
    for _ in range(60):
        candidates = [random_plan(model, cluster.num_gpus, rng) for _ in range(400)]
        obeys = obeys_rules(model, cluster, framework, PlanBatch.from_plans(candidates))
        found |= dict.fromkeys(p for p, good in zip(candidates, obeys, strict=True) if good)
        if len(found) >= count:
            yield from list(found)[:count]
            return
    raise AssertionError(f"only {len(found)} of {count} random plans obey the rules")
