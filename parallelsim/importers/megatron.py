"""A launch script, or an argument list, of Megatron-LM as a model and a plan.

The flags are those that :mod:`parallelsim.exporters.megatron` writes, their older names, and
Megatron-DeepSpeed's;
defaults are Megatron-LM's. What the flags do not say (the GPUs of a cluster, the nodes where a
launcher's option says less) stays open.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from parallelsim.errors import SpecError
from parallelsim.importers.arguments import Arguments
from parallelsim.importers.bash import commands
from parallelsim.importers.launchers import launched_gpus, slurm_variables
from parallelsim.importers.megatron_encoders import DECODER_LENGTH
from parallelsim.importers.megatron_model import NAME, model_from_arguments
from parallelsim.importers.megatron_plan import plan_fields
from parallelsim.importers.run import ImportedRun
from parallelsim.model import ModelSpec

_WANTED = ("--num-layers", "--hidden-size", "--micro-batch-size", "--tensor-model-parallel-size")
"""A command with a Python program and one of these flags is a run of Megatron-LM."""
DEEPSPEED = "megatron-deepspeed"
"""What predicts runs with ``--deepspeed`` best."""
_OTHER_MODELS = "ict|vision|vlm|retro|biencoder|multimodal"
"""In the names of programs whose models the flags do not describe alone."""


def import_megatron(
    text: str,
    file: str = "the script",
    environment: Mapping[str, str] | None = None,
    model: ModelSpec | None = None,
) -> ImportedRun:
    """The run that a launch script, or a bare list of arguments, describes.

    Args:
        text: bash, as in Megatron-LM's examples, or arguments alone.
        file: its name in messages.
        environment: variables that the script finds when it starts.
        model: what is trained, in place of what the flags say but for the sequence length.

    Raises:
        SpecError: no run or several, a value that is not set, flags that contradict each other.
    """
    words, notes, launcher = _run_words(text, file, environment or {})
    program = launcher[-1].rsplit("/", 1)[-1] if launcher else ""
    if model is None and re.search(_OTHER_MODELS, program):
        message = f"{program} trains a model that its flags do not describe; name one with --model"
        raise SpecError(message, file=file)
    run = run_of_arguments(words, file, model, is_bert="bert" in program)
    return replace(run, num_gpus=launched_gpus(launcher, text), notes=(*notes, *run.notes))


def run_of_arguments(
    words: Sequence[str], file: str, model: ModelSpec | None, *, is_bert: bool = False
) -> ImportedRun:
    """The run that the words behind the program's name describe.

    Args:
        words: flags and their values.
        file: where they stand, for messages.
        model: what is trained, in place of what the flags say but for the sequence length.
        is_bert: the program trains an encoder alone.

    Raises:
        SpecError: a value that is not set, flags that contradict each other.
    """
    arguments = Arguments.of(words, file)
    known = model or model_from_arguments(arguments, is_bert=is_bert)
    length = DECODER_LENGTH if arguments.has(DECODER_LENGTH) else "--seq-length"
    if model is not None and arguments.given(length) is not None:
        known = model.with_seq_length(arguments.whole(length))
    fields = plan_fields(arguments, known)
    if model is not None:  # its flags are not read
        _read_model_flags(words, arguments, is_bert=is_bert)
    ignored, not_modelled, unknown = arguments.unread()
    return ImportedRun(
        model=known,
        is_known=known.name != NAME,
        fields=fields,
        num_gpus=None,
        framework=DEEPSPEED if arguments.has("--deepspeed") else ImportedRun.framework,
        ignored=tuple(ignored),
        not_modelled=tuple(not_modelled),
        unknown=tuple(unknown),
        notes=tuple(arguments.notes),
    )


def _read_model_flags(words: Sequence[str], arguments: Arguments, *, is_bert: bool) -> None:
    """Count the flags of the model as read."""
    own = Arguments.of(words, arguments.file)
    with contextlib.suppress(SpecError):  # what the flags lack, the model that was given has
        model_from_arguments(own, is_bert=is_bert)
    arguments.read |= own.read


def _run_words(
    text: str, file: str, environment: Mapping[str, str]
) -> tuple[list[str], list[str], list[str]]:
    """(arguments of the program, notes, the words before it)."""
    first = next((s for line in text.splitlines() if (s := line.strip()) and s[0] != "#"), "")
    if first.startswith("--"):
        try:
            return shlex.split(text, comments=True), [], []
        except ValueError as error:
            raise SpecError(f"cannot be split into arguments: {error}", file=file) from None
    script = commands(text, file, slurm_variables(text) | dict(environment), is_megatron_run)
    if not script.found:
        why = f" ({script.notes[0]})" if script.notes else ""
        message = f"starts no Python program with {_WANTED[0]} or {_WANTED[1]}{why}"
        if text.lstrip().startswith(("{", "[")):
            message = (
                "no configuration that is read: a JSON of DeepSpeed has train_batch_size or "
                "zero_optimization, a TOML of torchtitan [model] and [training] or [parallelism]"
            )
        raise SpecError(message, file=file)
    command, *others = script.found
    if any(other.words != command.words for other in others):
        lines = ", ".join(str(found.line) for found in script.found)
        raise SpecError(f"starts several runs (lines {lines}); keep one", file=file)
    at = _program(command.words)
    return list(command.words[at + 1 :]), script.notes, list(command.words[: at + 1])


def is_megatron_run(words: Sequence[str]) -> bool:
    """The words of a command start a Python program with Megatron-LM's flags."""
    flags = {word.partition("=")[0] for word in words}
    return any(word.endswith(".py") for word in words) and bool(flags & set(_WANTED))


def _program(words: Sequence[str]) -> int:
    """Position of the program's name."""
    return next(i for i, word in enumerate(words) if word.endswith(".py"))
