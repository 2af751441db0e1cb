"""Ways to deal experts to ranks and to bring tokens to them.

Left out unless asked for, because they cannot win:

* etp that does not divide tp, and etp > 1 where ep * etp divides the experts: ep alone spreads them
  as far, with fewer copies of tokens and wider matrices (kept where experts are unevenly loaded:
  etp evens it out);
* between nodes, sending a token to each expert: to each node once is less to send;
* gathering all tokens of more ranks than a token has experts, which brings mostly tokens of no
  use, in buffers that are not modelled;
* ep_comm_overlap off where it can be on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallelsim.search.asked import Asked
from parallelsim.search.degrees import divisors

from parallelsim.cluster import ClusterSpec
from parallelsim.errors import PlanError
from parallelsim.framework import Capabilities
from parallelsim.model import ModelSpec
from parallelsim.plan import IntArray, code
from parallelsim.rule_context import BoolArray, ExpertFacts, model_facts

ALL_GATHER = code("moe_dispatcher", "all-gather")
EXPERT_FIELDS = ("ep", "etp", "moe_dispatcher", "ep_comm_overlap")
"""Fields of a row, in order."""


@dataclass(frozen=True)
class ExpertChoices:
    """The canonical choices of one model under one framework."""

    experts: ExpertFacts | None
    """None: a dense model, whose only choice is ep = etp = 1."""
    can: Capabilities
    asked: Asked
    domain_size: int
    """GPUs that a node (or larger domain of fast links) joins."""
    overlaps: bool
    """The model and the precision allow ep_comm_overlap."""

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        cluster: ClusterSpec,
        can: Capabilities,
        asked: Asked,
        precision: str,
    ) -> ExpertChoices:
        """The choices for the inputs of a search.

        Raises:
            PlanError: none of the given values of ep can divide the experts.
        """
        experts = model_facts(model).experts
        overlaps = can.ep_comm_overlap and precision != "fp32" and model.num_mtp_layers <= 1
        found = cls(experts, can, asked, cluster.domain_size, overlaps)
        if experts and not asked.allowed("ep", [1], found._degrees()):
            given = ", ".join(str(v) for v in asked.values["ep"])
            known = ", ".join(str(n) for n in found._degrees())
            raise PlanError(
                f"ep={given} cannot divide {experts.num_experts} experts here; it can be {known}"
            )
        return found

    @property
    def is_free(self) -> bool:
        """Plans of the space differ in these fields, or the caller named one of them."""
        return self.experts is not None or any(n in self.asked.values for n in EXPERT_FIELDS)

    def rows(self, tp: int, num_ranks: int, *, pairs: bool) -> Iterator[tuple[int, int, int, int]]:
        """Values of :data:`EXPERT_FIELDS` for the ``num_ranks`` = tp cp dp ranks of a stage.

        Args:
            tp: tensor-parallel ranks.
            num_ranks: of a stage.
            pairs: ep_comm_overlap can be on with some staging.
        """
        asked = self.asked
        for ep in asked.allowed("ep", self._degrees(), self._degrees()):
            splits = self._splits(num_ranks // ep) if num_ranks % ep == 0 else []
            usual_splits = [
                etp for etp in splits if etp == 1 or (tp % etp == 0 and not self._spreads(ep * etp))
            ]
            for etp in asked.allowed("etp", usual_splits, splits):
                usual, possible = self._dispatchers(ep * etp)
                for dispatcher in asked.allowed("moe_dispatcher", usual, possible):
                    can = pairs and self.overlaps and ep > 1 and dispatcher != ALL_GATHER
                    switch = (False, True) if can else (False,)
                    for overlap in asked.allowed("ep_comm_overlap", switch, switch):
                        yield ep, etp, dispatcher, overlap

    def overlap_is_free(self, ep: IntArray, dispatcher: IntArray) -> BoolArray:
        """Where ep_comm_overlap may be on or off, as far as experts say; shape [P]."""
        free = self.overlaps and len(self.asked.allowed("ep_comm_overlap", (0, 1), (0, 1))) > 1
        found: BoolArray = free & (ep > 1) & (dispatcher != ALL_GATHER)
        return found

    def _degrees(self) -> list[int]:
        """Values of ep: divisors of the experts."""
        if self.experts is None or not self.can.moe_dispatchers:
            return [1]
        return divisors(self.experts.num_experts)

    def _splits(self, num_ranks: int) -> list[int]:
        """Values of etp: divisors of the ranks that divide an expert."""
        if self.experts is None or self.experts.has_biases or not self.can.expert_tensor_parallel:
            return [1]
        return [n for n in divisors(num_ranks) if self.experts.ffn % n == 0]

    def _spreads(self, num_ranks: int) -> bool:
        """Whether ep alone can deal the experts to so many ranks as well."""
        experts = self.experts
        return experts is not None and experts.is_balanced and experts.num_experts % num_ranks == 0

    def _dispatchers(self, num_ranks: int) -> tuple[list[str], list[str]]:
        """(those that are searched, all) for experts spread over so many neighbouring ranks."""
        if self.experts is None or num_ranks == 1:
            return ["all-to-all"], ["all-to-all"]
        possible = list(self.can.moe_dispatchers)
        if self.experts.has_capacity and "all-to-all" in possible:
            # Megatron pads to a capacity behind all-to-all, and HybridEP (a deepep) on request.
            return ["all-to-all"], possible
        across = num_ranks > self.domain_size and "deepep" in possible
        usual = ["deepep"] if across else [name for name in possible if name != "all-gather"]
        if "all-gather" in possible and (num_ranks <= self.experts.top_k or not usual):
            usual.append("all-gather")
        return usual, possible
