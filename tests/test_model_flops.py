"""Model FLOPs equal those that Megatron-LM counts for itself, and closed forms where it has none.

``MEGATRON`` was computed by Megatron-LM's own ``num_floating_point_operations`` (checkout of
22 August 2026, ``megatron/training/training.py``) on flags of the same architecture, divided by the
tokens of a batch: sequences as in the model's file, ``--make-vocab-size-divisible-by 1`` so that
the vocabulary is the published one (by default Megatron pads it to a multiple of 128 tp and counts
that) and ``--swiglu`` wherever the layers are gated: it counts GPT-OSS's own flag, quick GEGLU, as
if it had no gate. It knows no windows: sliding and chunked layers are compared without theirs. Its
norms of latents and of multi-token prediction, which are no GEMMs, are the differences up to 6e-6.
"""

from dataclasses import replace

import pytest

from parallelsim.catalog import load_model
from parallelsim.layers import (
    MLP,
    Attention,
    Block,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    StateSpace,
)
from parallelsim.model import ModelSpec

MEGATRON = {
    "deepseek-v2": 155_014_348_800,
    "deepseek-v2-lite": 16_386_180_096,
    "deepseek-v3": 259_992_950_784,
    "gpt-oss-120b": 34_330_853_376,
    "gpt-oss-20b": 24_045_502_464,
    "grok-1": 521_838_526_464,
    "kimi-k2": 204_477_394_944,
    "llama3-70b": 449_222_541_312,
    "llama4-maverick": 108_883_476_480,
    "llama4-scout": 108_883_476_480,
    "mixtral-8x22b": 242_167_578_624,
    "mixtral-8x7b": 79_706_456_064,
    "nemotron-h-56b": 340_241_940_480,
    "nemotron-h-8b": 46_707_769_344,
    "qwen3-235b-a22b": 148_034_813_952,
    "qwen3-30b-a3b": 23_006_281_728,
}
"""FLOPs of forward and backward for one token."""


def without_windows(model):
    def full(layer):
        if not isinstance(layer.attention, Attention):
            return layer
        return replace(layer, attention=replace(layer.attention, window=None, chunked=False))

    blocks = (Block(block.repeat, tuple(map(full, block.layers))) for block in model.blocks)
    return replace(model, blocks=tuple(blocks))


@pytest.mark.parametrize("name", MEGATRON)
def test_flops_of_a_token_equal_megatrons(name):
    model = without_windows(load_model(name))
    assert model.flops_per_sequence() / model.seq_length == pytest.approx(MEGATRON[name], rel=1e-5)


def test_a_hybrid_with_experts_on_latents_equals_megatrons():
    """The hybrid of Nemotron 3 Super without and with a module of attention and experts, of whose
    projection Megatron counts nothing.
    """
    kinds = {
        "M": Layer(state_space=StateSpace(128, 64, 128, 8), num_norms=1),
        "*": Layer(Attention(32, 2, 128), num_norms=1),
        "E": Layer(
            experts=MixtureOfExperts(
                num_experts=512,
                top_k=22,
                ffn_hidden_size=2688,
                gated=False,
                shared_ffn_hidden_size=5376,
                latent_size=1024,
            ),
            num_norms=1,
        ),
    }
    pattern = "MEMEMEM*" + "EMEMEMEM*" * 2 + "EMEMEMEMEM*" * 4 + "EMEMEMEM*" + "EMEMEMEME"
    layers = tuple(kinds[symbol] for symbol in pattern)
    model = ModelSpec("s", 4096, 131072, 8192, 8192, 0, (Block(1, layers),))
    assert model.flops_per_sequence() / 8192 == pytest.approx(75_371_642_880, rel=1e-5)
    model = replace(model, num_mtp_layers=1, mtp_layers=(kinds["*"], kinds["E"]))
    projection = 6 * 2 * 4096**2
    expected = 80_049_340_416 + projection
    assert model.flops_per_sequence() / 8192 == pytest.approx(expected, rel=1e-5)


def test_a_window_saves_the_pairs_outside_of_it():
    full, local = without_windows(load_model("gpt-oss-20b")), load_model("gpt-oss-20b")
    s, w = 4096, 128
    saved = s * s / 2 - (w * s - w * w / 2)
    expected = 12 * 12 * 64 * 64 * saved  # 12 local layers, 12 d FLOPs a pair and head
    assert full.flops_per_sequence() - local.flops_per_sequence() == pytest.approx(expected)


def test_chunks_cost_what_their_blocks_cost():
    model = load_model("llama4-scout", {"max_seq_length": 32768}).with_seq_length(32768)
    saved = without_windows(model).flops_per_sequence() - model.flops_per_sequence()
    pairs = 32768**2 / 2 - 4 * 8192**2 / 2
    assert saved == pytest.approx(36 * 12 * 40 * 128 * pairs)


def test_an_encoder_decoder_counts_both_sequences():
    h, width, ffn, vocab, heads, d = 1024, 16384, 65536, 32128, 128, 128
    source, target = 512, 128
    encoder = 6 * source * (4 * h * width + 2 * h * ffn) + 12 * heads * d * source**2
    own = 6 * target * 4 * h * width + 12 * heads * d * target**2 / 2
    cross = 6 * target * 2 * h * width + 6 * source * 2 * h * width
    cross += 12 * heads * d * target * source
    decoder = own + cross + 6 * target * 2 * h * ffn
    expected = 24 * (encoder + decoder) + 6 * target * h * vocab
    assert load_model("t5-11b").flops_per_sequence() == pytest.approx(expected, rel=1e-12)


def test_latent_attention_scores_with_the_mean_of_both_widths():
    attention = LatentAttention(2, 8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=2)
    layer = Layer(attention, MLP(16, gated=True))
    model = ModelSpec("l", 4, 10, 8, 8, 0, (Block(1, (layer,)),))
    weights = 4 * 2 * 10 + 4 * (8 + 4) + 8 * 2 * (6 + 2) + 2 * 2 * 4 + 3 * 4 * 16
    scores = 3 * 2 * 2 * (10 + 2) * 8 * 8 / 2  # q k^T and the values, forward and twice backward
    assert model.flops_per_sequence() == 6 * 8 * (weights + 4 * 10) + scores
