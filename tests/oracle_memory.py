"""Peak memory of every pipeline stage, restated with plain floats and loops.

Written from the equations alone, without the package's formulas, for dense transformers. It is slow
and literal on purpose: ``test_memory_oracle`` compares the package with it.

One rank of stage i holds S_i + max((1 + phi) D_i, T_i) + C0 bytes, where

    S_i   weights, gradients, master weights and moments, sharded as ZeRO says over Z = dp * cp
    D_i   F_i sum_layers(n A) + F_i n E_i + max(X_i, R_i + B_i) + G
    F_i   micro-batches in flight;  n = seq_length * micro_batch_size / cp tokens of each
    A     saved bytes a token of one layer (Korthikanti et al., arXiv:2205.05198, section 4)
    E_i   the embedding's output on the first stage
    X_i   logits and cross-entropy on the last stage
    R_i   one layer that full recomputation rebuilds;  B_i  the backward working set of one layer
    G     the gathered input of sequence parallelism and what its asynchronous collectives hold,
          keys and values of all-gather context parallelism;  T_i  the optimizer step's transient

With ZeRO 3 the loss and the backward pass each have their own whole parameters and gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Layer
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan


@dataclass
class StageMemory:
    """Bytes of one stage; ``total`` is the peak."""

    layers: int
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    total: float


def stage_memories(model: ModelSpec, framework: FrameworkSpec, plan: Plan) -> list[StageMemory]:
    """Every stage, first to last."""
    chunks = layers_of_chunks(model, plan)
    return [_stage_memory(model, framework, plan, i, chunks[i]) for i in range(plan.pp)]


def layers_of_chunks(model: ModelSpec, plan: Plan) -> list[list[list[Layer]]]:
    """[stage][virtual stage] -> its layers; virtual stage j of stage i is number j pp + i."""
    p, v = plan.pp, plan.vpp
    counts = [[0] * v for _ in range(p)]
    if plan.layout == "free":
        counts = [[plan.chunk_layers[j * p + i] for j in range(v)] for i in range(p)]
    elif plan.layout == "first-last":
        first, last = plan.first_stage_layers, plan.last_stage_layers
        rest = model.num_layers - first - last
        stages = p - (first > 0) - (last > 0)
        for i in range(p):
            held = rest // stages
            if i == 0 and first:
                held = first
            if i == p - 1 and last:
                held = last
            assert held % v == 0
            counts[i] = [held // v] * v
    else:
        embedding = plan.layout in ("embedding", "embedding-loss")
        loss = plan.layout in ("loss", "embedding-loss")
        slots = model.num_layers + embedding + loss
        assert slots % (p * v) == 0
        counts = [[slots // (p * v)] * v for _ in range(p)]
        counts[0][0] -= embedding
        counts[p - 1][v - 1] -= loss
    assert sum(map(sum, counts)) == model.num_layers

    remaining = list(model.layers)
    chunks: list[list[list[Layer]]] = [[[] for _ in range(v)] for _ in range(p)]
    for j in range(v):
        for i in range(p):
            chunks[i][j], remaining = remaining[: counts[i][j]], remaining[counts[i][j] :]
    return chunks


def in_flight(plan: Plan, stage: int) -> float:
    """Micro-batches whose activations stage ``stage`` (from 0) holds at its peak."""
    m, p, v = plan.num_micro_batches, plan.pp, plan.vpp
    if plan.schedule == "none":
        return 1.0
    if plan.schedule == "gpipe":
        return float(m)
    if plan.schedule == "1f1b":
        return float(min(p - stage, m))
    if plan.schedule == "interleaved-1f1b":
        return min((2 * (p - stage - 1) + (v - 1) * p + 1) / v, float(m))
    raise AssertionError(plan.schedule)


def layer_parameters(model: ModelSpec, layer: Layer, tp: int) -> float:
    """Parameters of one layer on one rank; norms and row-parallel biases are not sharded."""
    h, attention, mlp = model.hidden_size, layer.attention, layer.mlp
    q = attention.num_heads * attention.head_dim / tp
    # Above the number of key/value heads, each rank keeps one whole head.
    kv_heads = max(attention.num_query_groups / tp, 1.0)
    kv = kv_heads * attention.head_dim
    f = mlp.ffn_hidden_size / tp
    total = h * q + 2 * h * kv + q * h
    if attention.qkv_bias:
        total += q + 2 * kv
    if attention.output_bias:
        total += h
    if attention.qk_norm:
        total += 2 * attention.head_dim
    up = 2 if mlp.gated else 1
    total += up * h * f + f * h
    if mlp.bias:
        total += up * f + h
    norm = 2 * h if model.norm_bias else h
    return total + layer.num_norms * norm


def stage_parameters(model: ModelSpec, plan: Plan, stage: int, layers: list[Layer]) -> float:
    """Parameters of one rank of the stage, with embedding and head where they are."""
    h, t = model.hidden_size, plan.tp
    vocab = 128 * t * -(-model.vocab_size // (128 * t))
    norm = 2 * h if model.norm_bias else h
    total = 0.0
    for layer in layers:
        total += layer_parameters(model, layer, t)
    is_first, is_last = stage == 0, stage == plan.pp - 1
    if is_first:
        total += vocab * h / t
        if model.position_embedding == "learned":
            total += model.max_seq_length * h
        total += model.num_token_types * h
        if model.embedding_norm:
            total += norm
    if is_last:
        if not (model.tied_embeddings and plan.pp == 1):
            total += vocab * h / t
        if model.final_norm:
            total += norm
        if model.head_transform:
            total += h * h + h + norm
        if model.pooler:
            total += h * h + h
        if model.output_bias:
            total += vocab / t
    return total


def saved_bytes_per_token(
    model: ModelSpec, framework: FrameworkSpec, plan: Plan, layer: Layer
) -> float:
    """A: what one layer keeps for the backward pass without full recomputation."""
    h, t, facts = model.hidden_size, plan.tp, framework.memory
    attention = layer.attention
    sequence_parallel = plan.sequence_parallel and t > 1
    sigma = 1 / t if sequence_parallel else 1.0
    q = attention.num_heads * attention.head_dim / t
    kv = max(attention.num_query_groups / t, 1.0) * attention.head_dim
    heads = attention.num_heads / t

    again = plan.recompute_modules.split("+") if plan.recompute == "selective" else []
    total = 4 * layer.num_norms * h * sigma
    if "layernorm" in again:  # inputs alone
        total -= 2 * layer.num_norms * h * sigma
    if model.norm == "rmsnorm" and not framework.compute.fused_rmsnorm:
        total += 0 if plan.compile else facts.unfused_norm_bytes * h * sigma
    if model.hidden_dropout > 0:
        total += 2 * h * sigma
    total += 2 * (q + 2 * kv)
    total += 2 * q
    if framework.compute.flash_attention:
        total += 4 * heads
    elif "core_attn" not in again:
        score_bytes = facts.score_bytes + (1 + 2 if model.attention_dropout > 0 else 0)
        total += score_bytes * heads * model.seq_length / plan.cp
    if sequence_parallel:
        total += facts.gathered_layer_bytes * h
    if "mlp" in again:
        return total
    per_unit = facts.mlp_bytes_gated if layer.mlp.gated else facts.mlp_bytes_plain
    if plan.compile and layer.mlp.gated and facts.mlp_bytes_gated_compiled:
        per_unit = facts.mlp_bytes_gated_compiled
    return total + per_unit * layer.mlp.ffn_hidden_size / t


def operators_kept_per_token(
    model: ModelSpec, framework: FrameworkSpec, plan: Plan, layer: Layer
) -> float:
    """The same where selective recompute keeps some products' outputs and rebuilds all else."""
    h, t, facts = model.hidden_size, plan.tp, framework.memory
    attention = layer.attention
    sigma = 1 / t if plan.sequence_parallel and t > 1 else 1.0
    q = attention.num_heads * attention.head_dim / t
    kv = max(attention.num_query_groups / t, 1.0) * attention.head_dim
    f = layer.mlp.ffn_hidden_size / t
    up = 2 * f if layer.mlp.gated else f
    outputs = q + 2 * kv + h + up + h
    kept = 2 * h * sigma + 2 * q + facts.selective_outputs_kept * 2 * outputs
    kept += 0 if plan.compile else facts.eager_hidden_bytes * h * sigma
    return min(kept, saved_bytes_per_token(model, framework, plan, layer))


def _stage_memory(
    model: ModelSpec,
    framework: FrameworkSpec,
    plan: Plan,
    stage: int,
    chunks: list[list[Layer]],
) -> StageMemory:
    facts = framework.memory
    h, t = model.hidden_size, plan.tp
    n = model.seq_length * plan.micro_batch_size / plan.cp
    sigma = 1 / t if plan.sequence_parallel and t > 1 else 1.0
    layers = [layer for chunk in chunks for layer in chunk]

    num_parameters = stage_parameters(model, plan, stage, layers)
    shards = plan.dp * plan.cp
    grad_bytes = facts.grad_bytes_fp32 if plan.grad_dtype == "fp32" else facts.grad_bytes_bf16
    parameters = facts.param_bytes * num_parameters / (shards if plan.zero >= 3 else 1)
    whole_at_loss = whole_in_backward = 0.0
    if plan.zero == 3 and shards > plan.dp_replicate:
        assert plan.pp == 1
        each = sum(layer_parameters(model, layer, t) for layer in layers) / len(layers)
        edges = num_parameters - len(layers) * each
        vocab = 128 * t * -(-model.vocab_size // (128 * t))
        head_gradient = vocab * h / t
        whole_in_backward = 2 * ((facts.param_gather_buffer - 2) * each + head_gradient)
        if plan.reshard_after_forward:
            whole_at_loss = 2 * (2 * each + edges)
            whole_in_backward += whole_at_loss
        else:
            parameters += 2 * num_parameters
    gradients = grad_bytes * num_parameters / (shards if plan.zero >= 2 else 1)
    optimizer = facts.master_bytes + facts.optimizer_bytes
    optimizer *= num_parameters / (shards if plan.zero >= 1 else 1)

    kept = 0.0
    rebuilt = 0.0
    restored = 0.0
    working = 0.0
    for chunk in chunks:
        for position, layer in enumerate(chunk):
            saved = saved_bytes_per_token(model, framework, plan, layer)
            if plan.recompute == "selective" and facts.selective_outputs_kept:
                everything = saved
                saved = operators_kept_per_token(model, framework, plan, layer)
                restored = n * (everything - saved)
            limit = plan.recompute_num_layers or len(chunk)
            if plan.recompute == "full" and position < limit:
                kept += 2 * h * sigma
                rebuilt = max(rebuilt, n * saved)
            else:
                kept += saved
            working = max(working, facts.backward_working_set * n * saved)
    flights = in_flight(plan, stage)
    activations = flights * kept * n
    if stage == 0:  # the embedding's output, and its dropout's mask (arXiv:2205.05198, section 4.3)
        embedding_bytes = 3 if model.hidden_dropout > 0 else 2
        activations += flights * n * embedding_bytes * h * sigma

    loss = 0.0
    if stage == plan.pp - 1:
        vocab = 128 * t * -(-model.vocab_size // (128 * t))
        x = facts.logits_bytes_fused if plan.cross_entropy_fusion else facts.logits_bytes
        if t > 1 and facts.logits_bytes_sharded:
            x = facts.logits_bytes_sharded
        loss = x * n * vocab / (1 if facts.logits_gathered else t)
    gathered = 0.0
    if plan.sequence_parallel and t > 1:
        ahead = 2 if plan.num_micro_batches > 1 else 1
        gathered = (4 + ahead * facts.asynchronous_hidden_bytes) * h * n
    if plan.cp > 1 and plan.cp_comm_type == "all-gather":
        # keys, values and their gradients of the whole sequence, 16 bits each
        columns = max(layer.attention.kv_width for layer, _ in model.layer_kinds)
        gathered += 8 * columns / t * plan.micro_batch_size * model.seq_length

    if facts.stage_buffers_kept:
        m, sent = plan.num_micro_batches, 2 * h * n * sigma
        if stage > 0:  # inputs of all micro-batches; those in flight are saved tensors
            gathered += plan.vpp * sent * (m - flights)
        if stage < plan.pp - 1:  # gradients of all, outputs of those in flight
            gathered += plan.vpp * sent * (m + flights)
    transient = rebuilt + restored + working
    if loss + whole_at_loss > transient + whole_in_backward:
        dynamic, whole = activations + loss + gathered, whole_at_loss
    else:
        dynamic, whole = activations + transient + gathered, whole_in_backward
    owned = num_parameters / (shards if plan.zero >= 1 else 1)
    step = facts.optimizer_step_bytes_per_param * num_parameters if plan.zero == 1 else 0.0
    step += facts.optimizer_step_bytes_per_owned_param * owned
    peak = max((1 + facts.fragmentation) * dynamic, step)
    states = parameters + gradients + optimizer
    total = states + peak + whole + facts.constant_bytes
    return StageMemory(len(layers), parameters, gradients, optimizer, activations, total)
