"""``plan``: the program's command as a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from parallelsim.cluster import ClusterSpec
from parallelsim.errors import PlanError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import FIELD_TYPES, check_field, parse_recompute
from parallelsim.simulate import DEFAULT_MEMORY_LIMIT

if TYPE_CHECKING:
    from parallelsim.search.result import SearchResult
    from parallelsim.setting import Name


def plan(
    model: ModelSpec | Name,
    gpus: int | None = None,
    *,
    cluster: ClusterSpec | Name | None = None,
    framework: FrameworkSpec | Name | None = None,
    nic_gbit_per_s: float | None = None,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    precision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    fix: Mapping[str, Any] | None = None,
    limit: Mapping[str, Iterable[Any]] | None = None,
    memory_limit: float = DEFAULT_MEMORY_LIMIT,
    top: int = 10,
    all_variants: bool = False,
) -> SearchResult:
    """The fastest plans within memory: the answer of ``parallelsim plan`` with the same options.

    >>> import parallelsim as ps
    >>> result = ps.plan("llama3-8b", gpus=16, fix={"pp": 1}, limit={"tp": (1, 2)})
    >>> result.best.tp, result.best.dp, result.plans.zones[0]
    (2, 8, 'safe')

    Where nothing is safe the result is empty, and says how plans fail; ``result.best`` then raises.

    Args:
        model: a name of :func:`~parallelsim.catalog.model_names`, a YAML file, a Hugging Face
            ``config.json`` or its folder, or a loaded model.
        gpus: how many; by default as many as the cluster's file states.
        cluster: a name, a file, or a loaded cluster; by default hgx-h100.
        framework: the training software, likewise; by default megatron-core.
        nic_gbit_per_s: network bandwidth per GPU, one way, where the cluster's file states none.
        global_batch_size: sequences of one optimizer step; by default the model's own.
        seq_length: tokens of a sequence; by default the model's own.
        precision: number format of the GEMMs; by default bf16, or fp16 where there is no bf16.
        overrides: changes of a named model, as ``{"num_layers": 12}``.
        fix: plan fields with one value, as ``{"tp": 8, "recompute": "full:2"}``.
        limit: plan fields with some values, as ``{"cp": (1, 2, 4)}``.
        memory_limit: share of a GPU's memory up to which a plan counts as safe.
        top: plans to rank.
        all_variants: rank every plan; else of plans with the same degrees, micro-batch and sharding
            the fastest alone.

    Raises:
        ParallelSimError: with one line that says what is wrong with an argument.
    """
    from parallelsim.default_batch import default_global_batch_size
    from parallelsim.search.grid import grid_search
    from parallelsim.search.space import SearchSpace
    from parallelsim.setting import check_fixed, load_setting

    for name, number in (("gpus", gpus), ("seq_length", seq_length), ("top", top)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise PlanError(f"{name} must be a whole number from 1, got {number!r}")
    if global_batch_size is not None:
        check_field("global_batch_size", global_batch_size)
    given = load_setting(
        model,
        gpus,
        cluster=cluster,
        framework=framework,
        nic_gbit_per_s=nic_gbit_per_s,
        seq_length=seq_length,
        precision=precision,
        overrides=overrides,
    )
    num_gpus, fixed = given.cluster.num_gpus, _fixed(fix or {})
    if global_batch_size is None:
        global_batch_size = default_global_batch_size(given.model, num_gpus)
    check_fixed(fixed, num_gpus, global_batch_size)
    space = SearchSpace(
        given.model,
        given.cluster,
        given.framework,
        global_batch_size,
        given.precision,
        fixed=fixed,
        limits={name: _checked(name, values) for name, values in (limit or {}).items()},
    )
    return grid_search(space, top, memory_limit, all_variants=all_variants)


def _fixed(fix: Mapping[str, Any]) -> dict[str, Any]:
    """The values, ``full:N`` taken apart."""
    fixed = dict(fix)
    if "recompute" in fixed:
        fixed["recompute"], layers = parse_recompute(fixed["recompute"])
        if fixed["recompute"] == "full":
            if "recompute_num_layers" in fix:
                raise PlanError("fix: recompute=full:N states recompute_num_layers; leave that out")
            fixed["recompute_num_layers"] = layers
    for name, value in fixed.items():
        _checked(name, (value,))
    return fixed


def _checked(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """The values of a plan field.

    Raises:
        PlanError: no field, or no values of it.
    """
    if name not in FIELD_TYPES:
        raise PlanError(f"unknown plan field {name!r}; the fields are {', '.join(FIELD_TYPES)}")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise PlanError(f"limit: {name} needs several values, as (1, 2), got {values!r}")
    checked = tuple(values)
    for value in checked:
        check_field(name, value)
    return checked
