"""Layout of vLLM's KV cache for DeepSeek-V4, whose layers have several types of pages.

A layer has pages for its window (sparse_swa.py: DeepseekV4SWACache), for keys that each compress 4
or 128 tokens, and for an indexer's keys (deepseek_v4/attention.py). Two more types store partial
sums of vectors that will become such keys (compressor.py: CompressorStateCache). The size of each
page is a multiple of 576 bytes.
"""

from dataclasses import dataclass
from functools import lru_cache

from pinn.engines.deployment import COMPRESSED_BLOCK
from pinn.specs.mixers import INDEXED_RATIO
from pinn.specs.model import CompressedAttentionSpec, ModelSpec

#: ``_WINDOW_BLOCK``: tokens per block of an attention window. ``_SUM_BLOCKS``: tokens per block of
#: unfinished compressed keys, by compression ratio.
_WINDOW_BLOCK, _SUM_BLOCKS = 64, {INDEXED_RATIO: 4, 128: 8}
_ALIGNMENT, _FP32 = 576, 4


@dataclass(frozen=True)
class KeptGroup:
    """DeepSeek-V4's layers that cache only the most recent tokens of a context.

    Attributes:
        groups: Number of KV cache groups of these layers.
        page_bytes: Bytes of one block of each layer, summed over the layers of all groups.
        block_tokens: Tokens per block.
        window: Number of most recent tokens that are cached.
    """

    groups: int
    page_bytes: int
    block_tokens: int
    window: int

    def blocks(self, tokens: int) -> int:
        """Return the number of blocks that the group needs for ``tokens`` consecutive tokens.

        The first of these tokens may lie in the middle of a block.
        """
        return -(-tokens // self.block_tokens) + 1


@dataclass(frozen=True)
class CompressedLayout:
    """Pages and KV cache groups of a DeepSeek-V4 model.

    Attributes:
        block_bytes: Bytes of one block on one GPU.
        key_bytes: Bytes occupied by compressed keys in a block.
        kept: Groups of layers that cache only the most recent tokens of a context.
    """

    block_bytes: int
    key_bytes: int
    kept: tuple[KeptGroup, ...]

    @property
    def groups(self) -> int:
        """Return the number of KV cache groups, including that of the compressed keys."""
        return 1 + sum(kept.groups for kept in self.kept)

    @property
    def decode_blocks(self) -> int:
        """Return a decoding request's number of blocks, excluding those of compressed keys."""
        return sum(kept.groups * kept.blocks(kept.window) for kept in self.kept)

    @property
    def window_share(self) -> int:
        """Return the number of blocks that all other groups together need per block of keys.

        A block of keys is a block of the group with compressed keys.
        """
        return sum(kept.groups * COMPRESSED_BLOCK // kept.block_tokens for kept in self.kept)

    def start_blocks(self, in_flight: int, longest: int) -> int:
        """Return a prompt's maximum number of blocks, excluding those of compressed keys."""
        return sum(
            kept.groups * kept.blocks(min(kept.window - 1 + in_flight, longest))
            for kept in self.kept
        )

    def counted_blocks(self, key_blocks: int, in_flight: int, longest: int) -> int:
        """Return a request's number of blocks from the bytes of its pages, as in vLLM before 0.29.

        Source: kv_cache_utils.py: get_max_concurrency_for_kv_cache_config.
        """
        pages = sum(
            kept.page_bytes * kept.blocks(min(kept.window - 1 + in_flight, longest))
            for kept in self.kept
        )
        return -(-(key_blocks * self.key_bytes + pages) // self.key_bytes)


def compressed(model: ModelSpec) -> CompressedAttentionSpec | None:
    """Return DeepSeek-V4's attention, preferably one with an indexer; None for other models."""
    mixers = (group.attention for group in model.layer_groups)
    found = [each for each in mixers if isinstance(each, CompressedAttentionSpec)]
    return max(found, key=lambda each: each.indexer.heads, default=None)


@lru_cache(maxsize=256)
def compressed_layout(model: ModelSpec, side_by_side: bool) -> CompressedLayout:
    """Return the sizes of pages and blocks, and the KV cache groups, of a DeepSeek-V4 model.

    Up to vLLM 0.28, every layer has a slot for each page size of keys, and other pages are padded
    to one of these sizes (kv_cache_utils.py: _get_kv_cache_groups_uniform_groups,
    _get_kv_cache_config_deepseek_v4). Since 0.29, the pages of a block are ``side_by_side``, and
    the block has the size of the largest group (_get_packed_kv_cache_groups,
    _get_kv_cache_bytes_per_block).
    """
    own, layers = compressed(model), _layers(model)
    assert own is not None
    few, many = layers[INDEXED_RATIO], layers[128]
    keys = {ratio: _page(COMPRESSED_BLOCK // ratio * own.kv_width) for ratio in _SUM_BLOCKS}
    key_index = own.indexer.head_dim + _FP32 * own.indexer.head_dim // 128
    index = _page(COMPRESSED_BLOCK // INDEXED_RATIO * key_index)
    window = _page(_WINDOW_BLOCK * own.kv_width)
    sums = {ratio: _sums(ratio, own.kv_lora_rank) for ratio in _SUM_BLOCKS}
    index_sums = _sums(INDEXED_RATIO, own.indexer.head_dim)
    slots = sorted({index, *keys.values()})
    if not side_by_side:
        window, index_sums = _slot(window, slots), _slot(index_sums, slots)
        sums = {ratio: _slot(page, slots) for ratio, page in sums.items()}
    counts = [layers[-1], few, many]
    least = few if side_by_side and few != many else max(few, many)
    repeats = _repeats([*counts, least], least)
    cut = [-(-count // repeats) for count in counts]
    pages = [window, sums[INDEXED_RATIO] + index_sums, sums[128]]
    key_bytes = few * (keys[INDEXED_RATIO] + index) + many * keys[128]
    widest = [-(-count // groups) for count, groups in zip(counts, cut, strict=True) if groups]
    spans = [
        (_WINDOW_BLOCK, own.window_tokens),
        (_SUM_BLOCKS[INDEXED_RATIO], 2 * INDEXED_RATIO),
        (_SUM_BLOCKS[128], 128),
    ]
    kept = tuple(
        KeptGroup(groups, count * page, *span)
        for groups, count, page, span in zip(cut, counts, pages, spans, strict=True)
        if groups
    )
    block = sum(slots) * max(few, many, *widest)
    if side_by_side:
        block = max(key_bytes, *(-(-k.page_bytes // k.groups) for k in kept))
    return CompressedLayout(block, key_bytes, kept)


def _layers(model: ModelSpec) -> dict[int, int]:
    """Return the number of layers by compression ratio (tokens per key); -1 for all layers."""
    found = dict.fromkeys((-1, 0, *_SUM_BLOCKS), 0)
    for group in model.layer_groups:
        if isinstance(group.attention, CompressedAttentionSpec):
            found[group.attention.ratio] += group.count
            found[-1] += group.count
    return found


def _page(page_bytes: int) -> int:
    return -(-page_bytes // _ALIGNMENT) * _ALIGNMENT


def _sums(ratio: int, width: int) -> int:
    """Return the size in bytes of a page of partial sums for compressed keys.

    The page contains fp32 sums and gates, and twice as many if compressed keys overlap.
    """
    overlap = 2 if ratio == INDEXED_RATIO else 1
    return _page(_SUM_BLOCKS[ratio] * 2 * overlap * width * _FP32)


def _slot(page_bytes: int, slots: list[int]) -> int:
    return min(slot for slot in slots if slot >= page_bytes)


def _repeats(counts: list[int], least: int) -> int:
    """Return the largest number of layers per group with minimum padding (``_approximate_gcd``)."""

    def padding(size: int) -> int:
        return sum(-count % size for count in counts)

    return min(range(least, max(counts) + 1), key=lambda size: (padding(size), -size))
