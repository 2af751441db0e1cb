"""What free-text cells of a measurement say, as far as it changes a prediction.

Sources describe overlap, recompute and kernels as launch settings (``ub_tp_comm_overlap=true``) or
in a few words. Only settings that a plan or a framework has are read; all other words are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from parallelsim.framework import FrameworkSpec
from parallelsim.measured_names import PRECISION_NAMES, plain_name
from parallelsim.measurements import SWITCH_WORDS, Facts, RowError
from parallelsim.plan import GRAD_DTYPES, MODULES

FLASH_ATTENTION_1_EFFICIENCY = 0.577
"""FlashAttention-1 over FlashAttention-2 kernels in whole training runs on A100, fitted with the
rest (docs/accuracy_leave_out.md); the kernels alone 0.5 to 0.7 (arXiv:2307.08691)."""

_SWITCHES: Mapping[str, re.Pattern[str]] = {
    "tp_comm_overlap": re.compile(r"\b(?:ub_)?tp_comm_overlap\s*=\s*(true|false|1|0)\b", re.I),
    "overlap_grad_reduce": re.compile(
        r"\boverlap_grad_(?:sync|reduce)\s*=\s*(true|false|1|0)\b", re.I
    ),
    "overlap_param_gather": re.compile(
        r"\boverlap_param_(?:sync|gather)\s*=\s*(true|false|1|0)\b", re.I
    ),
    "ep_comm_overlap": re.compile(
        r"\boverlap_moe_expert_parallel_comm\s*=\s*(true|false|1|0)\b|(EP all-to-all overlap)", re.I
    ),
    "fp8_param_gather": re.compile(r"\bfp8_param(?:s|_gather)\s*=\s*(true|false|1|0)\b", re.I),
    "cuda_graphs": re.compile(
        r"\b(?:cuda_graph_impl|layer_cuda_graph|mcore_cuda_graph)\s*=\s*(\w+)", re.I
    ),
}
"""Launch settings that are switches of a plan."""
_DISPATCHERS: Mapping[str, re.Pattern[str]] = {
    "deepep": re.compile(r"\b(?:deepep|hybridep)\b", re.I),
    "all-to-all": re.compile(r"\b(?:alltoall|a2a dispatcher)\b", re.I),
    "all-gather": re.compile(r"\ballgather dispatcher\b", re.I),
}
_MODULES = re.compile(r"\brecompute_modules\s*=\s*\[([^\]]*)\]", re.I)
_TOKEN_DROP = re.compile(r"\btoken[ -]?drop\b", re.I)
_GRAPH_SCOPE = re.compile(r"\bcuda_graph_scope\s*=\s*\[([^\]]*)\]", re.I)
_OFF = ("false", "0", "none", "null")
_SELECTED_LAYERS = re.compile(r"\bselective layers?\b", re.I)
_SOME_BLOCKS = re.compile(r"\bfraction of (?:the )?blocks\b", re.I)
_SHARD_GROUP = re.compile(r"\b(?:shard (?:group|degree)\s*(?:=\s*)?|FSDP\s*=\s*)(\d+)", re.I)
_COMPILED = re.compile(r"\b(?:torch\.)?compiled?\b", re.I)
_ASYNC_TP = re.compile(r"\basync(?:hronous)? TP\b", re.I)
_MONTH = re.compile(r"(?<![\d.])(20\d\d)[-_/]?(0[1-9]|1[0-2])(?!\d)")
_NAMED = re.compile(r"selective \(([^)]*)\)|^([^(;]+?) recompute\b")
_MODULE_WORDS: Mapping[str, re.Pattern[str]] = {
    "core_attn": re.compile(r"attn|attention", re.I),
    "layernorm": re.compile(r"norm", re.I),
    "mla_up_proj": re.compile(r"up.proj", re.I),
    "mlp": re.compile(r"\bmlp\b(?! activation)", re.I),
    "moe_act": re.compile(r"\b(?:moe_)?act\b", re.I),
}
"""How sources name the modules that selective recompute runs again."""
_NUM_LAYERS = re.compile(r"\b(?:recompute|checkpoint)_num_layers\s*=\s*(\d+)", re.I)
_KERNEL = re.compile(r"\bkernel\s*=\s*([^;]*)", re.I)
_FP32_GRADIENTS = re.compile(r"\bfp32 grad", re.I)
_FUSED_LOSS = re.compile(r"\bfused cross-entropy\b", re.I)
_NO_OVERLAP = re.compile(r"none\b|(?:no|no overlap|false|off|0|disabled)\s*(?:$|[;,(.])", re.I)
_CLAUSE_ENDS = re.compile(r"[;,.()\n]|\bbut\b", re.I)
_DENIED_BEFORE = re.compile(
    r"\b(?:no|not|non|never|nor|neither|without|w/o|un|lacks?|instead of|rather than)\b|n't\b"
    r"|\bdisabl(?:e|es|ed|ing)\s+(?:the\s+)?$",
    re.I,
)
_DENIED_AFTER = re.compile(
    r"\w*(?:[\s=:]|\b(?:kernels?|loss|accumulation|reduction|is|was|are|were)\b)*"
    r"\b(?:off|disabled|false|none|not|unused|absent|(?:no|0)(?=\s*$))\b",
    re.I,
)
_RELEASE = re.compile(r"\bcontainer NeMo (\d\d)\.(\d\d)\b", re.I)
_ADAPTERS_A2A = re.compile(r"\blora_a2a\s*=\s*(?:1|true)\b", re.I)
_QUOTED_SETTING = re.compile(r"\bsettings?\.\w", re.I)
_SHARDS = re.compile(r"[fh]sdp|full_shard|shard_grad_op|hybrid|zero-?3|fully[ _-]sharded", re.I)
_OFFLOAD_LAYERS = re.compile(r"\bcpu_offloading_num_layers\s*=\s*(\d+)", re.I)
_OFFLOAD = re.compile(r"\bcpu_offloading\s*=\s*true\b", re.I)


SWITCH_COLUMNS = (*_SWITCHES, "cross_entropy_fusion", "compile")
"""Optional columns under the names of plan switches: they say it better than text."""
KERNEL_COLUMNS = ("fused_rmsnorm", "fused_softmax")
"""Optional columns under the names of framework facts."""


def stated_switches(facts: Facts) -> dict[str, bool]:
    """Plan switches that the cells state; an overlap of ``none`` turns every overlap off, a column
    of the switch's own name decides.
    """
    stated: dict[str, bool] = {}
    fused = states_fused_cross_entropy(facts)
    if fused is not None:
        stated["cross_entropy_fusion"] = fused
    if _states_no_overlap(facts):
        stated |= dict.fromkeys(
            ("tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather"), False
        )
    if any(_COMPILED.search(facts.text(cell)) for cell in ("overlap", "notes")):
        stated["compile"] = True
    if _ASYNC_TP.search(facts.text("overlap")):
        stated["tp_comm_overlap"] = True
    for cell in ("recompute_detail", "overlap"):
        for name, pattern in _SWITCHES.items():
            for match in pattern.finditer(facts.text(cell)):
                stated[name] = (match[1] or "true").lower() not in _OFF
    for name in SWITCH_COLUMNS:
        value = facts.switch(name)
        if value is not None:
            stated[name] = value
    scope = _GRAPH_SCOPE.search(facts.text("recompute_detail"))
    parts = re.findall(r"\w+", scope[1]) if scope else []
    if parts and all(part.startswith("moe_") for part in parts):  # bookkeeping alone
        stated["cuda_graphs"] = False
    return stated


def drops_tokens(facts: Facts) -> bool:
    """Experts take a fixed number of tokens, and drop or pad the rest: a capacity factor of 1."""
    return bool(_says(_TOKEN_DROP, facts.text("notes")))


def stated_recompute_layers(facts: Facts, num_layers: int) -> int:
    """Layers that full recompute covers in each virtual stage, 0 for all; half of all where whole
    layers are selected and no number is given (every second one, torchtitan's default).
    """
    match = _NUM_LAYERS.search(facts.text("recompute_detail"))
    if match:
        return int(match[1])
    return num_layers // 2 if _SELECTED_LAYERS.search(facts.text("recompute_detail")) else 0


def states_some_blocks(facts: Facts) -> bool:
    """A share of the blocks is recomputed, which one is not said."""
    return _SOME_BLOCKS.search(facts.text("recompute_detail")) is not None


@dataclass(frozen=True, slots=True)
class Sharding:
    """Fully sharded data parallelism as a row states it."""

    group: int | None
    """Ranks of a shard group where stated."""
    is_hybrid: bool
    """Groups are replicated."""
    reshard: bool
    """Gathered parameters are freed after the forward pass."""
    grad_dtype: str
    """Empty where the framework's default holds; else that of PyTorch's first FSDP, whose
    MixedPrecision reduces in the parameters' format unless told otherwise."""


def stated_sharding(facts: Facts) -> Sharding | None:
    """What the column on FSDP says; None where it is empty, false, or shards nothing.

    Raises:
        RowError: it says something else.
    """
    text = facts.feature("fsdp")
    if not text or text.lower() == "no_shard":
        return None
    if text not in SWITCH_WORDS and _SHARDS.search(text) is None:
        raise RowError(
            f"fsdp={facts.text('fsdp')[:40]!r}: expected True, False, FSDP, FSDP2, HSDP, or a "
            "strategy of PyTorch's, as FULL_SHARD"
        )
    group = _SHARD_GROUP.search(text)
    return Sharding(
        int(group[1]) if group else None,
        re.search(r"\bhsdp\b|hybrid", text, re.I) is not None,
        re.search(r"shard_grad_op", text, re.I) is None,
        "bf16" if re.match(r"[fh]sdp\b", text) else "",
    )


def stated_optimizer_group(facts: Facts) -> int | None:
    """Ranks that ZeRO 1 shards over, where the row states a number."""
    group = _SHARD_GROUP.search(facts.text("overlap"))
    return int(group[1]) if group else None


def stated_month(facts: Facts) -> tuple[int, int] | None:
    """(year, month) of the run where its source names them, as 2025-06 or 202506; else None."""
    match = _MONTH.search(facts.text("source"))
    return (int(match[1]), int(match[2])) if match else None


def stated_dispatcher(facts: Facts) -> str:
    """How tokens reach their experts, as the cells say; empty where they do not."""
    text = facts.text("overlap") + ";" + facts.text("recompute_detail")
    found = [name for name, pattern in _DISPATCHERS.items() if pattern.search(text)]
    return found[0] if found else ""


def stated_modules(facts: Facts) -> str:
    """What selective recompute covers, one of ``plan.RECOMPUTE_MODULES``: the attention core unless
    the cells name other modules; empty where they name none that a plan has.
    """
    detail = facts.text("recompute_detail")
    named = _MODULES.search(detail) or _NAMED.search(detail)
    if named is None:
        return MODULES[0]
    words = next(group for group in named.groups() if group is not None)
    return "+".join(name for name in MODULES if _MODULE_WORDS[name].search(words))


def stated_offload_pct(facts: Facts, num_layers: int) -> int:
    """Percent of the activations that are moved to host memory.

    Raises:
        RowError: something is offloaded, but not how much.
    """
    text = facts.feature("offload")
    if text:
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise RowError(f"offload={text[:40]}: expected the share of the activations, 0 to 1")
        return round(100 * share)
    detail = facts.text("recompute_detail")
    if _OFFLOAD.search(detail) is None:
        return 0
    layers = _OFFLOAD_LAYERS.search(detail)
    if layers is None:
        raise RowError("offload to the host of an unstated number of layers")
    return round(100 * min(int(layers[1]) / num_layers, 1.0))


def follows_recipe(facts: Facts) -> bool:
    """Nothing contradicts the vendors' recipes: these train in bf16 or fp8, and with overlap."""
    precision = plain_name(facts.text("precision"), PRECISION_NAMES)
    return precision not in ("", "fp16", "fp32") and not _states_no_overlap(facts)


def stated_release(facts: Facts) -> tuple[int, int] | None:
    """(year, month) of the software container that the notes name."""
    match = _RELEASE.search(facts.text("notes"))
    return (int(match[1]), int(match[2])) if match else None


def quotes_recipe(facts: Facts) -> bool:
    """The cells quote the settings of a recipe: a switch that they leave out is off."""
    return _QUOTED_SETTING.search(facts.text("recompute_detail")) is not None


def adapts_row_parallel(facts: Facts) -> bool:
    """Adapters exchange by all-to-all, which those beside row-parallel matrices alone do (NeMo
    8cfedd72 collections/llm/peft/utils.py: ``use_a2a and input_is_parallel``).
    """
    return _ADAPTERS_A2A.search(facts.text("overlap")) is not None


def stated_grad_dtype(facts: Facts) -> str:
    """``fp32`` or ``bf16`` as the column or the notes say, else empty.

    Raises:
        RowError: the column says anything else.
    """
    stated = facts.word("grad_dtype")
    if stated and stated not in GRAD_DTYPES:
        raise RowError(
            f"grad_dtype={facts.text('grad_dtype')[:40]!r}: expected {' or '.join(GRAD_DTYPES)}"
        )
    return stated or ("fp32" if _says(_FP32_GRADIENTS, facts.text("notes")) else "")


def stated_layer_split(facts: Facts) -> str:
    """How the row says that layers are cut into stages; empty where it does not.

    Raises:
        RowError: another word than the columns' documentation has.
    """
    stated = facts.word("layer_split")
    if stated not in ("", "even", "balanced"):
        text = facts.text("layer_split")[:40]
        raise RowError(f"layer_split={text!r}: expected even or balanced")
    return stated


def states_fused_cross_entropy(facts: Facts) -> bool | None:
    """The notes say that the loss is one kernel, or that it is not; None where neither."""
    return _says(_FUSED_LOSS, facts.text("notes"))


def _says(pattern: re.Pattern[str], text: str) -> bool | None:
    """What a text says about the words of a pattern: True, False where denied, None nothing.

    A denial counts inside its clause alone: "no overlap; fused cross-entropy" says True.
    """
    said = None
    for clause in _CLAUSE_ENDS.split(text):
        for match in pattern.finditer(clause):
            if _DENIED_BEFORE.search(clause[: match.start()]) or _DENIED_AFTER.match(
                clause[match.end() :]
            ):
                return False
            said = True
    return said


def _states_no_overlap(facts: Facts) -> bool:
    return _NO_OVERLAP.match(facts.text("overlap")) is not None


def framework_variant(framework: FrameworkSpec, facts: Facts) -> FrameworkSpec:
    """The framework with the kernels that the row states instead of its own.

    ``flash_attention`` True, fa2 or fa1 against False (the scores are stored); the columns
    ``fused_rmsnorm`` and ``fused_softmax``, or ``kernel=`` in the notes: fused or torch for the
    softmax without flash, an RMS kernel for the norms.

    Raises:
        RowError: another ``flash_attention``.
    """
    compute, memory = framework.compute, framework.memory
    kernel = facts.word("flash_attention")
    flavours = ("fa1", "fa2", "fa3")
    if kernel not in ("", *flavours, *SWITCH_WORDS):
        expected = f"True, False or {', '.join(flavours)}"
        raise RowError(f"flash_attention={kernel[:40]!r}: expected {expected}")
    is_flash = True if kernel in flavours else facts.switch("flash_attention")
    if is_flash is not None:
        compute = replace(compute, flash_attention=is_flash)
    if kernel == "fa1":
        slower = {
            k: v * FLASH_ATTENTION_1_EFFICIENCY for k, v in compute.attention_efficiency.items()
        }
        compute = replace(compute, attention_efficiency=slower)
    match = _KERNEL.search(facts.text("notes"))
    norm, softmax = (facts.switch(name) for name in KERNEL_COLUMNS)
    if norm is None and match and "rms" in match[1].lower():
        norm = True
    if softmax is None and match and match[1].strip().lower() in ("fused", "torch"):
        softmax = match[1].strip().lower() == "fused"
    if norm is not None:
        compute = replace(compute, fused_rmsnorm=norm)
        memory = replace(memory, unfused_norm_bytes=0.0 if norm else memory.unfused_norm_bytes)
    if softmax is not None:
        compute = replace(compute, fused_softmax=softmax)
    if compute == framework.compute and memory == framework.memory:
        return framework
    return replace(framework, compute=compute, memory=memory)
