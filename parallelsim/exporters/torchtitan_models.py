"""The models that torchtitan registers, by its module and flavor.

Dimensions: torchtitan v0.2.2 and main b5bcd76c (2026-08), models/llama3/__init__.py and
models/qwen3/__init__.py. Its other models (DeepSeek-V3, GPT-OSS, Llama 4, Flux, ...) are not
described here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallelsim.alike import are_alike
from parallelsim.layers import MLP, Attention, Block, Layer, MixtureOfExperts
from parallelsim.model import ModelSpec

RELEASE, MAIN = "0.2.2", "main-2026-08"


@dataclass(frozen=True)
class Flavor:
    """One registered model: a decoder of equal layers with RMSNorm, RoPE and SwiGLU."""

    module: str
    flavor: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_query_groups: int
    head_dim: int
    ffn_hidden_size: int
    """Of one expert where there are experts."""
    vocab_size: int
    rotary_base: float
    tied: bool = False
    qk_norm: bool = False
    experts: tuple[int, int] | None = None
    """(number, chosen for a token)."""
    versions: tuple[str, ...] = (RELEASE, MAIN)
    no_pipeline_in: tuple[str, ...] = ()
    """Versions that have no pipeline of it."""

    def model(self, seq_length: int) -> ModelSpec:
        """The architecture at one sequence length."""
        attention = Attention(
            self.num_heads, self.num_query_groups, self.head_dim, qk_norm=self.qk_norm
        )
        if self.experts:
            number, top_k = self.experts
            experts = MixtureOfExperts(number, top_k, self.ffn_hidden_size, gated=True)
            layer = Layer(attention=attention, experts=experts)
        else:
            layer = Layer(attention=attention, mlp=MLP(self.ffn_hidden_size, gated=True))
        return ModelSpec(
            name=f"{self.module}-{self.flavor.lower()}",
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            seq_length=seq_length,
            max_seq_length=seq_length,
            default_global_batch_tokens=0,
            blocks=(Block(self.num_layers, (layer,)),),
            tied_embeddings=self.tied,
            rotary_base=self.rotary_base,
        )


BOTH, MAIN_ALONE = (RELEASE, MAIN), (MAIN,)
_LLAMA3 = (
    # flavor, layers, hidden, heads, groups, ffn, vocabulary, tied, versions
    ("debugmodel", 6, 256, 16, 16, 768, 2048, False, BOTH),
    ("1B", 16, 2048, 32, 8, 8192, 128256, True, MAIN_ALONE),
    ("3B", 28, 3072, 24, 8, 8192, 128256, True, MAIN_ALONE),
    ("8B", 32, 4096, 32, 8, 14336, 128256, False, BOTH),
    ("70B", 80, 8192, 64, 8, 28672, 128256, False, BOTH),
    ("405B", 126, 16384, 128, 8, 53248, 128256, False, BOTH),
)
_QWEN3 = (
    # flavor, layers, hidden, heads, groups, ffn, tied, experts, base of RoPE
    ("0.6B", 28, 1024, 16, 8, 3072, True, None, 1e6),
    ("1.7B", 28, 2048, 16, 8, 6144, True, None, 1e6),
    ("4B", 36, 2560, 32, 8, 9728, True, None, 1e6),
    ("8B", 36, 4096, 32, 8, 12288, False, None, 1e6),
    ("14B", 40, 5120, 40, 8, 17408, False, None, 1e6),
    ("32B", 64, 5120, 64, 8, 25600, False, None, 1e6),
    ("30B-A3B", 48, 2048, 32, 4, 768, False, (128, 8), 1e6),
    ("235B-A22B", 94, 4096, 64, 4, 1536, False, (128, 8), 5e6),
)


def _llama3() -> Iterator[Flavor]:
    for flavor, layers, hidden, heads, groups, ffn, vocabulary, tied, versions in _LLAMA3:
        sizes = (layers, hidden, heads, groups, hidden // heads, ffn, vocabulary)
        yield Flavor("llama3", flavor, *sizes, rotary_base=5e5, tied=tied, versions=versions)


def _qwen3() -> Iterator[Flavor]:
    for flavor, layers, hidden, heads, groups, ffn, tied, experts, base in _QWEN3:
        sizes = (layers, hidden, heads, groups, 128, ffn, 151936)
        yield Flavor("qwen3", flavor, *sizes, base, tied, True, experts, no_pipeline_in=(RELEASE,))


FLAVORS = (*_llama3(), *_qwen3())


def flavor_of(model: ModelSpec, version: str) -> Flavor | None:
    """The registered model that trains as this one does."""
    rows = (row for row in FLAVORS if version in row.versions)
    return next((row for row in rows if are_alike(row.model(model.seq_length), model)), None)


def registered(module: str, flavor: str) -> Flavor | None:
    """The model of that name, if it is described here.

    Names of variants (8B_flex, 8B_varlen) differ in the attention kernel alone.
    """
    plain = flavor.removesuffix("_flex").removesuffix("_flex_attn").removesuffix("_varlen")
    rows = (row for row in FLAVORS if (row.module, row.flavor) == (module, plain))
    return next(rows, None)


def described() -> str:
    """Names of what is described here."""
    modules = dict.fromkeys(row.module for row in FLAVORS)
    return "; ".join(
        f"{module} {', '.join(row.flavor for row in FLAVORS if row.module == module)}"
        for module in modules
    )
