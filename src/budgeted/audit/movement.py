"""Data movement (views, copies, casts, fills, gathers, plain scatters, constant padding): 0.

Scatters that accumulate, max-pool backward included: 1 per source element. Interpolation backward, which
accumulates weighted taps: 2 per tap and element.
"""

from __future__ import annotations

from budgeted.audit.call import Call, Counting, nothing

_NAMES = """
    _efficientzerotensor _local_scalar_dense _record_function_enter_new _record_function_exit
    _unsafe_index _unsafe_masked_index _unsafe_view arange as_strided cat channel_shuffle clone
    constant_pad_nd convert_element_type copy copy_to detach device device_put diag_embed
    diagonal_backward embedding eye fill flip full full_like gather im2col index index_fill index_select
    iota is_pinned is_same_size item lift linspace masked_scatter_backward masked_select
    native_channel_shuffle ones ones_like
    pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d resize resize_as rev roll
    rot90 scalar_tensor select_backward set slice_backward stack take unsafe_split unsafe_split_with_sizes
    zero zeros zeros_like
"""
MOVEMENT = frozenset(_NAMES.split())

# The argument with one element for each that an accumulating scatter adds.
_ACCUMULATES = {
    "scatter_add": "index",
    "scatter_reduce": "index",
    "index_add": "source",
    "index_reduce": "source",
    "col2im": "self",
    "unfold_backward": "grad_in",
    "embedding_dense_backward": "grad_output",
    **{
        f"{kind.format(d)}_backward": "grad_output"
        for d in ("1d", "2d", "3d")
        for kind in (
            "reflection_pad{}",
            "replication_pad{}",
            "upsample_nearest{}",
            "_upsample_nearest_exact{}",
            "max_pool{}_with_indices",
            "adaptive_max_pool{}",
        )
    },
}

_TAPS = {"linear1d": 2, "bilinear2d": 4, "trilinear3d": 8, "bicubic2d": 16}


def _accumulate(call: Call) -> int:
    return int(call.arg(_ACCUMULATES[call.base]).numel()) * (2 if call.arg("alpha") not in (None, 1) else 1)


def _scatter(call: Call) -> int:
    return int(call.arg("index").numel()) if call.arg("reduce") is not None else 0


def _put(call: Call) -> int:
    values = call.arg("source") if call.arg("values") is None else call.arg("values")
    return int(values.numel()) if call.arg("accumulate") else 0


def _interpolate_backward(call: Call) -> int:
    taps = next(n for name, n in _TAPS.items() if f"_{name}_" in call.base)
    return 2 * taps * int(call.arg("grad_output").numel())


RULES: dict[str, Counting] = {
    **dict.fromkeys(MOVEMENT, nothing),
    **dict.fromkeys(_ACCUMULATES, _accumulate),
    "scatter": _scatter,
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put", "put"), _put),
    **dict.fromkeys([f"upsample_{name}_backward" for name in _TAPS], _interpolate_backward),
}
