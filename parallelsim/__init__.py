"""parallelsim: the fastest way to train a model on a cluster within memory.

>>> import parallelsim as ps
>>> result = ps.plan("llama3-70b", gpus=64)
>>> result.best.num_gpus
64

``import parallelsim`` imports numpy and the simulator alone; the other names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# These functions are named as their modules: imported here, or a later import of the module by
# anyone would put the module in the function's place.
from parallelsim.compare import Comparison, compare
from parallelsim.planning import plan
from parallelsim.simulate import Simulation, simulate

if TYPE_CHECKING:
    from parallelsim.catalog import (
        cluster_names,
        framework_names,
        load_cluster,
        load_framework,
        load_model,
        model_names,
    )
    from parallelsim.cluster import ClusterSpec
    from parallelsim.errors import (
        ExportError,
        NoFeasiblePlanError,
        OutputError,
        ParallelSimError,
        PlanError,
        SpecError,
        UnknownNameError,
    )
    from parallelsim.framework import FrameworkSpec
    from parallelsim.model import ModelSpec
    from parallelsim.plan import Plan
    from parallelsim.plan_batch import PlanBatch
    from parallelsim.planfile import read_document, write_document
    from parallelsim.replay import replayed
    from parallelsim.search.grid import grid_search
    from parallelsim.search.result import SearchResult
    from parallelsim.search.space import SearchSpace

__all__ = [
    "ClusterSpec",
    "Comparison",
    "ExportError",
    "FrameworkSpec",
    "ModelSpec",
    "NoFeasiblePlanError",
    "OutputError",
    "ParallelSimError",
    "Plan",
    "PlanBatch",
    "PlanError",
    "SearchResult",
    "SearchSpace",
    "Simulation",
    "SpecError",
    "UnknownNameError",
    "cluster_names",
    "compare",
    "framework_names",
    "grid_search",
    "load_cluster",
    "load_framework",
    "load_model",
    "model_names",
    "plan",
    "read_document",
    "replayed",
    "simulate",
    "write_document",
]

_MODULES = {
    "catalog": (
        "cluster_names",
        "framework_names",
        "load_cluster",
        "load_framework",
        "load_model",
        "model_names",
    ),
    "cluster": ("ClusterSpec",),
    "errors": (
        "ExportError",
        "NoFeasiblePlanError",
        "OutputError",
        "ParallelSimError",
        "PlanError",
        "SpecError",
        "UnknownNameError",
    ),
    "framework": ("FrameworkSpec",),
    "model": ("ModelSpec",),
    "plan": ("Plan",),
    "plan_batch": ("PlanBatch",),
    "planfile": ("read_document", "write_document"),
    "replay": ("replayed",),
    "search.grid": ("grid_search",),
    "search.result": ("SearchResult",),
    "search.space": ("SearchSpace",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import the module that holds a public name, when the name is first used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("parallelsim")
    if name not in _HOME:
        raise AttributeError(f"module 'parallelsim' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"parallelsim.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
