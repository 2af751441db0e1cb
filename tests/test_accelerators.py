"""Accelerator files: units, datasheet figures, and that malformed ones are refused in one line."""

import copy
import math
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import assert_readable, mutated

from parallelsim.catalog import accelerator_names, load_accelerator
from parallelsim.cluster import COLLECTIVES, AcceleratorSpec
from parallelsim.errors import ParallelSimError, SpecError
from parallelsim.plan import PRECISIONS
from parallelsim.schemas_build import build_accelerator
from parallelsim.schemas_cluster import FORMATS, checked_accelerator
from parallelsim.units import GIB, MIB


def document() -> dict[str, Any]:
    """A small valid accelerator file."""
    lines = [
        {"ranks": n, "a1_us": 5, "bw1_gb_per_s": 50, "a2_us": 20, "bw2_gb_per_s": 200}
        for n in (2, 8)
    ]
    return {
        "source": "own measurement",
        "name": "mine",
        "vendor": "nvidia",
        "architecture": "hopper",
        "measured": False,
        "platform": {"compute_capability": 9.0, "precisions": ["bf16", "fp8-current"]},
        "memory": {"memory_gib": 80, "hbm_gb_per_s": 3000},
        "peak": {"peak_tflops": {"bf16": 1000, "fp8": 2000}},
        "gemm": {
            "max_efficiency": 0.8,
            "m0": 10,
            "n0": 10,
            "k0": 100,
            "memory_efficiency": 0.7,
            "launch_us": 3,
        },
        "fp8": {"max_efficiency": 0.7, "sustained_ratio": {"fp8-current": 1.0}},
        "sustained": {"efficiency": 0.8},
        "attention": {
            "head_dims": [64, 128],
            "max_efficiency": [0.5, 0.6],
            "half_seq_length": 800,
            "memory_efficiency": 0.3,
            "launch_us": 10,
            "backward_ratio": 2.8,
        },
        "point_to_point": {"p2p_gb_per_s": 370},
        "collectives": {name: copy.deepcopy(lines) for name in COLLECTIVES},
    }


def loaded(data: dict[str, Any]) -> AcceleratorSpec:
    return build_accelerator(checked_accelerator(data, "mine.yaml"))


def edited(path: str, value: Any) -> dict[str, Any]:
    data = document()
    *parents, last = path.split(".")
    target: Any = data
    for key in parents:
        target = target[int(key)] if isinstance(target, list) else target[key]
    if value is ...:
        del target[last]
    else:
        target[int(last) if isinstance(target, list) else last] = value
    return data


@pytest.mark.parametrize("name", accelerator_names())
def test_catalogue_file_loads_and_agrees_with_its_name(name: str) -> None:
    spec = load_accelerator(name)
    assert spec.name == name
    assert spec.sustained_efficiency <= 1
    for operation in COLLECTIVES:
        fit = spec.link_collectives[operation]
        assert fit.num_ranks in ((2, 4), (2, 4, 8))
        assert max(fit.a1_s) < 1e-3 > max(fit.a2_s)
        # The bulk line is the faster one at the end, or there would be no second line.
        assert all(
            b2 >= b1 for b1, b2 in zip(fit.bw1_bytes_per_s, fit.bw2_bytes_per_s, strict=True)
        )
        assert max(fit.bw2_bytes_per_s) < 1e12


def test_all_parts_that_the_measurements_name_are_there() -> None:
    assert set(accelerator_names()) >= {
        *("v100-16gb-sxm2", "v100-32gb-sxm3", "a100-40gb-sxm", "a100-80gb-sxm", "a100-80gb-pcie"),
        *("a800-80gb-sxm", "h100-80gb-sxm", "h100-96gb-hbm2e-500w", "h800-80gb-sxm"),
        *("h200-141gb-sxm", "b200-180gb-sxm", "b300-288gb-sxm", "gb200-186gb", "gb300-288gb"),
        *(
            "l40s-48gb",
            "rtx-4090-24gb",
            "mi300x-192gb",
            "mi325x-256gb",
            "mi350x-288gb",
            "mi355x-288gb",
        ),
    }


@pytest.mark.parametrize(
    ("name", "bf16_tflops", "fp8_tflops", "hbm_tb_per_s", "usable_gib"),
    [
        ("v100-16gb-sxm2", None, None, 0.9, 15.78),
        ("a100-40gb-sxm", 312, None, 1.555, 39.39),
        ("a100-80gb-sxm", 312, None, 2.039, 79.2),
        ("h100-80gb-sxm", 989, 1979, 3.35, 79.1),
        ("h200-141gb-sxm", 989, 1979, 4.8, 139.8),
        ("b200-180gb-sxm", 2250, 4500, 7.7, 178.35),
        ("gb200-186gb", 2500, 5000, 8.0, 185.03),
        ("rtx-4090-24gb", 165.2, 330.3, 1.008, 23.64),
        ("mi300x-192gb", 1307.4, 2614.9, 5.3, 191.98),
        ("mi355x-288gb", 2500, 5000, 8.0, 287.98),
    ],
)
def test_datasheet_figures_in_si_units(
    name: str,
    bf16_tflops: float | None,
    fp8_tflops: float | None,
    hbm_tb_per_s: float,
    usable_gib: float,
) -> None:
    spec = load_accelerator(name)
    for key, tflops in (("bf16", bf16_tflops), ("fp8", fp8_tflops)):
        if tflops is None:
            assert key not in spec.peak_flops
        else:
            assert spec.peak_flops[key] == pytest.approx(tflops * 1e12, rel=1e-9)
    assert spec.memory_bandwidth_bytes_per_s == pytest.approx(hbm_tb_per_s * 1e12, rel=1e-9)
    assert spec.memory_bytes / GIB == pytest.approx(usable_gib, abs=0.01)


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "h100-80gb-sxm", "b200-180gb-sxm"])
@pytest.mark.parametrize("precision", ["bf16", "fp8-delayed", "fp8-current", "mxfp8"])
def test_sustained_clocks_are_below_those_of_a_burst(name: str, precision: str) -> None:
    """Power limits take a tenth to a third; an fp8 recipe a few percent either way."""
    spec = load_accelerator(name)
    if precision not in spec.precisions:
        assert precision not in spec.fp8_sustained_ratio
        return
    assert 0.65 < spec.sustained_efficiency < 1.0
    assert 0.65 < spec.sustained_efficiency * spec.fp8_sustained_ratio.get(precision, 1.0) < 1.0


def test_h100_attention_and_collectives_in_si_units() -> None:
    spec = load_accelerator("h100-80gb-sxm")
    assert spec.attention.efficiency(128) == 0.653
    assert spec.attention.efficiency(100) == 0.653
    assert spec.attention.half_seq_length == 854.2
    assert spec.attention.launch_s == pytest.approx(10e-6)
    assert spec.gemm.launch_s == pytest.approx(2.82e-6)
    reduce = spec.link_collectives["all_reduce"]
    assert reduce.num_ranks == (2, 4, 8)
    assert reduce.a1_s[-1] == pytest.approx(15.99e-6)
    assert reduce.bw2_bytes_per_s[-1] == pytest.approx(457.5e9)
    assert spec.p2p_bytes_per_s == pytest.approx(376e9)


def test_precisions_follow_the_architecture() -> None:
    def precisions(name: str) -> set[str]:
        return set(load_accelerator(name).precisions)

    assert precisions("v100-16gb-sxm2") == {"fp32", "fp16"}
    assert precisions("a100-80gb-sxm") == {"fp32", "fp16", "bf16"}
    assert precisions("h100-80gb-sxm") >= {"fp8-delayed", "fp8-current", "fp8-blockwise"}
    assert not precisions("h100-80gb-sxm") & {"mxfp8", "nvfp4"}
    assert precisions("b200-180gb-sxm") == set(PRECISIONS)
    assert precisions("mi300x-192gb") == precisions("rtx-4090-24gb")
    assert precisions("mi355x-288gb") - precisions("mi300x-192gb") == {"mxfp8"}


def test_every_plan_precision_has_a_number_format() -> None:
    assert set(FORMATS) == set(PRECISIONS)


def test_only_parts_with_their_own_tables_and_runs_are_called_measured() -> None:
    measured = {name for name in accelerator_names() if load_accelerator(name).measured}
    expected = {"a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm", "gb200-186gb"}
    assert measured == expected


def test_cut_links_scale_bandwidth_and_keep_latency() -> None:
    whole, cut = load_accelerator("h100-80gb-sxm"), load_accelerator("h800-80gb-sxm")
    for operation in COLLECTIVES:
        a, b = whole.link_collectives[operation], cut.link_collectives[operation]
        assert a.a2_s == b.a2_s
        for left, right in zip(a.bw2_bytes_per_s, b.bw2_bytes_per_s, strict=True):
            assert right / left == pytest.approx(200 / 450, rel=1e-3)


def test_memory_in_mib_or_gib() -> None:
    data = edited("memory", {"memory_mib": 81559, "hbm_gb_per_s": 3000})
    assert loaded(data).memory_bytes == 81559 * MIB
    assert loaded(document()).memory_bytes == 80 * GIB


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("source", ..., "source"),
        ("gemm", ..., "gemm"),
        ("gemm.max_efficiency", 1.2, "gemm.max_efficiency"),
        ("gemm.max_efficiency", "0.8", "gemm.max_efficiency"),
        ("gemm.launch_us", -1, "gemm.launch_us"),
        ("gemm.speed", 3, "gemm.speed"),
        ("memory.memory_mib", 5, "memory"),
        ("memory.memory_gib", ..., "memory"),
        ("memory.hbm_gb_per_s", 0, "memory.hbm_gb_per_s"),
        ("peak.peak_tflops.bf16", ..., "peak.peak_tflops"),
        ("peak.peak_tflops.fp64", 67, "peak.peak_tflops"),
        ("platform.precisions", [], "platform.precisions"),
        ("platform.precisions", ["bf16", "fp8"], "platform.precisions[1]"),
        ("platform.precisions", ["nvfp4"], "peak.peak_tflops"),
        ("fp8", ..., "fp8"),
        ("fp8.sustained_ratio", {}, "fp8.sustained_ratio"),
        ("architecture", "pascal", "architecture"),
        ("attention.head_dims", [128, 64], "attention.head_dims"),
        ("attention.max_efficiency", [0.5], "attention.max_efficiency"),
        ("collectives.all_reduce.0.ranks", 8, "collectives.all_reduce"),
        ("collectives.all_to_all", ..., "collectives.all_to_all"),
        ("measured", 1, "measured"),
        ("sustained.efficiency", 10**400, "sustained.efficiency"),
        ("sustained.efficiency", math.nan, "sustained.efficiency"),
        ("memory.memory_gib", math.inf, "memory.memory_gib"),
    ],
)
def test_wrong_keys_are_named_in_one_line(path: str, value: Any, key: str) -> None:
    with pytest.raises(SpecError) as caught:
        loaded(edited(path, value))
    message = str(caught.value)
    assert message.startswith("mine.yaml: ")
    assert key in message
    assert "\n" not in message


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_thousands_of_mutated_documents_raise_only_our_errors(seed: int) -> None:
    random = Random(seed)
    for _ in range(5):
        try:
            loaded(mutated(document(), random))
        except ParallelSimError as error:
            assert_readable(error)
