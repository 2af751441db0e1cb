"""Cluster files: tiers, sizes, the network that the user states, and refusals in one line."""

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import assert_readable, mutated

from parallelsim.catalog import cluster_names, load_accelerator, load_cluster
from parallelsim.cluster import ClusterSpec
from parallelsim.errors import ParallelSimError, SpecError, UnknownNameError
from parallelsim.schemas_build import build_cluster
from parallelsim.schemas_cluster import checked_cluster
from parallelsim.yaml_io import dump_yaml

NAMES = {
    *("dgx-v100", "dgx-a100-40gb", "dgx-a100-80gb", "hgx-h100", "hgx-h200", "hgx-b200", "hgx-b300"),
    "h200-nvl",
    *("gb200-nvl72", "gb300-nvl72", "hgx-h800", "hgx-a800", "aws-p4d", "aws-p5", "aws-p5en"),
    *("gcp-a3-mega", "azure-nd-h100-v5", "mi300x", "mi325x", "mi355x", "l40s", "rtx-4090"),
}
UNSTATED_NETWORK = {"hgx-a800", "mi325x", "l40s", "rtx-4090"}


def document() -> dict[str, Any]:
    """A small valid cluster file with a leaf and an oversubscribed spine."""
    return {
        "source": "own measurement",
        "name": "mine",
        "accelerator": "h100-80gb-sxm",
        "gpus_per_node": 8,
        "max_gpus": 512,
        "tiers": [
            {"name": "nvlink", "size": 8, "link_gb_per_s": 450, "latency_us": 4, "efficiency": 0.8},
            {
                "name": "leaf",
                "size": 256,
                "nics_per_node": 8,
                "nic_gbit_per_s": 400,
                "latency_us": 10,
                "efficiency": 0.85,
            },
            {
                "name": "spine",
                "size": None,
                "link_gb_per_s": 25,
                "latency_us": 12,
                "efficiency": 0.8,
            },
        ],
    }


def loaded(data: dict[str, Any], nic_gbit_per_s: float | None = None) -> ClusterSpec:
    return build_cluster(
        checked_cluster(data, "mine.yaml"),
        load_accelerator=load_accelerator,
        nic_gbit_per_s=nic_gbit_per_s,
    )


def edited(index: int | None, key: str, value: Any) -> dict[str, Any]:
    data = document()
    target = data if index is None else data["tiers"][index]
    if value is ...:
        del target[key]
    else:
        target[key] = value
    return data


def test_catalogue_has_the_promised_clusters() -> None:
    assert set(cluster_names()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_catalogue_file_loads_as_one_node_with_falling_tiers(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.num_gpus == cluster.gpus_per_node
    assert cluster.num_nodes == 1
    assert (len(cluster.tiers) == 1) == (name in UNSTATED_NETWORK)
    inner = cluster.tiers[0]
    assert inner.size is not None
    assert not inner.size % cluster.gpus_per_node or not cluster.gpus_per_node % inner.size
    assert all(tier.size for tier in cluster.tiers[:-1])
    assert len(cluster.tiers) == 1 or cluster.tiers[-1].size is None
    for outer in cluster.tiers[1:]:
        assert outer.bandwidth_bytes_per_s < inner.bandwidth_bytes_per_s
        assert outer.latency_s > inner.latency_s
        assert 1e-6 < outer.latency_s < 1e-3
        assert cluster.with_num_gpus(1024).num_gpus == 1024


@pytest.mark.parametrize(
    ("name", "link_gb_per_s", "nic_gb_per_s"),
    [
        ("dgx-v100", 150, 6.25),
        ("dgx-a100-80gb", 300, 25),
        ("hgx-h100", 450, 50),
        ("hgx-b300", 900, 100),
        ("gb200-nvl72", 900, 50),
        ("gb300-nvl72", 900, 100),
        ("hgx-h800", 200, 50),
        ("aws-p4d", 300, 6.25),
        ("aws-p5", 450, 50),
        ("aws-p5en", 450, 50),
        ("gcp-a3-mega", 450, 25),
        ("mi355x", 535.5, 50),
    ],
)
def test_bandwidths_are_per_gpu_one_way(
    name: str, link_gb_per_s: float, nic_gb_per_s: float
) -> None:
    tiers = load_cluster(name).tiers
    assert tiers[0].bandwidth_bytes_per_s == pytest.approx(link_gb_per_s * 1e9)
    assert tiers[1].bandwidth_bytes_per_s == pytest.approx(nic_gb_per_s * 1e9)


def test_networks_differ_by_fabric() -> None:
    assert 0.7 < load_cluster("hgx-h100").tiers[1].efficiency < 0.9
    assert load_cluster("hgx-h100").tiers[1].latency_s == pytest.approx(10e-6)
    assert 0.55 < load_cluster("dgx-a100-80gb").tiers[1].efficiency < 0.8
    assert load_cluster("aws-p5").tiers[1].latency_s == pytest.approx(124e-6)


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8, 16, 24, 256])
def test_whole_nodes_and_divisors_of_one_are_sizes(num_gpus: int) -> None:
    assert load_cluster("hgx-h100", num_gpus).num_gpus == num_gpus


@pytest.mark.parametrize(
    ("num_gpus", "hint"),
    [
        (13, "8 or 16"),
        (12, "8 or 16"),
        (3, "1, 2, 4, 8"),
        (0, "at least 1"),
        (-8, "at least 1"),
        (1001, "1000 or 1008"),
    ],
)
def test_other_sizes_are_refused_with_what_is_possible(num_gpus: int, hint: str) -> None:
    with pytest.raises(SpecError, match=hint):
        load_cluster("hgx-h100", num_gpus)


def test_nvl72_is_sized_in_trays_and_joins_64_gpus_by_nvlink() -> None:
    cluster = load_cluster("gb200-nvl72", 12)
    assert (cluster.gpus_per_node, cluster.domain_size, cluster.num_nodes) == (4, 64, 3)
    with pytest.raises(SpecError, match="4 or 8"):
        load_cluster("gb200-nvl72", 6)


@pytest.mark.parametrize("name", sorted(UNSTATED_NETWORK))
def test_beyond_one_node_an_unstated_network_is_asked_for(name: str) -> None:
    assert load_cluster(name, 8).num_gpus == 8
    with pytest.raises(SpecError, match="--nic-gbit-per-s"):
        load_cluster(name, 16)
    added = load_cluster(name, 16, nic_gbit_per_s=100).tiers[1]
    assert added.bandwidth_bytes_per_s == pytest.approx(12.5e9)
    fitted = load_cluster("dgx-a100-80gb").tiers[-1]
    assert (added.size, added.efficiency) == (None, fitted.efficiency)
    assert added.latency_s == fitted.latency_s


def test_stated_network_is_overridden_and_keeps_its_efficiency() -> None:
    before, after = load_cluster("hgx-h100"), load_cluster("hgx-h100", nic_gbit_per_s=200)
    assert after.tiers[1].bandwidth_bytes_per_s == pytest.approx(25e9)
    assert after.tiers[1].efficiency == before.tiers[1].efficiency
    assert after.tiers[0] == before.tiers[0]


def test_overriding_the_nics_leaves_a_slower_spine_alone() -> None:
    fast, slow = loaded(document(), 800), loaded(document(), 100)
    assert [t.bandwidth_bytes_per_s / 1e9 for t in fast.tiers] == pytest.approx([450, 100, 25])
    assert [t.bandwidth_bytes_per_s / 1e9 for t in slow.tiers] == pytest.approx([450, 12.5, 12.5])


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e30])
def test_impossible_nic_rates_are_refused(rate: float) -> None:
    with pytest.raises(SpecError, match="--nic-gbit-per-s"):
        load_cluster("hgx-h100", nic_gbit_per_s=rate)


def test_unknown_accelerator_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="h100-80gb-sxm"):
        loaded(edited(None, "accelerator", "h100-80g-sxm"))


def inline_accelerator() -> dict[str, Any]:
    """An accelerator whose numbers take the source of the cluster around it."""
    line = {"ranks": 2, "a1_us": 5, "bw1_gb_per_s": 5, "a2_us": 9, "bw2_gb_per_s": 20}
    operations = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    gemm = {
        "max_efficiency": 0.7,
        "m0": 1,
        "n0": 1,
        "k0": 1,
        "memory_efficiency": 0.7,
        "launch_us": 3,
    }
    return {
        "name": "my-gpu",
        "vendor": "nvidia",
        "architecture": "ada",
        "measured": False,
        "platform": {"precisions": ["bf16"]},
        "memory": {"memory_gib": 23.5, "hbm_gb_per_s": 1000},
        "peak": {"peak_tflops": {"bf16": 165}},
        "gemm": gemm,
        "sustained": {"efficiency": 0.8},
        "attention": {
            "head_dims": [128],
            "max_efficiency": [0.5],
            "half_seq_length": 500,
            "memory_efficiency": 0.6,
            "launch_us": 10,
            "backward_ratio": 2.9,
        },
        "point_to_point": {"p2p_gb_per_s": 25},
        "collectives": {name: [dict(line)] for name in operations},
    }


def test_user_file_with_an_inline_accelerator(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(dump_yaml(edited(None, "accelerator", inline_accelerator())), encoding="utf-8")
    cluster = load_cluster(str(file), 32)
    assert (cluster.num_gpus, cluster.accelerator.name) == (32, "my-gpu")
    with pytest.raises(SpecError, match="at most 512"):
        cluster.with_num_gpus(1024)


def test_errors_inside_an_inline_accelerator_say_so() -> None:
    broken = inline_accelerator()
    broken["gemm"]["m0"] = "many"
    with pytest.raises(SpecError, match=r"^mine\.yaml: accelerator: gemm\.m0: .*number.*many"):
        loaded(edited(None, "accelerator", broken))


@pytest.mark.parametrize(
    ("index", "key", "value", "expected"),
    [
        (None, "source", ..., "source"),
        (None, "tiers", [], "tiers"),
        (None, "gpus_per_node", 0, "gpus_per_node"),
        (None, "gpus_per_node", 8.0, "gpus_per_node"),
        (None, "gpus_per_node", True, "gpus_per_node"),
        (None, "nodes", 4, "nodes"),
        (None, "name", "a\nb", "name"),
        (0, "size", None, r"tiers\[0\]\.size"),
        (0, "size", 6, r"tiers\[0\]\.size"),
        (1, "size", None, r"tiers\[1\]\.size"),
        (1, "size", 8, r"tiers\[1\]\.size: .*larger multiple.*8"),
        (1, "size", 12, r"tiers\[1\]\.size"),
        (1, "size", ..., r"tiers\[1\]\.size"),
        (0, "efficiency", 0, r"tiers\[0\]\.efficiency"),
        (0, "link_gb_per_s", ..., r"tiers\[0\]: .*link_gb_per_s"),
        (1, "link_gb_per_s", 50, r"tiers\[1\]: .*either"),
        (1, "nics_per_node", ..., r"tiers\[1\]: .*nics_per_node"),
        (2, "latency_us", -1, r"tiers\[2\]\.latency_us"),
        (None, "power", {"node_kw": -1}, r"power\.node_kw"),
        (None, "reliability", {"gpu_hours_between_failures": 0}, r"reliability\.gpu_hours"),
        (None, "storage", {"storage_gb_per_s_per_node": math.nan}, r"storage\.storage_gb"),
    ],
)
def test_wrong_keys_are_named_in_one_line(
    index: int | None, key: str, value: Any, expected: str
) -> None:
    with pytest.raises(SpecError, match=expected) as caught:
        loaded(edited(index, key, value))
    assert str(caught.value).startswith("mine.yaml: ")
    assert "\n" not in str(caught.value)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_thousands_of_mutated_documents_raise_only_our_errors(seed: int) -> None:
    random = Random(seed)
    for index in range(6):
        data = edited(None, "accelerator", inline_accelerator()) if index % 2 else document()
        rate = random.choice((None, None, 100, -5.0, math.nan, 1e9))
        try:
            loaded(mutated(data, random), rate).with_num_gpus(random.randint(-4, 64))
        except ParallelSimError as error:
            assert_readable(error)
