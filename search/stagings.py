"""Ways to cut the layers into stages, to schedule and to recompute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallelsim.search.asked import Asked
from parallelsim.search.schedules import schedule_names

from parallelsim.errors import PlanError
from parallelsim.framework import FrameworkSpec
from parallelsim.plan import ASYNCHRONOUS, CHOICES, MODULES, WAVES
from parallelsim.rule_context import ModelFacts
from parallelsim.rule_schedules import FIRST_LAST, IS_WAVE

UNEVEN_DEPTH = 3
"""A first or last stage may have up to this many layers fewer than the stages between."""
STAGED = (
    "vpp",
    "schedule",
    "layout",
    "first_stage_layers",
    "last_stage_layers",
    "recompute",
    "recompute_num_layers",
)
"""Fields of a row, in order."""


@dataclass(frozen=True)
class Stagings:
    """The canonical stagings of one model under one framework."""

    num_layers: int
    framework: FrameworkSpec
    asked: Asked
    modules: str
    """What selective recompute runs again."""

    def rows(self, pp: int) -> Iterator[tuple[int, ...]]:
        """Values of :data:`STAGED` for so many stages."""
        for vpp, layout, first, last, chunk in self._layouts(pp):
            for schedule in self.schedules(pp, vpp):
                if layout == FIRST_LAST and IS_WAVE[schedule]:
                    continue
                for recompute in self._recomputes(chunk):
                    yield (vpp, schedule, layout, first, last, *recompute)

    def schedules(self, pp: int, vpp: int) -> list[int]:
        """Codes of the pipeline schedules of such stages."""
        names = schedule_names(self.framework, pp, vpp)
        synchronous = [name for name in names if name not in ASYNCHRONOUS]
        return self.asked.allowed("schedule", synchronous, names)

    def _layouts(self, pp: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(vpp, layout code, first, last, layers of the largest chunk) of every way to cut the
        layers.
        """
        possible = [n for n in self.framework.capabilities.layouts if n != "free"]
        names = [n for n in possible if n == "even" or pp > 1]
        for layout in self.asked.allowed("layout", names, names):
            name = CHOICES["layout"][layout]
            if name == "first-last":
                cuts = self._uneven_cuts(pp)
            else:
                slots = self.num_layers + {"even": 0, "embedding-loss": 2}.get(name, 1)
                cuts = [(0, 0, slots // pp)] if slots % pp == 0 else []
            for first, last, middle in cuts:
                for vpp in self._virtual_stages(pp, name, first, last, middle):
                    if (name, pp, vpp) == ("embedding-loss", 2, 1):
                        continue  # two stages, a layer less on both: the even cut
                    yield vpp, layout, first, last, max(middle, first, last) // vpp

    def _virtual_stages(
        self, pp: int, layout: str, first: int, last: int, middle: int
    ) -> list[int]:
        """Vpp that cut every stage into whole chunks."""
        possible = [v for v in range(1, middle + 1) if middle % v == first % v == last % v == 0]
        if layout == "even" and pp == 1:
            possible = [1]
        known = set(self.framework.capabilities.schedules)
        if not known & {"interleaved-1f1b", "breadth-first", *WAVES}:
            possible = [1]
        return self.asked.allowed("vpp", possible, possible)

    def _uneven_cuts(self, pp: int) -> list[tuple[int, int, int]]:
        """(first, last, middle) with both ends at most ``UNEVEN_DEPTH`` layers lighter than the
        middle.

        Given first or last stages replace that bound. A cut that another layout of the
        space makes is left to it.
        """
        num_layers, given = self.num_layers, self.asked.values
        names = [n for n in self.framework.capabilities.layouts if n != "free"]
        known = {CHOICES["layout"][code] for code in self.asked.allowed("layout", names, names)}

        def others(middle: int) -> set[tuple[int, int]]:
            return {cut for name, cut in _other_cuts(middle).items() if name in known}

        cuts = []
        if pp == 1:
            return []
        for middle in range(1, num_layers + 1):
            ends = num_layers - middle * (pp - 2)
            if ends < 2:
                break
            low = max(middle - UNEVEN_DEPTH, 1)
            free = "first_stage_layers" in given or "last_stage_layers" in given
            for first in range(1, ends) if free else range(low, middle + 1):
                last = ends - first
                if not free and not low <= last <= middle:
                    continue
                if pp == 2 and middle != max(first, last):
                    continue
                if (first, last) in others(middle):
                    continue
                cuts.append((first, last, middle))
        firsts, lasts = given.get("first_stage_layers"), given.get("last_stage_layers")
        return [
            cut
            for cut in cuts
            if (firsts is None or cut[0] in firsts) and (lasts is None or cut[1] in lasts)
        ]

    def _recomputes(self, chunk: int) -> list[tuple[int, int]]:
        """(recompute code, layers) of every depth: none, selective, 1 to all but one layer, all."""
        can = self.framework.capabilities.recomputes
        kinds = [k for k in can if k not in ("block", "modules")]
        saves = self.modules != MODULES[0]
        saves |= self.framework.memory.selective_outputs_kept > 0
        saves |= not self.framework.compute.flash_attention
        default = [k for k in kinds if k != "selective" or saves]
        rows: list[tuple[int, int]] = []
        for kind in self.asked.allowed("recompute", default, kinds):
            if CHOICES["recompute"][kind] != "full":
                depths = [0]
            else:
                depths = [*(range(1, chunk) if "block" in can else ()), 0]
            allowed = self.asked.allowed("recompute_num_layers", depths, depths)
            rows.extend((kind, depth) for depth in allowed)
        return rows


def selective_modules(
    asked: Asked, framework: FrameworkSpec, model: ModelFacts, precision: str
) -> str:
    """What selective recompute of a search runs again.

    The one choice given; else the attention core, or of a mixture of experts whatever costs few
    GEMMs: norms, latent attention's up projections, the experts' activation. A dense model gains
    nothing by its norms.

    Raises:
        PlanError: several choices are given.
    """
    given = asked.values.get("recompute_modules", ())
    if len(given) > 1:
        raise PlanError("recompute_modules takes one choice for a search, got several")
    if given:
        return str(given[0])
    can = "modules" in framework.capabilities.recomputes and precision != "fp8-delayed"
    if not can or model.experts is None or "recompute" in asked.values:
        return MODULES[0]
    return "layernorm+mla_up_proj+moe_act" if model.has_latent_attention else "layernorm+moe_act"


def _other_cuts(middle: int) -> dict[str, tuple[int, int]]:
    """(first, last) that the other layouts cut: even, or with the embedding, the loss or both
    counted as a layer.
    """
    return {
        "even": (middle, middle),
        "embedding": (middle - 1, middle),
        "loss": (middle, middle - 1),
        "embedding-loss": (middle - 1, middle - 1),
    }
