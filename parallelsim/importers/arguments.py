"""The arguments of a Megatron-LM run: flags with their values, and which of them were read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from parallelsim.errors import SpecError
from parallelsim.importers.bash_expand import unset_names, without_unset

MAX_SHOWN = 40
OLDER_NAMES = {
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--batch-size": "--micro-batch-size",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--encoder-num-layers": "--num-layers",
    "--encoder-seq-length": "--seq-length",
}
"""Of flags: in releases before 2022 and in forks of those, and where there is a decoder as well."""
HARMLESS = (
    *("--adam-", "--async-save", "--attention-softmax-in-fp32", "--calculate-per-token-loss"),
    *("--check-for-nan", "--ckpt-", "--clip-grad", "--create-attention-mask", "--data-", "--dist-"),
    *("--dataloader-type", "--decoupled-", "--disable-bf16-reduced-precision-matmul"),
    *("--distributed-", "--enable-experimental", "--enable-gpt-oss", "--eod-mask-loss"),
    *("--eval-", "--exit-", "--finetune", "--finetune-", "--hysteresis", "--init-method-"),
    *("--initial-loss-scale", "--lazy-mpu-init", "--load", "--local-rank", "--log-", "--logging-"),
    *("--loss-scale", "--lr", "--lr-", "--make-vocab-size-divisible-by", "--merge-file"),
    *("--min-loss-scale", "--min-lr", "--mock-data", "--moe-aux-loss-coeff", "--moe-per-layer-"),
    *("--moe-router-bias-update-rate", "--moe-router-force-load-balancing"),
    *("--moe-router-load-balancing-type", "--moe-z-loss-coeff", "--mscale", "--mscale-"),
    *("--mtp-loss-",),
    *("--muon-", "--norm-epsilon", "--layernorm-epsilon", "--no-check-for-nan-in-loss-and-grad"),
    *("--no-create-attention-mask-in-dataloader", "--no-data-sharding", "--no-load-"),
    *("--no-mmap-bin-files", "--no-one-logger", "--no-save-", "--no-position-embedding"),
    *("--num-dataset-builder-threads", "--num-workers", "--one-logger-", "--override-"),
    *("--rerun-mode", "--reset-", "--rope-scaling", "--rope-type", "--rotary-scaling-factor"),
    *("--rotary-seq-len-", "--save", "--save-", "--seed", "--sgd-momentum", "--spec", "--split"),
    *("--start-weight-decay", "--end-weight-decay", "--te-rng-tracker", "--tensorboard-"),
    *("--tiktoken-", "--timing-log-", "--tokenizer-", "--train-", "--transformer-impl"),
    *("--use-checkpoint", "--use-mcore-models", "--use-rope-scaling", "--use-cpu-initialization"),
    *("--valid-data-path", "--test-data-path", "--vocab-extra-ids", "--vocab-file"),
    *("--wandb-", "--weight-decay", "--weight-decay-", "--yarn-", "--auto-detect-ckpt-format"),
    *(
        "--apply-layernorm-1p",
        "--rampup-batch-size",
        "--step-batch-size-schedule",
        "--profile",
        "--profile-",
    ),
    *("--fp8-amax-", "--fp8-margin", "--fp8-interval", "--init-model-with-meta-device"),
    *("--use-dist-ckpt", "--warmup", "--use-pytorch-profiler", "--record-memory-history"),
    *("--abort-on-unmet-fused-kernel-constraints", "--dataset", "--deepspeed-config"),
    *("--extra-vocab-size", "--kill-switch-path"),
    *("--patch-tokenizer-type", "--scatter-gather-tensors-in-pipeline"),
    *("--no-pipeline-parallel", "--sync-tp-duplicated-parameters"),
    *("--export-force-local-attention", "--replication", "--skip-train", "--iterations-to-skip"),
)
"""Flags, and beginnings of flags that end in ``-``, that change neither time nor memory of a step,
or nothing that is predicted."""
NOT_MODELLED = (
    *("--cpu-offloading", "--ddp-bucket-size", "--ddp-num-buckets", "--delay-wgrad-compute"),
    *("--defer-embedding-wgrad-compute", "--disable-tp-comm-", "--distribute-saved-activations"),
    *("--empty-unused-memory-level", "--fine-grained-activation-offloading"),
    *("--first-last-layers-bf16", "--fp8-wgrad", "--fsdp-double-buffer"),
    *("--fsdp-manual-registration", "--high-priority-stream-groups"),
    *("--keep-fp8-transpose-cache", "--main-grads-dtype", "--main-params-dtype"),
    *("--megatron-fsdp-grad-comm-dtype", "--megatron-fsdp-main-grads-dtype"),
    *("--megatron-fsdp-main-params-dtype", "--moe-shared-expert-overlap"),
    *("--microbatch-group-size-per-virtual-pipeline-stage", "--moe-token-drop-policy"),
    *("--no-bias-dropout-fusion", "--no-bias-swiglu-fusion", "--no-fp8-wgrad"),
    *("--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion"),
    *("--no-overlap-p2p-communication", "--overlap-p2p-communication-warmup-flush"),
    *("--overlap-param-gather-with-optimizer-step", "--pipeline-model-parallel-comm-backend"),
    *("--tp-comm-overlap-cfg", "--tp-comm-split-ag", "--use-nccl-ub"),
    *("--use-tp-pp-dp-mapping", "--no-async-tensor-model-parallel-allreduce"),
    *("--partition-activations", "--cpu-optimizer"),
)
"""Flags that may change time or memory, and that no field of a plan says."""


@dataclass
class Arguments:
    """Flags of one run with their values."""

    file: str
    values: dict[str, list[list[str]]]
    """By flag, the values of each time that it is given."""
    read: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str], file: str) -> Arguments:
        """From the words behind the program's name, as argparse takes them."""
        values: dict[str, list[list[str]]] = {}
        notes: list[str] = []
        current: list[str] | None = None
        for word in words:
            flag, equals, value = word.partition("=")
            if re.fullmatch(r"--[A-Za-z][\w-]*", flag):
                flag = "--" + flag[2:].replace("_", "-")
                flag = OLDER_NAMES.get(flag, flag)
                current = [value] if equals else []
                values.setdefault(flag, []).append(current)
            elif current is not None and word:
                current.append(word)
            elif unset_names(word):
                notes.append(f"{unset_names(word)[0]} is not set: taken as no argument")
        return cls(file, values, notes=notes)

    def has(self, flag: str) -> bool:
        """Whether a switch is given."""
        self.read.add(flag)
        return flag in self.values

    def given(self, flag: str) -> list[str] | None:
        """The values of a flag; None where it is not given.

        Raises:
            SpecError: given twice with different values, or a value is not set.
        """
        self.read.add(flag)
        if flag not in self.values:
            return None
        first, *others = self.values[flag]
        for other in others:
            if other != first:
                words = f"{' '.join(first)[:MAX_SHOWN]!r} and {' '.join(other)[:MAX_SHOWN]!r}"
                raise self.error(flag, f"given twice, with {without_unset(words)}; keep one")
        for value in first:
            for name in unset_names(value):
                raise self.error(flag, f"{name[:MAX_SHOWN]} is not set; {_advice(name)}")
        return first

    def text(self, flag: str, default: str = "") -> str:
        """The one value of a flag."""
        values = self.given(flag)
        if values is None:
            return default
        if len(values) != 1:
            raise self.error(flag, f"expected one value, got {len(values)}")
        return values[0]

    def whole(self, flag: str, default: int = 0) -> int:
        """The one value of a flag as a whole number."""
        text = self.text(flag, str(default))
        if not re.fullmatch("[0-9]{1,9}", text):
            raise self.error(flag, f"expected a whole number, got {text[:MAX_SHOWN]!r}")
        return int(text)

    def number(self, flag: str, default: float) -> float:
        """The one value of a flag as a number."""
        text = self.text(flag, str(default))
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not abs(value) <= 1e12:
            raise self.error(flag, f"expected a number, got {text[:MAX_SHOWN]!r}")
        return value

    def choice(self, flag: str, choices: Sequence[str], default: str) -> str:
        """The one value of a flag, of the given ones."""
        text = self.text(flag, default)
        if text not in choices:
            raise self.error(flag, f"expected {', '.join(choices)}, got {text[:MAX_SHOWN]!r}")
        return text

    def pattern(self, flag: str, length: int, last_of_group: int) -> list[int] | None:
        """A list of 0 and 1 for each layer.

        Written as Megatron-LM evaluates it, ``[0]*3+[1]*58``, or as the length of a group of layers
        of which the last one has ``last_of_group``, the others not.
        """
        if self.given(flag) is None:
            return None
        text = self.text(flag).strip("'\"").replace(" ", "")
        if text.isdigit() and 0 < int(text) <= 10**6:
            other = 1 - last_of_group
            return [other if (i + 1) % int(text) else last_of_group for i in range(length)]
        numbers: list[int] = []
        for part in text.strip("()").split("+"):
            match = re.fullmatch(r"\(*(\[[01,]*\])\)*(?:\*([0-9]{1,5}))?\)*", part)
            if not match:
                raise self.error(flag, f"expected a list of 0 and 1, got {text[:MAX_SHOWN]!r}")
            numbers += [int(n) for n in re.findall("[01]", match[1])] * int(match[2] or 1)
        if len(numbers) != length:
            raise self.error(flag, f"lists {len(numbers)} layers, the model has {length}")
        return numbers

    def error(self, flag: str, message: str) -> SpecError:
        """An error that names the file and the flag."""
        return SpecError(message, file=self.file, key=flag)

    def conflict(self, *flags: str) -> None:
        """Refuse switches that exclude each other."""
        given = [flag for flag in flags if self.has(flag)]
        if len(given) > 1:
            raise self.error(given[0], f"contradicts {given[1]}; keep one")

    def unread(self) -> tuple[list[str], list[str], list[str]]:
        """(harmless, not modelled, unknown) flags that were not read, in the order given."""
        harmless, unmodelled, unknown = list[str](), list[str](), list[str]()
        for flag in self.values:
            if flag in self.read:
                continue
            if _is_among(flag, NOT_MODELLED):
                unmodelled.append(flag)
            else:
                (harmless if _is_among(flag, HARMLESS) else unknown).append(flag)
        return harmless, unmodelled, unknown


def _is_among(flag: str, names: Sequence[str]) -> bool:
    return any(flag == name or (name[-1] == "-" and flag.startswith(name)) for name in names)


def _advice(name: str) -> str:
    if name[1:].isdecimal():
        return "give the script its arguments, in quotes: 'run.sh first second'"
    if name[1:].isidentifier():
        return f"set it in the environment ({name[1:]}=... parallelsim ...) or in the script"
    return "write its value into the script"
