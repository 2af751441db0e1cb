"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

import click

from parallelsim.cli_completion import names_or_files
from parallelsim.cli_values import (
    LIST,
    OWN_OPTIONS,
    PLAN_FIELD_KINDS,
    Value,
    Values,
    fixed_values,
    limited_values,
    number_up_to,
    sequence_length,
    settings,
    unique,
    whole_number,
    whole_numbers,
)
from parallelsim.errors import PlanError
from parallelsim.plan import CHOICES, MODULES, PRECISIONS
from parallelsim.planfile import MAX_BATCH, MAX_GPUS
from parallelsim.simulate import DEFAULT_MEMORY_LIMIT, TIGHT_LIMIT

SEARCHERS = ("grid", "bayesian")
"""Values of ``--searcher``."""


def merged(parts: tuple[dict[str, Any], ...], option: str) -> dict[str, Any]:
    """The assignments of an option that was given several times.

    Raises:
        click.UsageError: one field twice.
    """
    try:
        return unique(pair for part in parts for pair in part.items())
    except PlanError as error:
        raise click.UsageError(f"{option}: {error}") from None


@dataclass(frozen=True)
class SpecOptions:
    """What is trained where: options for the model, the cluster, the software and the batch."""

    model: str | None
    num_gpus: int | None
    cluster: str | None
    nic_gbit_per_s: float | None
    framework: str | None
    global_batch_size: int | None
    seq_length: int | None
    precision: str | None
    overrides: dict[str, Value]


@dataclass(frozen=True)
class SearchOptions:
    """What the search may choose from."""

    fixed: dict[str, Value]
    limits: dict[str, Values]
    memory_limit: float
    searcher: str
    all_schedules: bool = False
    """Also the pipeline schedules that the framework does not run."""


Command = Callable[..., Any]


rank_option: Command = click.option(
    "--rank",
    type=whole_number(1, 10_000),
    metavar="N",
    default=1,
    show_default=True,
    help="Which plan of the file.",
)
memory_limit_option: Command = click.option(
    "--memory-limit",
    type=number_up_to(TIGHT_LIMIT),
    metavar="X",
    default=DEFAULT_MEMORY_LIMIT,
    show_default=True,
    help="Share of a GPU's memory up to which a plan counts as safe.",
)
json_option: Command = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: SI units, full names."
)


_SPEC_OPTIONS: Mapping[str, Command] = {
    "model": click.option(
        "--model",
        "-m",
        metavar="M",
        help="Catalogue name, YAML file, Hugging Face config.json or its folder.",
        shell_complete=names_or_files("model"),
    ),
    "num_gpus": click.option(
        "--gpus",
        "-n",
        "num_gpus",
        type=whole_number(0, MAX_GPUS),
        metavar="N",
        help="Number of GPUs.",
    ),
    "cluster": click.option(
        "--cluster",
        "-c",
        metavar="C",
        help="Catalogue name or YAML file.  [default: hgx-h100]",
        shell_complete=names_or_files("cluster"),
    ),
    "nic_gbit_per_s": click.option(
        "--nic-gbit-per-s",
        type=number_up_to(1e6, low=1e-3),
        metavar="X",
        help="Network bandwidth per GPU, one way, where the cluster's file states none.",
    ),
    "framework": click.option(
        "--framework",
        "-f",
        metavar="F",
        help="Training software: name or YAML file.  [default: megatron-core]",
        shell_complete=names_or_files("framework"),
    ),
    "global_batch_size": click.option(
        "--global-batch-size",
        "-b",
        type=whole_number(1, MAX_BATCH),
        metavar="N",
        help="Sequences of one optimizer step.  [default: the model's own]",
    ),
    "seq_length": click.option(
        "--seq-length",
        "-s",
        type=sequence_length,
        metavar="TOKENS",
        help="Tokens of a sequence, as 8192 or 8k.  [default: the model's own]",
    ),
    "precision": click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="Number format of the GEMMs.  [default: bf16, or fp16 where there is no bf16]",
    ),
    "set_": click.option(
        "--set",
        "set_",
        type=settings,
        metavar="FIELD=VALUE,...",
        multiple=True,
        help="Change the model, as num_layers=12. Repeatable.",
    ),
}
"""In the order of ``--help``."""


def spec_options(command: Command, without: Container[str] = ()) -> Command:
    """Add the options of :class:`SpecOptions`; the command receives them as ``spec``.

    Those named in ``without`` are left to the command: they are None in ``spec``.
    """

    @wraps(command)
    def with_spec(*args: Any, set_: tuple[dict[str, Value], ...], **options: Any) -> Any:
        names = [f.name for f in fields(SpecOptions) if f.name != "overrides"]
        own = {name: None if name in without else options.pop(name) for name in names}
        return command(*args, spec=SpecOptions(**own, overrides=merged(set_, "--set")), **options)

    for name, option in reversed(list(_SPEC_OPTIONS.items())):
        with_spec = with_spec if name in without else option(with_spec)
    return with_spec


_SEARCH_OPTIONS = (
    click.option(
        "--fix",
        type=fixed_values,
        metavar="FIELD=VALUE,...",
        multiple=True,
        help="Plan fields with one value, as tp=8,pp=4. Repeatable.",
    ),
    click.option(
        "--limit",
        type=limited_values,
        metavar="FIELD=VALUES,...",
        multiple=True,
        help="Plan fields with some values, as cp=1..4 or 'tp=1|2|4'. Repeatable.",
    ),
    memory_limit_option,
    click.option(
        "--searcher",
        type=click.Choice(SEARCHERS),
        default="grid",
        show_default=True,
        help="grid tries every plan, bayesian some of them (plan alone has it).",
    ),
    click.option(
        "--schedules",
        type=click.Choice(("framework", "all")),
        default="framework",
        show_default=True,
        help="Pipeline schedules: those that the framework runs, or all that are known.",
    ),
)
"""In the order of ``--help``."""


def search_options(command: Command) -> Command:
    """Add the options of :class:`SearchOptions`; the command receives them as ``search``."""

    @wraps(command)
    def with_search(
        *args: Any,
        fix: tuple[Any, ...],
        limit: tuple[Any, ...],
        memory_limit: float,
        searcher: str,
        schedules: str,
        **options: Any,
    ) -> Any:
        fixed, limits = merged(fix, "--fix"), merged(limit, "--limit")
        for name in sorted(set(fixed) & set(limits)):
            raise click.UsageError(f"{name} is in --fix and in --limit; give it once")
        search = SearchOptions(fixed, limits, memory_limit, searcher, schedules == "all")
        return command(*args, search=search, **options)

    for option in reversed(_SEARCH_OPTIONS):
        with_search = option(with_search)
    return with_search


def only_grid(search: SearchOptions, command: str) -> None:
    """Refuse another searcher where a command proves what it says.

    Raises:
        click.UsageError: with what to do.
    """
    if search.searcher != "grid":
        raise click.UsageError(f"--searcher {search.searcher}: {command} searches with grid alone")


def plan_options(command: Command) -> Command:
    """Add one option for each field of a plan; those given arrive as ``plan_fields``."""

    @wraps(command)
    def with_plan(*args: Any, **options: Any) -> Any:
        names = [name for name in PLAN_FIELD_KINDS if name not in OWN_OPTIONS]
        given = {name: options.pop(name) for name in names if name != "recompute_num_layers"}
        return command(
            *args, plan_fields={k: v for k, v in given.items() if v is not None}, **options
        )

    for name, kind in reversed(list(PLAN_FIELD_KINDS.items())):
        if name in OWN_OPTIONS or name == "recompute_num_layers":
            continue
        flag = "--" + name.replace("_", "-")
        if kind == "bool":
            add = click.option(f"{flag}/--no-{flag[2:]}", default=None, help=_PLAN_HELP[name])
        elif kind == "int":
            add = click.option(
                flag, type=whole_number(0, 2**31), metavar="N", help=_PLAN_HELP[name]
            )
        elif kind == LIST:
            add = click.option(flag, type=whole_numbers, metavar="N,...", help=_PLAN_HELP[name])
        elif name in ("recompute", "recompute_modules"):
            metavar = "R" if name == "recompute" else "M+M"
            add = click.option(flag, metavar=metavar, help=_PLAN_HELP[name])
        else:
            add = click.option(flag, type=click.Choice(CHOICES[name]), help=_PLAN_HELP[name])
        with_plan = add(with_plan)
    return with_plan


_PLAN_HELP: Mapping[str, str] = {
    "tp": "Tensor-parallel ranks.",
    "cp": "Context-parallel ranks.",
    "pp": "Pipeline stages.",
    "vpp": "Virtual stages of each pipeline rank.",
    "dp": "Data-parallel replicas.  [default: what is left of the GPUs]",
    "ep": "Ranks that a layer's experts are dealt to.",
    "etp": "Tensor-parallel ranks of one expert.",
    "micro_batch_size": "Sequences of one micro-batch.",
    "schedule": "Pipeline schedule.  [default: follows from pp and vpp]",
    "layout": "How layers are cut into stages.",
    "first_stage_layers": "Layers of the first stage, with layout first-last.",
    "last_stage_layers": "Layers of the last stage, with layout first-last.",
    "chunk_layers": "Layers of each of the pp x vpp chunks, with layout free.",
    "sequence_parallel": "Shard norms and activations between tensor-parallel regions.",
    "zero": "0: all replicated; 1: optimizer sharded; 2: gradients too; 3: parameters too.",
    "recompute": "none, selective, full, or full:N (N layers of each virtual stage).",
    "recompute_modules": "With selective: "
    + " + ".join(MODULES)
    + ", or some of them in this order.",
    "grad_dtype": "Format in which gradients are accumulated and reduced.",
    "cp_comm_type": "Context-parallel communication.",
    "cp_a2a": "Ranks that deal out heads among them, with cp_comm_type a2a+p2p.",
    "tp_comm_overlap": "Overlap tensor-parallel collectives with GEMMs (user buffers).",
    "overlap_grad_reduce": "Reduce gradients while the backward pass runs.",
    "overlap_param_gather": "Gather parameters while the forward pass runs.",
    "cross_entropy_fusion": "Fused cross-entropy.",
    "cuda_graphs": "Launch layers as CUDA graphs.",
    "moe_dispatcher": "How tokens reach their experts.",
    "ep_comm_overlap": "Send one micro-batch's tokens to experts while another computes.",
    "fp8_param_gather": "Keep and gather the weights of fp8 GEMMs in fp8 alone.",
    "dp_replicate": "Replicas of the groups that ZeRO shards over (HSDP).",
    "reshard_after_forward": "With zero 3: free gathered parameters after the forward pass.",
    "compile": "Run layers through a compiler (torch.compile).",
    "activation_offload_pct": "Percent of saved activations that wait in host memory.",
    "optimizer_offload_pct": "Percent of the sharded optimizer in host memory, stepped there.",
    "optimizer": "What the optimizer keeps for each parameter.",
}
