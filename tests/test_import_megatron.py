"""What an exported script says is what an import reads; people's scripts are read as bash would."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import PlanError, SpecError
from parallelsim.exporters.megatron import export_megatron, refusals
from parallelsim.exporters.megatron_flags import DEFAULT_VERSION, VERSIONS
from parallelsim.exporters.megatron_hybrid import chunk_layers, mixer_of
from parallelsim.importers.bash import commands
from parallelsim.importers.bash_conditions import holds
from parallelsim.importers.bash_expand import Variables
from parallelsim.importers.megatron import import_megatron
from parallelsim.importers.readers import reader_of
from parallelsim.plan import Plan
from parallelsim.rules import obeys_rules

MEGATRON = load_framework("megatron-core")
NODES = {"NODE_RANK": "0", "MASTER_ADDR": "node0"}
MODELS = (
    *("gpt3-175b", "llama3-70b", "nemotron4-340b", "qwen2.5-72b", "mixtral-8x7b"),
    *("deepseek-v3", "gpt-oss-20b", "llama4-maverick", "nemotron-h-8b"),
)
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bf16", {}),
    ("fp8-current", {"zero": 3, "optimizer": "adam-bf16", "overlap_grad_reduce": True}),
    ("mxfp8", {"optimizer_offload_pct": 50, "zero": 1}),
    ("fp16", {"optimizer": "sgd", "recompute": "full"}),
)
"""Precision, and what is fixed."""
PLANS_OF_A_KIND = 6


def some_plans(space: SearchSpace, count: int, seed: str) -> Iterator[Plan]:
    """Random plans of a space that obey the rules and that Megatron-LM can run."""
    rng = random.Random(seed)
    version = VERSIONS[DEFAULT_VERSION]
    while count:
        pp = rng.choice(space.pipeline_degrees)
        rows = len(space.unstaged(pp))
        if not rows:
            continue
        batch = next(space.expand(pp, np.array([rng.randrange(rows)])), None)
        if batch is None or not len(batch):
            continue
        some = batch.take(np.array([rng.randrange(len(batch)) for _ in range(4)]))
        ok = obeys_rules(space.model, space.cluster, space.framework, some)
        for plan in some.take(ok):
            if count and not list(refusals(space.model, plan, version)):
                count -= 1
                yield plan


@pytest.mark.parametrize("name", MODELS)
def test_a_script_is_read_as_the_plan_that_it_was_written_from(name: str) -> None:
    cluster = load_cluster("gb200-nvl72", 64)
    model = load_model(name)
    limits = {"grad_dtype": ("fp32", "bf16"), "cuda_graphs": (False, True)}
    for precision, fixed in KINDS if name != "gpt-oss-20b" else KINDS[:1]:
        space = SearchSpace(
            *(model, cluster, MEGATRON, 256), precision=precision, fixed=fixed, limits=limits
        )
        for plan in some_plans(space, PLANS_OF_A_KIND, name + precision):
            script = export_megatron(model, cluster, MEGATRON, plan)
            run = import_megatron(script, "run.sh", NODES)
            read = run.plan(64)
            if mixer_of(model):  # the pattern cuts its layers, whatever the layout is called
                assert chunk_layers(model.num_layers, read) == chunk_layers(model.num_layers, plan)
                same = dict.fromkeys(("layout", "first_stage_layers", "last_stage_layers"))
                same = {field: getattr(plan, field) for field in (*same, "chunk_layers")}
                read = replace(read, **same)
            assert read == plan
            assert run.num_gpus == 64
            assert (run.unknown, run.not_modelled, run.notes) == ((), (), ())
            assert run.is_known
            assert (run.model.name, run.model.layers) == (name, model.layers)
            assert run.model.seq_length == model.seq_length


TRICKY = r"""#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=8
set -euo pipefail  # a comment
export TP=${TP:-8} PP
PP=4; CP=$((TP / 8 * 2))   # 2
LAYERS='80'
: "${MBS:=1}"
NAME="llama's \"big\" one"
if [[ -n "${FAST:-}" && $TP -gt 1 ]] || [ ! -f missing.py ]; then EXTRA=(--never); else EXTRA=(); fi
case "$LAYERS" in
  [0-9]) KIND=small ;;
  80|81) KIND=big;;
  *) exit 1 ;;
esac
degrees() {
  DEGREES=" --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size $PP"
}
degrees
ARGS=(
  --num-layers ${LAYERS}   # of the model
  --name "${NAME}" --kind "$KIND-${#LAYERS}${LAYERS%0}"
  "--split '99,1,0'" '--note' 'one $TP'
)
ARGS+=("${EXTRA[@]}" --cp=$CP --rest=$((-7 % 3)))
declare -A SIZE=([small]=2 [big]=$((TP > 4 ? TP * 2 : 0))) && SIZE[huge]="3 4"
let VP=1+1; ((VP = VP * 2)); if ((VP += 1)); then ARGS+=("$VP" $[2**VP - VP] "${10:-ten}"); fi
ARGS+=(${SIZE[$KIND]} "${SIZE[huge]}")
join() { local out=$1; shift; for part in "$@"; do out+="-$part"; done; JOINED="$out,$#"; }
join a "b c" d
for kind in small big huge; do
  [ $kind = small ] && continue
  ARGS+=("${SIZE[$kind]}$JOINED")
  if [[ $kind == big && $TP -gt 4 ]]; then for x in 1 2; do break; done; continue; fi
  break
done
N=0
while ((N < 3)); do N=$((N + 1)); if [ $N -eq 2 ]; then ARGS+=("turn$N"); fi; done
until [ $N = 0 ]; do N=$((N - 1)); done
while [[ $# -gt 0 ]]; do
  case $1 in
    --mbs) MBS="$2"; shift 2 ;;
    --name=*) ARGS+=("${1#*=}"); shift ;;
    *) echo "unknown $1"; exit 1 ;;
  esac
done
[ "$TP" = 8 ] && ARGS+=(--sequence-parallel) || ARGS+=(--wrong)
[[ $KIND == b* ]] || exit 3
mkdir -p "/tmp" || { echo "no"; exit 1; }
torchrun --nnodes 4 --nproc_per_node=8 \
    pretrain_gpt.py ${ARGS[@]} ${DEGREES} --micro-batch-size "$MBS" 2>&1 | tee log.txt
"""


def test_words_are_those_that_bash_passes_on(tmp_path: Path) -> None:
    stub = tmp_path / "torchrun"
    stub.write_text(
        f"#!{sys.executable}\nimport sys\nopen('out', 'w').write('\\0'.join(sys.argv[1:]))\n"
    )
    stub.chmod(0o755)
    (tmp_path / "missing.py").write_text("")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    arguments = ["--mbs", "4", "--name=a b", "--mbs", "2"]
    command = ["bash", "-c", TRICKY, "run.sh", *arguments]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    by_bash = (tmp_path / "out").read_text().split("\0")
    environment |= {str(place): value for place, value in enumerate(arguments, 1)}
    read = commands(TRICKY, "run.sh", environment, lambda words: "torchrun" in words)
    assert [list(found.words[1:]) for found in read.found] == [by_bash]
    assert read.notes == []


BARE = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 "
    "--position-embedding-type rope --rotary-base 500000 --swiglu --normalization RMSNorm "
    "--disable-bias-linear "
    "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --bf16 "
    "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2"
)


def test_bare_arguments_are_read_and_what_is_passed_over_is_listed() -> None:
    text = f"{BARE} --lr 1e-4 --cpu-offloading --frobnicate 3 --sequence-parallel"
    run = import_megatron(text, "arguments.txt")
    assert run.model.name == "llama3-8b"
    assert run.ignored == ("--lr",)
    assert run.not_modelled == ("--cpu-offloading",)
    assert run.unknown == ("--frobnicate",)
    assert run.num_gpus is None
    plan = run.plan(16)
    assert (plan.tp, plan.dp, plan.sequence_parallel, plan.zero) == (2, 8, True, 0)
    assert (plan.precision, plan.grad_dtype, plan.schedule) == ("bf16", "fp32", "none")


def test_layers_that_the_catalogue_does_not_have_become_a_model_of_their_own() -> None:
    run = import_megatron(BARE.replace("--num-layers 32", "--num-layers 48 --vocab-size 50000"))
    assert not run.is_known
    assert (run.model.num_layers, run.model.vocab_size) == (48, 50000)
    mine = load_model("llama3-8b", overrides={"num_layers": 48}).with_seq_length(4096)
    named = import_megatron(BARE.replace("--num-layers 32", "--num-layers 48"), model=mine)
    assert (named.model, named.unknown) == (mine.with_seq_length(8192), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"torchrun pretrain_gpt.py {BARE} --context-parallel-size $CP", "$CP is not set; set it"),
        (
            f"torchrun pretrain_gpt.py {BARE} --context-parallel-size $1",
            "$1 is not set; give the script its",
        ),
        (f"{BARE} --micro-batch-size 2", "--micro-batch-size: given twice, with '1' and '2'"),
        (f"{BARE} --fp16", "--fp16: contradicts --bf16"),
        (f"{BARE} --use-torch-fsdp2", "--use-torch-fsdp2: is not modelled"),
        (f"{BARE} --squared-relu", "--swiglu: contradicts --squared-relu"),
        (f"{BARE} --fp8-recipe exotic", "--fp8-recipe: expected delayed, tensorwise"),
        (f"{BARE} --pipeline-model-parallel-layout Et|x", "letters E t m L"),
        (BARE.replace("--num-layers 32", "--num-layers many"), "expected a whole number"),
        (BARE.replace("--num-layers 32", "--num-layers 31"), "states no --vocab-size"),
        ('[model]\nname = "llama3"', "a TOML of torchtitan [model] and [training]"),
        ("echo hello", "starts no Python program with --num-layers"),
        (
            f"a pretrain_gpt.py {BARE}\nb pretrain_gpt.py {BARE} --bf16 -x",
            "several runs (lines 1, 2)",
        ),
        (
            f"torchrun pretrain_vlm.py {BARE}",
            "that its flags do not describe; name one with --model",
        ),
        (
            f"torchrun pretrain_gpt.py {BARE} --train-iters $((N * 2)) --num-experts $((N * 2))",
            "$N",
        ),
        ("if true; then torchrun", "the if of line 1 has no fi"),
        ("A='never closed", "that starts in line 1 does not end"),
        ("cat <<EOF\nnever closed", "here-document << EOF that starts in line 2 does not end"),
    ],
)
def test_a_script_that_cannot_be_read_is_one_line(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        import_megatron(text, "run.sh")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("run.sh: ")


def test_degrees_that_do_not_divide_the_gpus_say_so() -> None:
    run = import_megatron(f"torchrun --nproc_per_node 9 pretrain_gpt.py {BARE}")
    with pytest.raises(PlanError, match="tp=2 x cp=1 x pp=1 = 2 does not divide 9 GPUs"):
        run.plan(run.num_gpus or 0)


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        *[("many -gt 1", None), ("! many -gt 1", None), ("a = a && many -gt 1", None)],
        *[("a = a || many -gt 1", True), ("many -gt 1 || a = b", None)],
        *[("many -gt 1 && a = b", False), ("2 -gt 1 -a a = a", True), ("-n a -o many -gt 1", True)],
    ],
)
def test_a_condition_is_undecided_only_where_what_is_unknown_decides(
    condition: str, value: bool | None
) -> None:
    assert holds(condition.split(), Variables({}, [])) is value


PIECES = [
    *(
        "if ",
        "then ",
        "fi\n",
        "case ",
        "esac\n",
        "in ",
        "for ",
        "while ",
        "until ",
        "do ",
        "done\n",
    ),
    *("true", "break", "continue", "shift ", "set -- ", "let ", "a", "1", "$a", "${a", "$@", "f()"),
    *(
        "{ ",
        "}",
        "(",
        ")",
        "[ ",
        " ]",
        "<<",
        "<",
        ">",
        "|",
        "&",
        ";",
        "'",
        '"',
        "`",
        "\\",
        "\n",
        "$",
    ),
    *("=", "#", "*", "-", "!", " ", "((", "))", "$((", "a=1\n", "a+=(b c)\n", "[1]", "%", "?", ":"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(SpecError):
        reader_of(text).read(text, "run.sh", {})
