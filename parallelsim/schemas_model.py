"""What a model file may hold: the check in front of ``schemas_build`` for files of users.

pydantic checks names and types, :class:`ModelSpec` checks ranges; both failures are one line that
names the file, the key and what was expected. A check returns the mapping as it was. Keys that may
be left out are :data:`OPTIONAL` here; their values are the dataclasses' defaults.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from parallelsim.errors import SpecError
from parallelsim.yaml_io import require_sources, shown, shown_file, shown_key

OPTIONAL: Any = None
"""Marks a key that may be left out; what it then means is the builder's business."""


class StrictModel(BaseModel):
    """A mapping with known keys alone, and values of exactly the stated types.

    A whole number is good for a float. The validators are built when the first file is read.
    """

    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)


Activation = Literal["silu", "clamped-silu", "gelu", "relu", "squared-relu"]
Schema = TypeVar("Schema", bound=StrictModel)


class AttentionFile(StrictModel):
    """Softmax attention."""

    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    qkv_bias: bool = OPTIONAL
    output_bias: bool = OPTIONAL
    qk_norm: bool = OPTIONAL
    causal: bool = OPTIONAL
    window: int | None = OPTIONAL
    chunked: bool = OPTIONAL
    sinks: bool = OPTIONAL
    rope: bool = OPTIONAL
    qk_l2_norm: bool = OPTIONAL


class CrossAttentionFile(StrictModel):
    """Softmax attention over the whole of another sequence."""

    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    qkv_bias: bool = OPTIONAL
    output_bias: bool = OPTIONAL
    qk_norm: bool = OPTIONAL
    kv_seq_length: int
    kv_hidden_size: int | None = OPTIONAL


class LatentAttentionFile(StrictModel):
    """Multi-head latent attention."""

    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = OPTIONAL
    causal: bool = OPTIONAL


class StateSpaceFile(StrictModel):
    """A Mamba-2 mixer."""

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int = OPTIONAL
    chunk_size: int = OPTIONAL
    conv_bias: bool = OPTIONAL


class SelectiveScanFile(StrictModel):
    """A Mamba-1 mixer."""

    inner_width: int
    state_size: int
    dt_rank: int
    conv_kernel: int = OPTIONAL
    conv_bias: bool = OPTIONAL
    inner_norms: bool = OPTIONAL


class MLPFile(StrictModel):
    """A feed-forward network."""

    ffn_hidden_size: int
    gated: bool
    activation: Activation
    bias: bool = OPTIONAL


class ExpertsFile(StrictModel):
    """A mixture of experts."""

    num_experts: int
    top_k: int
    ffn_hidden_size: int
    gated: bool
    activation: Activation
    bias: bool = OPTIONAL
    shared_ffn_hidden_size: int = OPTIONAL
    shared_gate: bool = OPTIONAL
    router: Literal["softmax", "sigmoid"] = OPTIONAL
    router_bias: bool = OPTIONAL
    num_groups: int = OPTIONAL
    group_top_k: int = OPTIONAL
    capacity_factor: float | None = OPTIONAL
    load_cv: float = OPTIONAL
    latent_size: int | None = OPTIONAL
    router_pre_softmax: bool = OPTIONAL
    score_scale: float = OPTIONAL
    scales_input: bool = OPTIONAL


def _size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise PydanticCustomError("size_type", "neither a number nor text")
    return value


Size = Annotated[Any, BeforeValidator(_size)]
"""A number, or arithmetic in the symbols of ``expressions``."""


class OperatorFile(StrictModel):
    """One operator of a custom layer; which sizes it needs depends on its kind."""

    name: str = Field(default=OPTIONAL, min_length=1, max_length=100)
    kind: str
    weights: bool = OPTIONAL
    causal: bool = OPTIONAL
    group: str = OPTIONAL
    m: Size = OPTIONAL
    n: Size = OPTIONAL
    k: Size = OPTIONAL
    height: Size = OPTIONAL
    width: Size = OPTIONAL
    in_channels: Size = OPTIONAL
    out_channels: Size = OPTIONAL
    kernel_size: Size = OPTIONAL
    stride: Size = OPTIONAL
    num_heads: Size = OPTIONAL
    num_query_groups: Size = OPTIONAL
    head_dim: Size = OPTIONAL
    forward_bytes: Size = OPTIONAL
    backward_bytes: Size = OPTIONAL
    bytes: Size = OPTIONAL
    parameters: Size = OPTIONAL
    saved_bytes: Size = OPTIONAL


class LayerFile(StrictModel):
    """One layer: its sub-layers in the order in which they run.

    Without ``num_norms`` there is one for each sub-layer.
    """

    attention: AttentionFile | None = OPTIONAL
    latent_attention: LatentAttentionFile | None = OPTIONAL
    state_space: StateSpaceFile | None = OPTIONAL
    selective_scan: SelectiveScanFile | None = OPTIONAL
    cross_attention: CrossAttentionFile | None = OPTIONAL
    mlp: MLPFile | None = OPTIONAL
    experts: ExpertsFile | None = OPTIONAL
    operators: list[OperatorFile] = Field(default=OPTIONAL, min_length=1, max_length=1000)
    input_values: Size = OPTIONAL
    num_norms: int = OPTIONAL
    parallel: bool = OPTIONAL
    seq_length: int | None = OPTIONAL


class BlockFile(StrictModel):
    """``repeat`` copies of a short sequence of layers."""

    repeat: int
    layers: list[LayerFile] = Field(min_length=1, max_length=1000)


class ArchitectureFile(StrictModel):
    """The network: all that decides the parameter count."""

    source: str | None = OPTIONAL
    hidden_size: int
    vocab_size: int
    max_seq_length: int
    position_embedding: Literal["rope", "learned", "alibi", "relative", "none"]
    norm: Literal["rmsnorm", "layernorm"]
    tied_embeddings: bool
    rotary_base: float = Field(default=OPTIONAL, ge=1, le=1e12)
    rotary_percent: float = Field(default=OPTIONAL, gt=0, le=1)
    norm_bias: bool = OPTIONAL
    norm_affine: bool = OPTIONAL
    embedding_norm: bool = OPTIONAL
    final_norm: bool = OPTIONAL
    num_token_types: int = Field(default=OPTIONAL, ge=0, le=1000)
    output_bias: bool = OPTIONAL
    head_transform: bool = OPTIONAL
    pooler: bool = OPTIONAL
    relative_position_buckets: int = OPTIONAL
    num_mtp_layers: int = OPTIONAL
    mtp_layers: list[LayerFile] = Field(default=OPTIONAL, min_length=1, max_length=100)
    input_operators: list[OperatorFile] = Field(default=OPTIONAL, min_length=1, max_length=1000)
    output_operators: list[OperatorFile] = Field(default=OPTIONAL, min_length=1, max_length=1000)
    blocks: list[BlockFile] = Field(min_length=1, max_length=1000)


class LoRAFile(StrictModel):
    """Adapters that are trained in place of the model's own parameters."""

    rank: int
    targets: list[str] = OPTIONAL


class TrainingFile(StrictModel):
    """How it was trained; ``global_batch_tokens`` is left out where no source states it."""

    source: str | None = OPTIONAL
    seq_length: int = Field(ge=1)
    global_batch_tokens: int | None = Field(default=OPTIONAL, ge=1)
    hidden_dropout: float = Field(default=OPTIONAL, ge=0, lt=1)
    attention_dropout: float = Field(default=OPTIONAL, ge=0, lt=1)
    lora: LoRAFile | None = OPTIONAL


class PublishedFile(StrictModel):
    """The parameter count of a source; where exact, the architecture must count the same."""

    source: str | None = OPTIONAL
    value: int = Field(ge=1)
    exact: bool


class ModelFile(StrictModel):
    """A whole model file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
    title: str = OPTIONAL
    source: str | None = OPTIONAL
    architecture: ArchitectureFile
    training: TrainingFile
    published_parameters: PublishedFile | None = OPTIONAL


def checked_model(data: dict[str, Any], file: str) -> dict[str, Any]:
    """The mapping itself, where a model file may hold it.

    Raises:
        SpecError: unknown, missing or malformed keys; numbers without source.
    """
    validated(ModelFile, data, file)
    require_sources(data, file)
    return data


def validated(schema: type[Schema], data: dict[str, Any], file: str) -> Schema:
    """``data`` as an instance of ``schema``, for checks of keys against each other.

    Raises:
        SpecError: the first key that is wrong, what it holds and what was expected.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        problems: list[dict[str, Any]] = [
            dict(each) for each in error.errors(include_url=False, include_context=True)
        ]
        first, hint = _misspelt(problems) or (problems[0], "")
        where = shown_key(first["loc"])
        raise SpecError(_problem(first) + hint, file=shown_file(file), key=where) from None


def _misspelt(problems: list[dict[str, Any]]) -> tuple[dict[str, Any], str] | None:
    """The first unknown key that is near a missing one of the same mapping, and a hint."""
    for problem in problems:
        if problem["type"] == "extra_forbidden":
            *parent, name = problem["loc"]
            missing = [
                str(other["loc"][-1])
                for other in problems
                if other["type"] == "missing" and list(other["loc"][:-1]) == parent
            ]
            if near := get_close_matches(str(name), missing, n=1):
                return problem, f", did you mean {near[0]}?"
    return None


def _problem(error: dict[str, Any]) -> str:
    kind = error["type"]
    if kind == "missing":
        return "this key is missing"
    if kind == "extra_forbidden":
        return "unknown key"
    expected = _EXPECTED.get(kind)
    if expected is None:
        message = str(error["msg"]).removeprefix("Input should be ").splitlines()[0]
        expected = message[:1].lower() + message[1:]
    return f"expected {expected}, got {shown(error['input'])}"


_EXPECTED = {
    "string_pattern_mismatch": "a short name of letters, digits and . _ + -",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "size_type": "a number, or arithmetic in symbols",
    "list_type": "a list",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}
