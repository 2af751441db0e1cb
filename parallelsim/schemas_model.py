"""What a model file may hold, and the :class:`ModelSpec` that it describes.

pydantic checks names and types, :class:`ModelSpec` checks ranges; both failures are one line that
names the file, the key and what was expected.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parallelsim.errors import SpecError
from parallelsim.model import MLP, Attention, Block, Layer, ModelSpec
from parallelsim.yaml_io import in_file, require_sources, shown, shown_file, shown_key


class StrictModel(BaseModel):
    """A mapping with known keys alone, and values of exactly the stated types.

    A whole number is good for a float. The validators are built when the first file is read.
    """

    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)


Schema = TypeVar("Schema", bound=StrictModel)


class AttentionFile(StrictModel):
    """Softmax attention."""

    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    causal: bool = True
    window: int | None = None


class MLPFile(StrictModel):
    """A feed-forward network."""

    ffn_hidden_size: int
    gated: bool
    activation: Literal["silu", "gelu", "squared-relu"]
    bias: bool = False


class LayerFile(StrictModel):
    """One transformer layer."""

    attention: AttentionFile
    mlp: MLPFile
    num_norms: int = 2
    parallel: bool = False


class BlockFile(StrictModel):
    """``repeat`` copies of a short sequence of layers."""

    repeat: int
    layers: list[LayerFile] = Field(min_length=1, max_length=1000)


class ArchitectureFile(StrictModel):
    """The network: all that decides the parameter count."""

    source: str | None = None
    hidden_size: int
    vocab_size: int
    max_seq_length: int
    position_embedding: Literal["rope", "learned", "alibi", "none"]
    norm: Literal["rmsnorm", "layernorm"]
    tied_embeddings: bool
    rotary_base: float = Field(default=10_000.0, ge=1, le=1e12)
    rotary_percent: float = Field(default=1.0, gt=0, le=1)
    norm_bias: bool = False
    embedding_norm: bool = False
    final_norm: bool = True
    num_token_types: int = Field(default=0, ge=0, le=1000)
    output_bias: bool = False
    head_transform: bool = False
    pooler: bool = False
    blocks: list[BlockFile] = Field(min_length=1, max_length=1000)


class TrainingFile(StrictModel):
    """How it was trained; ``global_batch_tokens`` is left out where no source states it."""

    source: str | None = None
    seq_length: int = Field(ge=1)
    global_batch_tokens: int | None = Field(default=None, ge=1)
    hidden_dropout: float = Field(default=0.0, ge=0, lt=1)
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)


class PublishedFile(StrictModel):
    """The parameter count of a source; where exact, the architecture must count the same."""

    source: str | None = None
    value: int = Field(ge=1)
    exact: bool


class ModelFile(StrictModel):
    """A whole model file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
    title: str = ""
    source: str | None = None
    architecture: ArchitectureFile
    training: TrainingFile
    published_parameters: PublishedFile | None = None


def model_from_document(data: dict[str, Any], file: str) -> ModelSpec:
    """The model that a file's mapping describes.

    Raises:
        SpecError: unknown, missing or malformed keys; numbers without source; sizes out of range;
            an architecture that does not count the exact published number of parameters.
    """
    document = validated(ModelFile, data, file)
    require_sources(data, file)
    architecture, training = document.architecture, document.training
    shared = architecture.model_dump(exclude={"source", "blocks"})
    try:
        model = ModelSpec(
            name=document.name,
            seq_length=training.seq_length,
            default_global_batch_tokens=training.global_batch_tokens or 0,
            blocks=tuple(_block(block) for block in architecture.blocks),
            hidden_dropout=training.hidden_dropout,
            attention_dropout=training.attention_dropout,
            **shared,
        )
    except SpecError as error:
        raise in_file(error, file) from None
    published = document.published_parameters
    if published is not None and published.exact and published.value != model.num_parameters:
        message = (
            f"the architecture counts {model.num_parameters}, the file states {published.value}"
        )
        raise SpecError(message, file=shown_file(file), key="published_parameters.value")
    return model


def validated(schema: type[Schema], data: dict[str, Any], file: str) -> Schema:
    """``data`` as an instance of ``schema``.

    Raises:
        SpecError: the first key that is wrong, what it holds and what was expected.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=True)[0]
        where = shown_key(first["loc"])
        raise SpecError(_problem(dict(first), schema), file=shown_file(file), key=where) from None


def _problem(error: dict[str, Any], schema: type[BaseModel]) -> str:
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
    "list_type": "a list",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}


def _block(block: BlockFile) -> Block:
    return Block(block.repeat, tuple(_layer(layer) for layer in block.layers))


def _layer(layer: LayerFile) -> Layer:
    attention, mlp = layer.attention, layer.mlp
    return Layer(
        attention=Attention(
            num_heads=attention.num_attention_heads,
            **attention.model_dump(exclude={"num_attention_heads"}),
        ),
        mlp=MLP(**mlp.model_dump()),
        num_norms=layer.num_norms,
        parallel=layer.parallel,
    )
