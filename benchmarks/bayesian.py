"""Bayesian search against the proved optimum.

    python benchmarks/bayesian.py [--cuts] [--write docs/search.md]

Five spaces; for each the exhaustive search proves the best plan. Then each searcher runs with a
budget of 500 evaluations, afresh with 1,000 where it ends further than 1 % from the optimum, and
afresh with the most that is allowed: 1 % of the candidates or 2,000, whichever is less. No warm
start; all step times are those of the replay. Layout ``free`` is left out on both sides: nothing is
proved for it. With ``--cuts`` it is searched on both sides, in spaces whose best known plan has it,
and that plan is what is compared with. With ``--write`` the table replaces the one between the
markers of the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from parallelsim.search.bayesian import BayesianSearcher
from parallelsim.search.grid import GridSearcher
from parallelsim.search.random import RandomSearcher
from parallelsim.search.searcher import Request, Searcher
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model

SPACES = {
    "dense: llama3-70b, 256 x H100": ("llama3-70b", "hgx-h100", 256, 512, None),
    "llama3.1-405b, 16,384 x H100": ("llama3.1-405b", "hgx-h100", 16384, 2048, None),
    "deepseek-v3, 2,048 x H100": ("deepseek-v3", "hgx-h100", 2048, 15360, None),
    "long context: llama3.1-405b at 131,072 tokens, 1,024 x H100": (
        *("llama3.1-405b", "hgx-h100", 1024, 64, 131_072),
    ),
    "llama2-13b, 32 x A100": ("llama2-13b", "dgx-a100-80gb", 32, 256, None),
}
CUT_SPACES = {
    "gemma2-27b, 64 x H100": ("gemma2-27b", "hgx-h100", 64, 512, None),
    "llama3-70b, 64 x H100": ("llama3-70b", "hgx-h100", 64, 128, None),
    "deepseek-v3, 2,048 x H800": ("deepseek-v3", "hgx-h800", 2048, 15360, None),
}
REGULAR = {"layout": ("even", "embedding", "loss", "embedding-loss", "first-last")}
BUDGETS, SHARE, WITHIN = (500, 1000, 2000), 0.01, 0.01
HEAD = (
    "| space | candidates | {best} | searcher | within 1 % (seeds) | with 500 | with 1,000 |"
    " most allowed | median gap | worst gap |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def space_of(
    model: str, cluster: str, gpus: int, batch: int, seq: int | None, cuts: bool
) -> SearchSpace:
    spec = load_model(model)
    return SearchSpace(
        spec.with_seq_length(seq) if seq else spec,
        load_cluster(cluster, num_gpus=gpus),
        load_framework("megatron-core"),
        batch,
        limits={} if cuts else REGULAR,
    )


def gap_of(searcher: Searcher, space: SearchSpace, best: float, budget: int, seed: int) -> float:
    """Share by which the best plan found is slower than the proved one."""
    found = searcher.search(space, Request(top_k=1, budget=budget, seed=seed))
    if found.num_evaluated > budget:
        raise SystemExit(f"{found.num_evaluated} evaluations, not {budget}")
    steps = found.plans.step_time_s
    return float(steps[0]) / best - 1 if len(steps) else np.inf


def rows_of(name: str, space: SearchSpace, samplers: dict[str, int]) -> list[str]:
    """Lines of the table, one for each sampler with its number of seeds."""
    proved = GridSearcher().search(space, Request(top_k=1))
    if not proved.proven:
        raise SystemExit(f"{name}: the optimum is not proved")
    best = float(proved.plans.step_time_s[0])
    most = min(int(SHARE * proved.num_candidates), BUDGETS[-1])
    budgets = [budget for budget in BUDGETS if budget < most] + [most]
    rows = []
    for sampler, seeds in samplers.items():
        gaps, reached = [], dict.fromkeys(budgets, 0)
        for seed in range(seeds):
            for budget in budgets:
                searcher: Searcher = RandomSearcher()
                if sampler != "random":
                    searcher = BayesianSearcher(sampler=sampler)
                gap = gap_of(searcher, space, best, budget, seed)
                if gap <= WITHIN:
                    reached[budget] += 1
                    break
            gaps.append(gap)
            print(f"{name}, {sampler}, seed {seed}: {gap:.2%} with {budget}", flush=True)
        some = np.cumsum(list(reached.values()))
        median, worst = (
            f"{gap:.2%}" if np.isfinite(gap) else "nothing safe"
            for gap in (np.median(gaps), max(gaps))
        )
        rows.append(
            f"| {name} | {proved.num_candidates:,} | {best:.3f} s | {sampler} "
            f"| {some[-1]} of {seeds} | {some[0]} | {some[1]} | {most:,} "
            f"| {median} | {worst} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samplers", default="tpe,random", help="such as tpe:10,gp:5")
    parser.add_argument("--only", default="", help="spaces whose name holds this")
    parser.add_argument("--cuts", action="store_true", help="search layout free too")
    parser.add_argument("--write", type=Path, help="document to put the table into")
    asked = parser.parse_args()
    pairs = (one.partition(":") for one in asked.samplers.split(","))
    samplers = {sampler: int(seeds or 10) for sampler, _, seeds in pairs}
    rows = [
        row
        for name, inputs in (CUT_SPACES if asked.cuts else SPACES).items()
        if asked.only in name
        for row in rows_of(name, space_of(*inputs, asked.cuts), samplers)
    ]
    head, columns = HEAD
    best, marker = ("grid's best", "CUTS") if asked.cuts else ("proved best", "BAYESIAN")
    table = "\n".join((head.format(best=best), columns, *rows))
    print(table)
    if asked.write:
        begin, end = f"<!-- {marker} -->", f"<!-- end {marker} -->"
        before, rest = asked.write.read_text().split(begin)
        asked.write.write_text(f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
