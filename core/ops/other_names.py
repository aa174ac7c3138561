"""Names that other libraries have for the ops, and for ops that do not exist here.

`suggestions` finds an op by such a name: error texts and the search of the catalogue use it. Names are compared without
case and separators, so that `BatchNorm2d`, `batch_norm` and `batchnorm` are one name; endings such as `2d` and `loss`
may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from core.ir.errors import ProgramError
from core.ir.registry import CONSTRUCTS, REGISTRY, OpSpec
from core.ir.suggest import LONGEST, MOST, closest, plain

__all__ = ["ABSENT", "OTHER_NAMES", "RECIPES", "listed", "looked_up", "suggestion", "suggestions"]

OTHER_NAMES: dict[str, str] = {
    # elementwise
    "clamp": "clip",
    "clamp_min clamp_max clip_by_value hard_clamp": "clip",
    "subtract minus": "sub",
    "multiply times": "mul",
    "divide true_divide truediv real_div": "div",
    "negative": "neg",
    "absolute fabs": "abs",
    "power": "pow",
    "signum": "sign",
    "inv_sqrt reciprocal_sqrt": "rsqrt",
    "max_elementwise": "maximum",
    "min_elementwise": "minimum",
    "floor_divide": "floor_div",
    "remainder modulo": "mod",
    "arctan2": "atan2",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "inverse_erf": "erfinv",
    "gammaln": "lgamma",
    "psi": "digamma",
    "eq is_equal": "equal",
    "ne neq": "not_equal",
    "lt less": "less_than",
    "le less_or_equal less_than_equal": "less_equal",
    "gt greater": "greater_than",
    "ge greater_or_equal greater_than_equal": "greater_equal",
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
    "not": "logical_not",
    "invert": "bitwise_not",
    "left_shift lshift shift_left": "bitwise_left_shift",
    "right_shift rshift shift_right": "bitwise_right_shift",
    "select cond_select": "where",
    "identity copy clone": "assign",
    "detach no_grad": "stop_gradient",
    "astype to convert_element_type convert": "cast",
    "logistic expit": "sigmoid",
    "leaky_rectify": "leaky_relu",
    "hard_shrinkage": "hard_shrink",
    "swiglu geglu gated_linear_unit": "glu",
    # reductions
    "sum_all reduce_add add_reduce": "reduce_sum",
    "average avg nanmean": "reduce_mean",
    "amax": "reduce_max",
    "amin": "reduce_min",
    "prod product": "reduce_prod",
    "all": "reduce_all",
    "any": "reduce_any",
    "max": "reduce_max",
    "min": "reduce_min",
    "variance": "var",
    "standard_deviation stddev": "std",
    "reduce_l1": "l1_norm",
    "reduce_l2 vector_norm l2_norm p_norm": "norm",
    "matrix_norm": "frobenius_norm",
    "reduce_log_sum_exp": "logsumexp",
    "cumulative_sum": "cumsum",
    "cumulative_prod cumulative_product": "cumprod",
    "unsorted_segment_sum": "segment_sum",
    # linear algebra
    "gemm addmatmul": "addmm",
    "batch_matmul dot_general tensordot": "matmul",
    "inner inner_product vdot": "dot",
    "matvec": "mv",
    "ger outer_product": "outer",
    "inv matrix_inverse": "inverse",
    "pseudo_inverse": "pinv",
    "determinant": "det",
    "solve_triangular trtrs triangular": "triangular_solve",
    "least_squares": "lstsq",
    "singular_value_decomposition": "svd",
    "eigh_values": "eigvalsh",
    "symeig eigen_decomposition": "eigh",
    "kronecker": "kron",
    "cosine_similarity": "cos_sim",
    "bilinear": "bilinear_tensor_product",
    "lu_factor lu_decomposition": "lu",
    "expm": "matrix_exp",
    # signals
    "fourier_transform": "fft",
    "ifft inverse_fft": "fft",
    "short_time_fourier_transform spectrogram": "stft",
    "hanning": "hann_window",
    "hamming": "hamming_window",
    "blackman": "blackman_window",
    "mel_filterbank linear_to_mel_weight_matrix": "mel_weight_matrix",
    # shapes
    "view resize_shape": "reshape",
    "permute swapaxes moveaxis movedim t": "transpose",
    "expand_dims": "unsqueeze",
    "cat concatenate": "concat",
    "vstack hstack column_stack": "concat",
    "unbind": "unstack",
    "chunk split_v": "split",
    "broadcast": "broadcast_to",
    "repeat_interleave": "repeat",
    "fill full constant": "fill_constant",
    "zeros ones": "fill_constant",
    "arange": "range",
    "identity_matrix": "eye",
    "tri lower_triangular": "tril",
    "upper_triangular": "triu",
    "trilu": "tril",
    "diag_embed matrix_diag diagflat": "diag",
    "matrix_diag_part diag_part": "diagonal",
    "reverse": "flip",
    "shift_positions": "roll",
    "narrow": "slice",
    "constant_pad zero_padding": "pad",
    "reflection_pad replication_pad circular_pad mirror_pad": "pad",
    "crop_tensor center_crop": "crop",
    "ravel": "flatten",
    # indexing
    "take index_get": "index_select",
    "gather_elements take_along_dim": "take_along_axis",
    "scatter_elements put_along_dim": "put_along_axis",
    "scatter_update": "scatter",
    "scatter_add": "index_add",
    "tensor_scatter_update": "scatter_nd_update",
    "get_item": "slice",
    "set_item": "index_put",
    "one_hot_encoding to_categorical": "one_hot",
    "masked_selection boolean_mask": "masked_select",
    "digitize bucketize": "searchsorted",
    "nn_embedding embeddings embedding_lookup": "embedding",
    "percentile": "quantile",
    "nan_percentile": "nanquantile",
    "unsorted_segment_prod": "segment_prod",
    "masked_put": "masked_scatter",
    "reinterpret_cast bitcast_convert_type view_as": "bitcast",
    # networks
    "batch_normalization sync_batch_norm": "batch_norm",
    "layer_normalization": "layer_norm",
    "group_normalization": "group_norm",
    "instance_normalization": "instance_norm",
    "local_response_norm local_response_normalization": "lrn",
    "normalize unit_normalization": "l2_normalize",
    "lp_normalization": "lp_normalize",
    "root_mean_square_norm": "rms_norm",
    "spectral_normalization": "spectral_norm",
    "attention sdpa dot_product_attention flash_attention": "scaled_dot_product_attention",
    "rope rotary rotary_position_embedding": "rotary_embedding",
    "gaussian_dropout spatial_dropout": "dropout",
    "feature_alpha_dropout": "alpha_dropout",
    "focal_loss": "sigmoid_focal_loss",
    "bce binary_cross_entropy": "bce_loss",
    "bce_with_logits binary_cross_entropy_with_logits sigmoid_cross_entropy": "sigmoid_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits softmax_cross_entropy cross_entropy_with_logits "
    "sparse_categorical_cross_entropy categorical_cross_entropy": "softmax_with_cross_entropy",
    "mae mean_absolute_error absolute_error": "l1_loss",
    "mse mean_squared_error squared_error": "mse_loss",
    "huber": "huber_loss",
    "smooth_l1": "smooth_l1_loss",
    "kl_div kullback_leibler_divergence kld": "kldiv_loss",
    "negative_log_likelihood nll": "nll_loss",
    "hinge": "hinge_loss",
    "margin_ranking_loss": "margin_rank_loss",
    "triplet_loss": "triplet_margin_loss",
    "ctc warpctc": "ctc_loss",
    "crf conditional_random_field": "linear_chain_crf",
    "viterbi": "viterbi_decode",
    "smooth_labels": "label_smooth",
    "spectral_normalisation": "spectral_norm",
    # images
    "upsample upsampling upsample_bilinear upsample_nearest image_resize": "interpolate",
    "convolution conv": "conv2d",
    "conv_transpose conv_transpose2d deconv deconvolution transposed_convolution": "conv2d_transpose",
    "conv_transpose1d": "conv1d_transpose",
    "conv_transpose3d": "conv3d_transpose",
    "depthwise_convolution separable_conv": "depthwise_conv2d",
    "deform_conv": "deformable_conv2d",
    "max_pooling pool": "max_pool2d",
    "average_pooling avg_pool average_pool mean_pool": "avg_pool2d",
    "global_average_pool global_average_pooling": "global_avg_pool",
    "global_max_pooling": "global_max_pool",
    "adaptive_average_pool adaptive_avg_pool": "adaptive_avg_pool2d",
    "adaptive_max_pool": "adaptive_max_pool2d",
    "max_unpooling": "max_unpool",
    "im2col patches extract_patches": "unfold",
    "col2im": "fold",
    "sub_pixel": "pixel_shuffle",
    "nms": "non_max_suppression",
    "grid_sampler": "grid_sample",
    "spatial_transformer": "affine_grid",
    # sequences
    "long_short_term_memory": "lstm",
    "gated_recurrent_unit": "gru",
    "simple_rnn elman": "rnn",
    # random numbers
    "rand random uniform random_uniform": "uniform_random",
    "randn normal random_normal standard_normal": "gaussian_random",
    "truncated_normal": "truncated_gaussian",
    "random_integers": "randint",
    "permutation shuffle": "randperm",
    "rand_like uniform_like": "uniform_random_like",
    "randn_like normal_like": "gaussian_random_like",
    "categorical": "multinomial",
    "binomial": "bernoulli",
    # control
    "cond if": "if_else",
    "while_loop for fori_loop for_loop": "while",
    "switch": "switch_case",
    "map foreach vmap": "scan",
    "print_tensor log_tensor": "print",
    # optimisers
    "gradient_descent stochastic_gradient_descent": "sgd",
    "nesterov": "momentum",
}
"""Other names, separated by spaces -> the op that does this, or does it best."""

RECIPES: dict[str, tuple[tuple[str, ...], str]] = {
    "linear dense fc fully_connected inner_product_layer affine": (
        ("matmul", "add", "addmm"),
        "there is no such op: multiply with matmul, then add the bias with add",
    ),
    "multihead_attention mha": (
        ("scaled_dot_product_attention", "matmul"),
        "there is no such op: project with matmul, split heads with reshape, then use scaled_dot_product_attention",
    ),
    "transformer transformer_layer transformer_encoder_layer": (
        ("scaled_dot_product_attention", "layer_norm"),
        "there is no such op: combine scaled_dot_product_attention, layer_norm and matmul",
    ),
    "global_norm_clip clip_grad_norm": (("clip_by_global_norm",), "use the setting `clip` of a session"),
    "positional_encoding": (
        ("rotary_embedding", "embedding"),
        "there is no such op: use one of these two",
    ),
    "sequential residual": (("add",), "there is no such op: list the ops one after another"),
    "bincount histogram histc": (
        ("segment_sum", "searchsorted"),
        "there is no such op: segment_sum of ones counts classes, and searchsorted finds the class of a value",
    ),
    "heaviside step_function": (("greater_equal", "cast"), "there is no such op: cast the bools of greater_equal"),
    "std_mean var_mean": (("std", "var", "mean"), "there is no such op: these are two ops"),
}
"""Other names of things that several ops do together -> these ops, and the recipe."""

ABSENT: dict[str, tuple[tuple[str, ...], str]] = {
    "fft2 fftn rfft2 rfftn": (
        ("fft", "rfft"),
        "there is no transform of several axes: transform one after another with fft, the first with rfft if x is real",
    ),
    "dct idct": (("matmul",), "there is no cosine transform: matmul with a constant matrix computes a small one"),
    "complex real imag conj angle": (("atan2", "hypot"), "there are no complex numbers: keep two real arrays"),
    "eig eigvals": (("eigh",), "there are no eigenvalues of general matrices: eigh takes symmetric ones"),
    "logm sqrtm": (("matrix_exp", "eigh"), "there are no functions of matrices but matrix_exp and matrix_power"),
    "sparse_matmul spmm": (
        ("embedding", "segment_sum"),
        "there are no sparse matrices: segment_sum adds rows",
    ),
    "quantize dequantize fake_quantize": (("round", "clip"), "there is no quantisation: round and clip imitate it"),
    "betainc igamma gammainc bessel i0 i1 zeta": (("lgamma", "digamma"), "there is no such special function"),
    "string strings regex": ((), "there are no strings"),
}
"""Names of ops that do not exist here, with no recipe -> the closest ops, and the plain answer."""

LIBRARIES = "torch|jax|jnp|tf|tensorflow|keras|np|numpy|paddle|onnx|aten|nn|functional|layers|f|linalg|fft|lax|ops"
PREFIX = re.compile(rf"^(?:{LIBRARIES})[.:]+")
ENDINGS = ("1d", "2d", "3d", "loss", "layer", "op", "s", "v2", "function", "activation", "like", "error", "ing")


def suggestions(name: str) -> list[str]:
    """The ops that `name` may mean, the likeliest first."""
    known = _table()
    for each in _spellings(name):
        if each in known:
            return list(known[each].ops)
    found = (op for each in closest(name, known) for op in known[each].ops)
    return list(dict.fromkeys(found))[:MOST]


def suggestion(name: str) -> str | None:
    """A sentence that names the ops that `name` may mean, or says that there is none; None without an idea."""
    known = _table()
    meant = next((known[each] for each in _spellings(name) if each in known), None)
    if meant is not None and meant.text is not None:
        return meant.text
    found = suggestions(name)
    return f"did you mean {' or '.join(found)}?" if found else None


def listed() -> set[str]:
    """The plain forms of all names in the tables above, which are not names of ops."""
    return {plain(each) for table in (OTHER_NAMES, RECIPES, ABSENT) for names in table for each in names.split()}


def looked_up(name: str) -> OpSpec:
    """The declaration of the op that a client calls `name`. Raises ProgramError (unknown_op) with a suggestion."""
    if name in REGISTRY:
        return REGISTRY[name]
    raise ProgramError(f"unknown op type {name!r}", "unknown_op", suggestion=suggestion(name))


def _spellings(name: str) -> Iterator[str]:
    """Plain forms of `name`: as it is, then without library prefixes, then without up to two endings."""
    if len(name) > LONGEST:
        return
    name = name.strip().lower()
    while PREFIX.match(name):
        name = PREFIX.sub("", name)
    level = [plain(name)]
    for _ in range(3):
        yield from level
        shorter = [(each, len(end)) for each in level for end in ENDINGS if each.endswith(end)]
        level = [each[:-length] for each, length in shorter if len(each) > length + 1]


@dataclass(frozen=True, slots=True)
class Meant:
    """The meaning of a name. text: a sentence, if the ops alone do not explain it."""

    ops: tuple[str, ...]
    text: str | None = None


@cache
def _table() -> dict[str, Meant]:
    """Plain name -> meaning. Made at the first use, when all ops are declared."""
    found = {plain(op): Meant((op,)) for op in (*REGISTRY, *CONSTRUCTS)}
    for names, target in OTHER_NAMES.items():
        found |= {plain(each): Meant((target,)) for each in names.split() if plain(each) not in found}
    for table in (RECIPES, ABSENT):
        for names, (targets, text) in table.items():
            found |= {plain(each): Meant(targets, text) for each in names.split()}
    return found
