"""The exact engine: operation lists of every pipeline schedule, replayed with the stages' costs.

::

    schedule = make_schedule("zb-v", pp=8, vpp=2, num_micro_batches=64)   # operation lists
    graph = compile_graph(schedule)                                       # once for many plans
    graph = compiled_graph("zb-v", 8, 2, 64)                              # or from a cache
    costs = stage_costs(schedule, forward_s, input_s=..., weight_s=..., transfer_s=...)
    step_time(graph, costs)                                               # [P] seconds, to rank by
    done = replay(graph, costs)                                           # every operation
    trace_json(done), gantt_picture(done), gantt_text(done), critical_path(done), bubbles(done)

What ranking needs is imported; pictures, traces and analysis load on first use.
"""

from typing import TYPE_CHECKING, Any

from parallelsim.timeline.compiled import compiled_graph
from parallelsim.timeline.costs import StageCosts, stage_costs, transfer_time
from parallelsim.timeline.engine import Replay, replay, steady_step_time, step_time
from parallelsim.timeline.graph import Graph, compile_graph
from parallelsim.timeline.operations import Schedule
from parallelsim.timeline.schedules import GENERATORS, broken_rule, make_schedule

if TYPE_CHECKING:
    from parallelsim.timeline.activations import memory_over_time, peak_activations
    from parallelsim.timeline.analysis import bubbles, critical_path
    from parallelsim.timeline.chrome import trace, trace_json
    from parallelsim.timeline.gantt import gantt_picture, gantt_text

__all__ = [
    "GENERATORS",
    "Graph",
    "Replay",
    "Schedule",
    "StageCosts",
    "broken_rule",
    "bubbles",
    "compile_graph",
    "compiled_graph",
    "critical_path",
    "gantt_picture",
    "gantt_text",
    "make_schedule",
    "memory_over_time",
    "peak_activations",
    "replay",
    "stage_costs",
    "steady_step_time",
    "step_time",
    "trace",
    "trace_json",
    "transfer_time",
]

_HOME = {
    "bubbles": "analysis",
    "critical_path": "analysis",
    "gantt_picture": "gantt",
    "gantt_text": "gantt",
    "memory_over_time": "activations",
    "peak_activations": "activations",
    "trace": "chrome",
    "trace_json": "chrome",
}


def __getattr__(name: str) -> Any:
    """Import the module that holds a name, when the name is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'parallelsim.timeline' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"parallelsim.timeline.{_HOME[name]}"), name)
    globals()[name] = value
    return value
