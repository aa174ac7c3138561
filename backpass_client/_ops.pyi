"""The ops as type checkers and editors see them, written by `make catalogue` from their declarations."""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from backpass_client.arguments import DtypeName
from backpass_client.builder.symbol import Symbol
from backpass_client.expression import Expression

R = TypeVar("R", Symbol, Expression)
Array = float | Sequence[Any] | np.ndarray[Any, Any]
Dtype = str | DtypeName | type[np.generic] | np.dtype[Any]
Number = float | Literal['inf', '-inf']

__all__ = [
    "abs",
    "accuracy",
    "acos",
    "acosh",
    "active_rows",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "adaptive_positions",
    "adaptive_weights",
    "add",
    "addmm",
    "affine_grid",
    "alpha_dropout",
    "amsgrad",
    "argmax",
    "argmin",
    "argsort",
    "array_chunks",
    "array_concat",
    "array_cut",
    "array_erase",
    "array_fill",
    "array_flatten",
    "array_join",
    "array_length",
    "array_paste",
    "array_place",
    "array_read",
    "array_regroup",
    "array_split_as",
    "array_stack",
    "array_take",
    "array_to_sequence",
    "array_unstack",
    "array_write",
    "asin",
    "asinh",
    "assign",
    "assign_value",
    "atan",
    "atan2",
    "atanh",
    "auc",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "baddbmm",
    "barrier",
    "batch_norm",
    "bce_loss",
    "bernoulli",
    "bernoulli_like",
    "bilinear_tensor_product",
    "bitcast",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "blackman_window",
    "bmm",
    "border_positions",
    "bpr_loss",
    "broadcast_to",
    "call",
    "cast",
    "cdist",
    "ceil",
    "celu",
    "channel_shuffle",
    "check_finite",
    "check_shape",
    "cholesky",
    "cholesky_factor",
    "class_index",
    "clip",
    "clip_by_global_norm",
    "clip_by_norm",
    "cofactors",
    "cofactors_adjoint",
    "compress",
    "concat",
    "context_rows",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "correlate",
    "correlate_filter_adjoint",
    "correlate_input_adjoint",
    "cos",
    "cos_sim",
    "cosh",
    "cosine_decay",
    "cosine_embedding_loss",
    "create_array",
    "crf_decoding",
    "crf_moves",
    "crf_partition",
    "crf_score",
    "crop",
    "cross",
    "cross_entropy",
    "ctc_lattice",
    "ctc_loss",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "decayed_adagrad",
    "deformable_conv2d",
    "depth_to_space",
    "depthwise_conv2d",
    "det",
    "dft",
    "diag",
    "diagonal",
    "diagonal_into",
    "diagonal_mask_like",
    "diagonals_into",
    "dice_loss",
    "digamma",
    "dist",
    "div",
    "dot",
    "dropout",
    "dynamic_expand",
    "dynamic_fill",
    "dynamic_range",
    "dynamic_reshape",
    "dynamic_slice",
    "dynamic_slice_into",
    "eigh",
    "eigh_factor",
    "eigvalsh",
    "eigvalsh_factor",
    "einsum",
    "elementwise_add",
    "elementwise_div",
    "elementwise_floordiv",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mod",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "elu",
    "embedding",
    "embedding_bag",
    "empty_stack",
    "equal",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "expand",
    "expand_as",
    "expanded_rows",
    "expm1",
    "exponential",
    "exponential_decay",
    "exponential_like",
    "eye",
    "eye_like",
    "fft",
    "fill_constant",
    "fill_constant_batch_size_like",
    "fill_zeros_like",
    "first_true",
    "flatten",
    "flatten_contiguous_range",
    "flip",
    "floor",
    "floor_div",
    "fmod",
    "fold",
    "frobenius_norm",
    "ftrl",
    "full_like",
    "gap_quotient",
    "gather",
    "gather_nd",
    "gaussian_nll_loss",
    "gaussian_random",
    "gaussian_random_like",
    "gelu",
    "global_avg_pool",
    "global_max_pool",
    "glu",
    "grad_add",
    "gradients",
    "greater_equal",
    "greater_than",
    "grid_sample",
    "group_norm",
    "gru",
    "gru_cell",
    "hamming_window",
    "hann_window",
    "hard_shrink",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "hardmax",
    "hierarchical_sigmoid",
    "hinge_embedding_loss",
    "hinge_loss",
    "huber_loss",
    "hypot",
    "increment",
    "index_add",
    "index_put",
    "index_sample",
    "index_select",
    "instance_norm",
    "interleaved_rows",
    "interpolate",
    "inverse",
    "inverse_count",
    "inverse_time_decay",
    "irfft",
    "is_last",
    "is_padding",
    "isfinite",
    "isinf",
    "isnan",
    "istft",
    "kldiv_loss",
    "kron",
    "kthvalue",
    "l1_loss",
    "l1_norm",
    "l2_normalize",
    "label_rows",
    "label_smooth",
    "lamb",
    "lars",
    "layer_norm",
    "leaky_relu",
    "lerp",
    "less_equal",
    "less_than",
    "lgamma",
    "linear_chain_crf",
    "linear_lr_warmup",
    "linear_scan",
    "linspace",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_loss",
    "log_softmax",
    "logaddexp",
    "logcumsumexp",
    "logdet",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsigmoid",
    "logsumexp",
    "lookup_table",
    "lp_normalize",
    "lp_pool",
    "lrn",
    "lstm",
    "lstm_cell",
    "lstsq",
    "lu",
    "lu_solve",
    "margin_rank_loss",
    "mask_gradient",
    "masked_fill",
    "masked_scatter",
    "masked_select",
    "matmul",
    "matrix_exp",
    "matrix_power",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_sequence_len",
    "max_unpool",
    "maximum",
    "maxout",
    "mean",
    "median",
    "mel_weight_matrix",
    "merge_axes",
    "merge_by_mask",
    "merge_rows",
    "merge_rows_padded",
    "meshgrid",
    "minimum",
    "mish",
    "mm",
    "mod",
    "mode",
    "mode_position",
    "momentum",
    "moving_average",
    "mse_loss",
    "mul",
    "mul_flattened",
    "multi_dot",
    "multi_label_margin_loss",
    "multi_label_soft_margin_loss",
    "multi_margin_loss",
    "multinomial",
    "mv",
    "nadam",
    "nanquantile",
    "natural_exp_decay",
    "nce",
    "neg",
    "next_key",
    "nll_loss",
    "noam_decay",
    "non_max_suppression",
    "nonzero",
    "norm",
    "not_equal",
    "npair_loss",
    "numel",
    "one_cycle",
    "one_hot",
    "ones_like",
    "outer",
    "pad",
    "pad_constant",
    "padded_like",
    "padded_rows",
    "pairwise_distance",
    "pick",
    "piecewise_decay",
    "pinv",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "polygamma",
    "polynomial_decay",
    "positions_along",
    "positions_nd",
    "pow",
    "prelu",
    "print",
    "product_of_others",
    "put_along_axis",
    "qr",
    "qr_factor",
    "quantile",
    "radam",
    "randint",
    "randint_like",
    "randperm",
    "range",
    "rank",
    "rank_loss",
    "rank_table",
    "read_rows",
    "real_dft",
    "real_from_dft",
    "reciprocal",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "relu",
    "relu6",
    "reorder_by_rank",
    "repeat",
    "repeat_positions",
    "resample_taps",
    "resample_weights",
    "reshape",
    "reshape_as",
    "resize",
    "resize_tap",
    "resize_weights",
    "reverse_sequence",
    "rfft",
    "rms_norm",
    "rmsprop",
    "rnn",
    "rnn_cell",
    "roi_align",
    "roi_fractions",
    "roi_pool",
    "roi_positions",
    "roll",
    "roll_positions",
    "rotary_embedding",
    "round",
    "row_conv",
    "rsqrt",
    "running_argmax",
    "scale",
    "scaled_dot_product_attention",
    "scatter",
    "scatter_add_like",
    "scatter_nd",
    "scatter_nd_add",
    "scatter_nd_update",
    "searchsorted",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "select_input",
    "select_output",
    "selu",
    "sequence_concat",
    "sequence_conv",
    "sequence_expand",
    "sequence_ids",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_reset_lengths",
    "sequence_reverse",
    "sequence_rows",
    "sequence_slice",
    "sequence_slice_rows",
    "sequence_slots",
    "sequence_softmax",
    "sequence_to_array",
    "sequence_unpad",
    "sgd",
    "shape",
    "shard_index",
    "shift",
    "shrink",
    "shrink_rnn_memory",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "sigmoid_focal_loss",
    "sign",
    "silu",
    "sin",
    "sinh",
    "size",
    "slice",
    "slice_into",
    "slogdet",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmax_with_cross_entropy",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "solve",
    "sort",
    "space_to_depth",
    "spectral_norm",
    "split",
    "split_by_mask",
    "split_like",
    "sqrt",
    "square",
    "square_error_cost",
    "squared_l2_norm",
    "squeeze",
    "stack",
    "std",
    "step_rows",
    "steps_within",
    "stft",
    "stop_gradient",
    "strided_slice",
    "sub",
    "sum",
    "sum_tiles_like",
    "sum_to",
    "sum_to_like",
    "svd",
    "swish",
    "take_along_axis",
    "tan",
    "tanh",
    "tanh_shrink",
    "temporal_shift",
    "thresholded_relu",
    "tile",
    "topk",
    "trace",
    "transpose",
    "tree_path",
    "triangle_mask_like",
    "triangular_solve",
    "tril",
    "triplet_margin_loss",
    "triu",
    "trunc",
    "truncated_gaussian",
    "truncated_gaussian_like",
    "unflatten",
    "unfold",
    "uniform_random",
    "uniform_random_like",
    "unique",
    "unique_positions",
    "unique_slices",
    "unpadded_positions",
    "unpool_like",
    "unscale",
    "unsqueeze",
    "unstack",
    "var",
    "viterbi_decode",
    "warmup_cosine_decay",
    "weight_norm",
    "where",
    "window_positions",
    "window_sizes",
    "window_sum",
    "window_sum_adjoint",
    "wrapped_index",
    "xlogy",
    "zeros_like",
]

class _FirstInverseCounts(tuple[R, R, R]):
    first: R
    inverse: R
    counts: R

class _FractionCounted(tuple[R, R]):
    fraction: R
    counted: R

class _HOutCOut(tuple[R, R]):
    h_out: R
    c_out: R

class _IndexCounted(tuple[R, R]):
    index: R  # type: ignore[assignment]
    counted: R

class _IndexWeight(tuple[R, R]):
    index: R  # type: ignore[assignment]
    weight: R

class _IndexWeightInside(tuple[R, R, R]):
    index: R  # type: ignore[assignment]
    weight: R
    inside: R

class _LowerUpperRows(tuple[R, R, R]):
    lower: R
    upper: R
    rows: R

class _OutHOut(tuple[R, R]):
    out: R
    h_out: R

class _OutHOutCOut(tuple[R, R, R]):
    out: R
    h_out: R
    c_out: R

class _OutIndex(tuple[R, R]):
    out: R
    index: R  # type: ignore[assignment]

class _OutInverseCountsFirst(tuple[R, R, R, R]):
    out: R
    inverse: R
    counts: R
    first: R

class _OutLengthsOut(tuple[R, R]):
    out: R
    lengths_out: R

class _OutMeanOutVarianceOut(tuple[R, R, R]):
    out: R
    mean_out: R
    variance_out: R

class _OutUOutVOut(tuple[R, R, R]):
    out: R
    u_out: R
    v_out: R

class _ParameterOutFirstOutLargestOutStepOut(tuple[R, R, R, R]):
    parameter_out: R
    first_out: R
    largest_out: R
    step_out: R

class _ParameterOutFirstOutSecondOutLargestOutStepOut(tuple[R, R, R, R, R]):
    parameter_out: R
    first_out: R
    second_out: R
    largest_out: R
    step_out: R

class _ParameterOutFirstOutSecondOutStepOut(tuple[R, R, R, R]):
    parameter_out: R
    first_out: R
    second_out: R
    step_out: R

class _ParameterOutGradientsOutMovesOut(tuple[R, R, R]):
    parameter_out: R
    gradients_out: R
    moves_out: R

class _ParameterOutMeanSquareOutMeanOutVelocityOut(tuple[R, R, R, R]):
    parameter_out: R
    mean_square_out: R
    mean_out: R
    velocity_out: R

class _ParameterOutMomentOut(tuple[R, R]):
    parameter_out: R
    moment_out: R

class _ParameterOutSquaresOutLinearOut(tuple[R, R, R]):
    parameter_out: R
    squares_out: R
    linear_out: R

class _ParameterOutVelocityOut(tuple[R, R]):
    parameter_out: R
    velocity_out: R

class _PathMovesTaken(tuple[R, R, R]):
    path: R
    moves: R
    taken: R

class _QR(tuple[R, R]):
    q: R
    r: R

class _RowsCounts(tuple[R, R]):
    rows: R
    counts: R

class _RowsLengths(tuple[R, R]):
    rows: R
    lengths: R

class _RowsValues(tuple[R, R]):
    rows: R
    values: R

class _RowsValuesCount(tuple[R, R, R]):
    rows: R
    values: R
    count: R  # type: ignore[assignment]

class _ScorePath(tuple[R, R]):
    score: R
    path: R

class _SignLogabs(tuple[R, R]):
    sign: R
    logabs: R

class _StatesOriginOpenLiveFinalStart(tuple[R, R, R, R, R, R]):
    states: R
    origin: R
    open: R
    live: R
    final: R
    start: R

class _TableCode(tuple[R, R]):
    table: R
    code: R

class _TrueFalse(tuple[R, R]):
    true: R
    false: R

class _USV(tuple[R, R, R]):
    u: R
    s: R
    v: R

class _ValuesVectors(tuple[R, R]):
    values: R
    vectors: R

class _WeightInside(tuple[R, R]):
    weight: R
    inside: R

def abs(x: R | Array) -> R:
    """Absolute value: ``out = |x|``. The gradient at 0 is 0."""

def accuracy(x: R | Array, label: R | Array, *, k: int = 1) -> R:
    """Share of rows whose label is among the `k` highest scores: ``right / n``. Without rows it is 0."""

def acos(x: R | Array) -> R:
    """Inverse cosine: ``cos(out) = x`` with out in [0, pi]."""

def acosh(x: R | Array) -> R:
    """Inverse hyperbolic cosine: ``log(x + sqrt(x ** 2 - 1))``. The result is NaN below 1. The gradient at 1 is inf."""

def active_rows(lengths: R | Array, step: R | Array) -> R:
    """``0, 1, ..., n - 1``, where n sequences are longer than `step`, one integer."""

def adadelta(parameter: R | Array, gradient: R | Array, gradients: R | Array, moves: R | Array, *, learning_rate: float = 1.0, rho: float = 0.95, epsilon: float = 1e-06, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutGradientsOutMovesOut[R]:
    """``parameter - learning_rate * sqrt(moves + epsilon) / sqrt(gradients + epsilon) * gradient`` (Zeiler 2012)."""

def adagrad(parameter: R | Array, gradient: R | Array, moment: R | Array, *, learning_rate: float = 0.01, epsilon: float = 1e-06, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutMomentOut[R]:
    """``moment += gradient ** 2``; the parameter moves by ``-learning_rate * gradient / (sqrt(moment) + epsilon)``."""

def adam(parameter: R | Array, gradient: R | Array, first: R | Array, second: R | Array, step: R | Array, *, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutFirstOutSecondOutStepOut[R]:
    """``parameter - learning_rate * mean / (sqrt(mean_square) + epsilon)`` (Kingma and Ba 2015)."""

def adamax(parameter: R | Array, gradient: R | Array, first: R | Array, largest: R | Array, step: R | Array, *, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutFirstOutLargestOutStepOut[R]:
    """`adam` with ``largest = max(beta2 * largest + epsilon, |gradient|)`` instead of the root of the mean square."""

def adamw(parameter: R | Array, gradient: R | Array, first: R | Array, second: R | Array, step: R | Array, *, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, weight_decay: float = 0.01) -> _ParameterOutFirstOutSecondOutStepOut[R]:
    """`adam` with decoupled weight decay (Loshchilov and Hutter 2019)."""

def adaptive_avg_pool1d(x: R | Array, *, output_size: Sequence[int]) -> R:
    """Mean over adaptive windows of one spatial axis: see `adaptive_avg_pool2d`."""

def adaptive_avg_pool2d(x: R | Array, *, output_size: Sequence[int]) -> R:
    """Mean over adaptive windows: ``out[i] = mean(x[floor(i n / m) : ceil((i + 1) n / m)])`` along each spatial axis."""

def adaptive_avg_pool3d(x: R | Array, *, output_size: Sequence[int]) -> R:
    """Mean over adaptive windows of three spatial axes: see `adaptive_avg_pool2d`."""

def adaptive_max_pool1d(x: R | Array, *, output_size: Sequence[int]) -> _OutIndex[R]:
    """Maximum over adaptive windows of one spatial axis: see `adaptive_max_pool2d`."""

def adaptive_max_pool2d(x: R | Array, *, output_size: Sequence[int]) -> _OutIndex[R]:
    """Maximum over adaptive windows and its position: ``out[i] = max(window i)``, with windows as in `adaptive_avg_pool2d`."""

def adaptive_max_pool3d(x: R | Array, *, output_size: Sequence[int]) -> _OutIndex[R]:
    """Maximum over adaptive windows of three spatial axes: see `adaptive_max_pool2d`."""

def adaptive_positions(*, sizes: Sequence[int], counts: Sequence[int]) -> Any:
    """Row-major positions of the elements of each adaptive window, as int64 [windows, largest window]."""

def adaptive_weights(*, size: int, count: int, dtype: Dtype = 'float32') -> Any:
    """Matrix [size, count] that averages an axis of `size` elements over `count` adaptive windows."""

def add(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Sum of two arrays: ``out = x + y``. Shapes broadcast."""

def addmm(x: R | Array, a: R | Array, b: R | Array, *, alpha: float = 1.0, beta: float = 1.0) -> R:
    """Weighted sum of x and a matrix product: ``beta * x + alpha * (a @ b)`` for matrices a [m, k] and b [k, n]."""

def affine_grid(theta: R | Array, *, size: Sequence[int], align_corners: bool = True) -> R:
    """Sampling grid of an affine map, for `grid_sample` (Jaderberg et al. 2015): ``out[n, i, j] = theta[n] @ (x[j], y[i], 1)``."""

def alpha_dropout(x: R | Array, key: R | Array | None = None, *, p: float = 0.5, is_test: bool = False, seed: int = 0, stream: int = 0) -> R:
    """Dropout that keeps mean 0 and variance 1, for use with `selu` (Klambauer et al. 2017)."""

def amsgrad(parameter: R | Array, gradient: R | Array, first: R | Array, second: R | Array, largest: R | Array, step: R | Array, *, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutFirstOutSecondOutLargestOutStepOut[R]:
    """`adam` with ``largest = max(largest, second)`` instead of the mean square (Reddi, Kale and Kumar 2018)."""

def argmax(x: R | Array, *, axis: int = -1, keepdims: bool = False) -> R:
    """Position of the largest element along `axis`, as int64: ``x[out] = max(x)``. Ties give the first position."""

def argmin(x: R | Array, *, axis: int = -1, keepdims: bool = False) -> R:
    """Position of the smallest element along `axis`, as int64: ``x[out] = min(x)``. Ties give the first position."""

def argsort(x: R | Array, *, axis: int = -1, descending: bool = False) -> R:
    """The positions, int64, that put x in order along `axis`. Equal elements keep their order."""

def array_chunks(array: R | Array, *, order: int = 1) -> R:
    """The elements in runs, as an array of arrays. Run k = 1, 2, ... has binom(k + order - 1, order) elements."""

def array_concat(array: R | Array, like: R | Array | None = None) -> R:
    """The elements of a tensor array, concatenated along their first axis."""

def array_cut(x: R | Array, counts: R | Array, within: R | Array | None = None) -> R:
    """x split along its first axis into an array of sections with `counts` rows each."""

def array_erase(array: R | Array, index: R | Array) -> R:
    """The cotangent of an array with element `index` set to zero. It has no more elements than the array before it was written there: the last element is left out."""

def array_fill(array: R | Array, like: R | Array) -> R:
    """The cotangent of an array with zeros for its missing elements: it gets the length and shapes of `like`."""

def array_flatten(array: R | Array, like: R | Array | None = None, *, order: int = 0) -> R:
    """The elements of an array of arrays, in order, as one array."""

def array_join(array: R | Array, like: R | Array | None = None, *, shape: Sequence[int], dtype: Dtype, count: int = -1, partial: bool = False) -> R:
    """The elements of an array, each of `shape`, along a new first axis."""

def array_length(array: R | Array) -> R:
    """The number of elements, as int64."""

def array_paste(array: R | Array, like: R | Array) -> R:
    """The sections of an array, concatenated, with the shape of `like`: the inverse of `array_cut`."""

def array_place(x: R | Array, index: R | Array) -> R:
    """The cotangent of an array whose elements are zero except element `index`, which is x. A negative index is no element."""

def array_read(array: R | Array, index: R | Array) -> R:
    """Element `index` of the array. The gradient is added to that element."""

def array_regroup(array: R | Array, like: R | Array, *, partial: bool = False) -> R:
    """The elements of a flat array, in runs as long as those of `like`."""

def array_split_as(x: R | Array, array: R | Array) -> R:
    """x split along its first axis into sections as long as the elements of `array`."""

def array_stack(array: R | Array) -> R:
    """The elements of a tensor array along a new first axis, ``[length, ...]``; all must have one shape."""

def array_take(array: R | Array, index: R | Array, like: R | Array) -> R:
    """Element `index` of the cotangent of an array, which has the shape of `like`; zeros like that if it is missing."""

def array_to_sequence(array: R | Array, lengths: R | Array, like: R | Array) -> R:
    """The inverse of `sequence_to_array`. Only the number of rows of `like` matters."""

def array_unstack(x: R | Array) -> R:
    """The tensor array whose elements are x[0], x[1], ... along the first axis."""

def array_write(x: R | Array, index: R | Array, array: R | Array) -> R:
    """A copy of `array` with element `index` replaced by x; an index equal to the length appends x."""

def asin(x: R | Array) -> R:
    """Inverse sine: ``sin(out) = x`` with out in [-pi/2, pi/2]."""

def asinh(x: R | Array) -> R:
    """Inverse hyperbolic sine: ``log(x + sqrt(x ** 2 + 1))``."""

def assign(x: R | Array) -> R:
    """Copy of x under another name: ``out = x``."""

def assign_value(*, values: Sequence[float], shape: Sequence[int], dtype: Dtype = 'float32') -> Any:
    """Constant array of `shape` with the elements `values` in row-major order."""

def atan(x: R | Array) -> R:
    """Inverse tangent: ``tan(out) = x`` with out in (-pi/2, pi/2)."""

def atan2(x: R | Array, y: R | Array) -> R:
    """Angle of the point (y, x) as seen from the origin, in [-pi, pi]: ``tan(out) = x / y``."""

def atanh(x: R | Array) -> R:
    """Inverse hyperbolic tangent: ``log((1 + x) / (1 - x)) / 2``."""

def auc(x: R | Array, label: R | Array) -> R:
    """Area under the ROC curve: the probability that a positive row scores above a negative row. A tie counts half."""

def avg_pool1d(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False, exclusive: bool = True) -> R:
    """Mean over windows of one spatial axis, x [n, c, length]: see `avg_pool2d`."""

def avg_pool2d(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0, 0], dilations: Sequence[int] = [1], ceil_mode: bool = False, exclusive: bool = True) -> R:
    """Mean over each window of x [n, c, h, w]: ``out[..., i, j] = mean(x[..., i s : i s + k, j s : j s + k])``."""

def avg_pool3d(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False, exclusive: bool = True) -> R:
    """Mean over windows of three spatial axes, x [n, c, depth, h, w]: see `avg_pool2d`."""

def baddbmm(x: R | Array, a: R | Array, b: R | Array, *, alpha: float = 1.0, beta: float = 1.0) -> R:
    """Weighted sum of x and a batched matrix product: ``beta * x + alpha * (a @ b)``."""

def barrier(*x: R | Array | Sequence[R | Array], number: int = 0) -> tuple[R, ...]:
    """The values x, unchanged. No pass merges a computation on them with an equal computation before the barrier."""

def batch_norm(x: R | Array, scale: R | Array, bias: R | Array, mean: R | Array, variance: R | Array, *, momentum: float = 0.9, epsilon: float = 1e-05, is_test: bool = False, use_global_stats: bool = False, data_layout: Literal['NCHW', 'NHWC'] = 'NCHW') -> _OutMeanOutVarianceOut[R]:
    """Batch normalization: each channel is normalized over all other axes: ``(x - m) / sqrt(v + epsilon) * scale + bias``."""

def bce_loss(p: R | Array, label: R | Array, weight: R | Array | None = None, *, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Binary cross-entropy of probabilities p: ``-weight * (label * log(p) + (1 - label) * log(1 - p))``."""

def bernoulli(p: R | Array, key: R | Array | None = None, *, seed: int = 0, stream: int = 0) -> R:
    """``P(out = 1) = p``: 1 with probability `p`, else 0, for each element of p; in the dtype of p."""

def bernoulli_like(x: R | Array, key: R | Array | None = None, *, p: float = 0.5, dtype: Dtype | None = None, seed: int = 0, stream: int = 0) -> R:
    """1 with probability `p`, else 0. The shape is that of x, and so is the dtype unless `dtype` is given."""

def bilinear_tensor_product(x: R | Array, y: R | Array, weight: R | Array, bias: R | Array | None = None) -> R:
    """Bilinear form: ``out[n, k] = x[n] @ weight[k] @ y[n] + bias[k]``."""

def bitcast(x: R | Array, *, dtype: Dtype) -> R:
    """The bits of each element of x as an element of `dtype`, which has the same width."""

def bitwise_and(x: R | Array, y: R | Array) -> R:
    """Bitwise and of two integers: ``out = x & y``. For bools it is the logical and."""

def bitwise_left_shift(x: R | Array, y: R | Array) -> R:
    """x shifted left by y bits: ``out = x * 2 ** y``."""

def bitwise_not(x: R | Array) -> R:
    """Bitwise complement of an integer: ``out = ~x``. For bools it is the negation."""

def bitwise_or(x: R | Array, y: R | Array) -> R:
    """Bitwise or of two integers: ``out = x | y``. For bools it is the logical or."""

def bitwise_right_shift(x: R | Array, y: R | Array) -> R:
    """x shifted right by y bits: ``out = floor(x / 2 ** y)``."""

def bitwise_xor(x: R | Array, y: R | Array) -> R:
    """Bitwise exclusive or of two integers: ``out = x ^ y``. For bools it is the logical exclusive or."""

def blackman_window(*, size: int, periodic: bool = True, dtype: Dtype = 'float32') -> Any:
    """Blackman window of `size` elements: ``out[i] = 0.42 - cos(2 pi i / n) / 2 + 0.08 cos(4 pi i / n)``, with n as in `hann_window`."""

def bmm(x: R | Array, y: R | Array) -> R:
    """Product of two batches of matrices, [b, m, k] and [b, k, n]: ``out[b] = x[b] @ y[b]``."""

def border_positions(x: R | Array, *, axis: int, before: int, after: int, mode: Literal['reflect', 'replicate', 'circular']) -> R:
    """Position along `axis` of x of each element of the padded axis, as int64. x gives only its shape."""

def bpr_loss(x: R | Array, label: R | Array) -> R:
    """Bayesian personalised ranking loss (Rendle et al. 2009): the mean of ``-log(sigmoid(x[label] - x[other]))``."""

def broadcast_to(x: R | Array, *, shape: Sequence[int]) -> R:
    """x broadcast to `shape`. Another name for `expand`."""

def call(*x: R | Array | Sequence[R | Array], function: str) -> tuple[R, ...]:
    """Run the function named `function`, one of the program's ``functions``, on `x`."""

def cast(x: R | Array, *, dtype: Dtype) -> R:
    """x converted to `dtype`."""

def cdist(x: R | Array, y: R | Array, *, p: Number = 2.0) -> R:
    """Distances between all rows of x and y: ``out[..., i, j]`` is the p-norm of ``x[..., i, :] - y[..., j, :]``."""

def ceil(x: R | Array, *, straight_through: bool = False) -> R:
    """Smallest whole number not below x: ``-floor(-x)``."""

def celu(x: R | Array, *, alpha: float = 1.0) -> R:
    """Continuously differentiable ELU (Barron 2017): ``out = x`` where x > 0, else ``alpha * (exp(x / alpha) - 1)``."""

def channel_shuffle(x: R | Array, *, groups: int) -> R:
    """Channels of [n, c, h, w] shuffled (Zhang et al. 2018): viewed as [groups, c / groups] and transposed."""

def check_finite(x: R | Array) -> R:
    """``out = x``. If an element is not finite, the run ends with an error at this op."""

def check_shape(x: R | Array, like: R | Array | None = None, *, shape: Sequence[int], axes: Sequence[int] = []) -> R:
    """x, unchanged. A shape other than `shape` is an error of the run, at this op."""

def cholesky(x: R | Array, *, upper: bool = False) -> R:
    """Cholesky factor of the symmetric part of x: lower triangular L with ``L @ L.T = x``, or upper U with ``U.T @ U = x``."""

def cholesky_factor(x: R | Array) -> R:
    """Lower triangular L with ``L @ L.T = x`` for a symmetric x. The op reads only the lower triangle of x."""

def class_index(label: R | Array, x: R | Array, *, axis: int = -1, ignore_index: int = -100) -> _IndexCounted[R]:
    """Labels as positions along `axis` of x, ready for `take_along_axis`, and a bool mask of the labels that count."""

def clip(x: R | Array, *, min: Number = '-inf', max: Number = 'inf') -> R:
    """x clamped to [min, max]: ``out = min(max(x, min), max)``."""

def clip_by_global_norm(*x: R | Array | Sequence[R | Array], max_norm: float) -> tuple[R, ...]:
    """``out = x * min(1, max_norm / norm)`` for each of x, with the joint 2-norm of all of them (Pascanu et al. 2013)."""

def clip_by_norm(x: R | Array, *, max_norm: float) -> R:
    """``out = x * min(1, max_norm / norm(x))``, with the 2-norm of all elements. The norm is differentiated too."""

def cofactors(x: R | Array) -> R:
    """Matrix of cofactors of each square matrix, the gradient of its determinant."""

def cofactors_adjoint(x: R | Array, y: R | Array) -> R:
    """Cotangent of the operand x of `cofactors`, for the cotangent y of its result: the second derivative of ``det(x)`` applied to y. The shapes are equal."""

def compress(x: R | Array, condition: R | Array, *, axis: int | None = None) -> R:
    """The slices of x along `axis` at which the vector `condition` (bool) is true."""

def concat(*x: R | Array | Sequence[R | Array], axis: int = 0) -> R:
    """Arrays concatenated along `axis`. All other sizes must be equal. An array may be empty along `axis`."""

def context_rows(lengths: R | Array, x: R | Array, *, length: int, start: int) -> R:
    """For each row the positions of `length` rows, beginning `start` after it: [rows, length]."""

def conv1d(x: R | Array, filter: R | Array, bias: R | Array | None = None, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], groups: int = 1, padding: Literal['explicit', 'same', 'valid'] = 'explicit', data_format: Literal['NCL', 'NLC'] = 'NCL') -> R:
    """Convolution over one spatial axis: see `conv2d`."""

def conv1d_transpose(x: R | Array, filter: R | Array, bias: R | Array | None = None, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], groups: int = 1, output_padding: Sequence[int] = [0], padding: Literal['explicit', 'same', 'valid'] = 'explicit', data_format: Literal['NCL', 'NLC'] = 'NCL') -> R:
    """Transpose of `conv1d`: see `conv2d_transpose`."""

def conv2d(x: R | Array, filter: R | Array, bias: R | Array | None = None, *, strides: Sequence[int] = [1, 1], paddings: Sequence[int] = [0, 0], dilations: Sequence[int] = [1, 1], groups: int = 1, padding: Literal['explicit', 'same', 'valid'] = 'explicit', data_format: Literal['NCHW', 'NHWC'] = 'NCHW') -> R:
    """Convolution: ``out[n, o, y, x] = bias[o] + sum over c, i, j of x[n, c, y * stride + i * dilation, ...] * filter[o, c, i, j]``."""

def conv2d_transpose(x: R | Array, filter: R | Array, bias: R | Array | None = None, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], groups: int = 1, output_padding: Sequence[int] = [0], padding: Literal['explicit', 'same', 'valid'] = 'explicit', data_format: Literal['NCHW', 'NHWC'] = 'NCHW') -> R:
    """Transpose of `conv2d`, the map that `conv2d` applies to cotangents of its output."""

def conv3d(x: R | Array, filter: R | Array, bias: R | Array | None = None, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], groups: int = 1, padding: Literal['explicit', 'same', 'valid'] = 'explicit', data_format: Literal['NCDHW', 'NDHWC'] = 'NCDHW') -> R:
    """Convolution over three spatial axes, x [batch, channels, depth, height, width]: see `conv2d`."""

def conv3d_transpose(x: R | Array, filter: R | Array, bias: R | Array | None = None, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], groups: int = 1, output_padding: Sequence[int] = [0], padding: Literal['explicit', 'same', 'valid'] = 'explicit', data_format: Literal['NCDHW', 'NDHWC'] = 'NCDHW') -> R:
    """Transpose of `conv3d`: see `conv2d_transpose`."""

def correlate(x: R | Array, filter: R | Array, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], groups: int = 1) -> R:
    """Convolution of x [n, c, *spatial] with a filter [out, c / groups, *kernel], as in `conv2d`, without bias."""

def correlate_filter_adjoint(ct: R | Array, x: R | Array, like: R | Array, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], groups: int = 1) -> R:
    """Cotangent of the filter of `correlate`. `like` gives the shape of the filter."""

def correlate_input_adjoint(ct: R | Array, filter: R | Array, like: R | Array, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], groups: int = 1) -> R:
    """Cotangent of the input of `correlate`, a transposed convolution. `like` gives the shape of the input."""

def cos(x: R | Array) -> R:
    """Cosine: ``out = cos(x)``, with x in radians."""

def cos_sim(x: R | Array, y: R | Array, *, axis: int = -1, epsilon: float = 0.0) -> R:
    """Cosine similarity: ``sum(x * y) / (norm(x) * norm(y))`` along `axis` of x."""

def cosh(x: R | Array) -> R:
    """Hyperbolic cosine: ``(exp(x) + exp(-x)) / 2``."""

def cosine_decay(step: R | Array, *, learning_rate: float, decay_steps: int, end_learning_rate: float = 0.0) -> R:
    """``end + (start - end) * (1 + cos(pi * step / decay_steps)) / 2`` (Loshchilov and Hutter 2017)."""

def cosine_embedding_loss(x: R | Array, y: R | Array, label: R | Array, *, margin: float = 0.0, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Loss of pairs of vectors along the last axis: ``1 - cos_sim(x, y)`` where the label is positive, else ``max(0, cos_sim(x, y) - margin)``. At the kink the gradient is 0."""

def create_array(*, shape: Sequence[int], dtype: Dtype = 'float32') -> Any:
    """An empty tensor array, for elements of that dtype and shape; a size of -1 stands for any size."""

def crf_decoding(emission: R | Array, transition: R | Array, lengths: R | Array | None = None) -> R:
    """The labels [n, time] with the highest `crf_score`: int64, 0 after the end of a sequence (Viterbi 1967)."""

def crf_moves(label: R | Array, emission: R | Array, lengths: R | Array | None = None) -> _PathMovesTaken[R]:
    """The positions of the scores that a sequence of labels adds up."""

def crf_partition(emission: R | Array, transition: R | Array, lengths: R | Array | None = None) -> R:
    """The logarithm of the sum of ``exp(crf_score)`` over all possible labels, one number for each sequence."""

def crf_score(emission: R | Array, transition: R | Array, label: R | Array, lengths: R | Array | None = None) -> R:
    """``sum over t of emission[i, t, label[i, t]]``, plus the scores of the transitions, for labels [n, time]."""

def crop(x: R | Array, *, offsets: Sequence[int], shape: Sequence[int]) -> R:
    """The part of x of size `shape` that begins at `offsets`. A size of -1 reaches to the end of the axis."""

def cross(x: R | Array, y: R | Array, *, axis: int = -1) -> R:
    """Vector product ``(x1 y2 - x2 y1, x2 y0 - x0 y2, x0 y1 - x1 y0)`` along `axis`."""

def cross_entropy(p: R | Array, label: R | Array, weight: R | Array | None = None, *, soft_label: bool = False, ignore_index: int = -100, axis: int = -1, reduction: Literal['none', 'mean', 'sum'] = 'none') -> R:
    """Cross-entropy of probabilities p: ``-log(p[label])`` for each row, or ``-sum(label * log(p))`` for soft labels."""

def ctc_lattice(label: R | Array, input_lengths: R | Array, label_lengths: R | Array, log_probs: R | Array, *, blank: int = 0) -> _StatesOriginOpenLiveFinalStart[R]:
    """The lattice of `ctc_loss`: blank, label 0, blank, label 1, ..., blank are states s = 0 to 2 L of a sequence."""

def ctc_loss(log_probs: R | Array, label: R | Array, input_lengths: R | Array, label_lengths: R | Array, *, blank: int = 0, zero_infinity: bool = False, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """``-log P(label)``: the loss of labels whose times are unknown."""

def cummax(x: R | Array, *, axis: int = -1) -> _OutIndex[R]:
    """Cumulative maximum along `axis`: ``out[i] = max(x[0], ..., x[i])``, and its position."""

def cummin(x: R | Array, *, axis: int = -1) -> _OutIndex[R]:
    """Cumulative minimum along `axis`: ``out[i] = min(x[0], ..., x[i])``, and its position."""

def cumprod(x: R | Array, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> R:
    """Cumulative product along `axis`: ``out[i] = x[0] * ... * x[i]``."""

def cumsum(x: R | Array, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> R:
    """Cumulative sum along `axis`: ``out[i] = x[0] + ... + x[i]``."""

def decayed_adagrad(parameter: R | Array, gradient: R | Array, moment: R | Array, *, learning_rate: float = 0.01, decay: float = 0.95, epsilon: float = 1e-06, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutMomentOut[R]:
    """`adagrad` with a running mean: ``moment = decay * moment + (1 - decay) * gradient ** 2``."""

def deformable_conv2d(x: R | Array, offset: R | Array, filter: R | Array, mask: R | Array | None = None, bias: R | Array | None = None, *, strides: Sequence[int] = [1, 1], paddings: Sequence[int] = [0, 0], dilations: Sequence[int] = [1, 1], groups: int = 1, deformable_groups: int = 1) -> R:
    """Deformable convolution (Dai et al. 2017): `conv2d` whose taps are moved by `offset` and read x bilinearly."""

def depth_to_space(x: R | Array, *, block_size: int) -> R:
    """[n, b b c, h, w] rearranged to [n, c, h b, w b]: the inverse of `space_to_depth`."""

def depthwise_conv2d(x: R | Array, filter: R | Array, bias: R | Array | None = None, *, strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], padding: Literal['explicit', 'same', 'valid'] = 'explicit', data_format: Literal['NCHW', 'NHWC'] = 'NCHW') -> R:
    """Depthwise convolution: `conv2d` with one group per channel of x."""

def det(x: R | Array) -> R:
    """Determinant of each square matrix."""

def dft(x: R | Array, *, axis: int = -2, inverse: bool = False, norm: Literal['backward', 'ortho', 'forward'] = 'backward') -> R:
    """Discrete Fourier transform along `axis` of complex numbers x [..., n, ..., 2], without a change of length: see `fft`."""

def diag(x: R | Array, *, offset: int = 0) -> R:
    """Square matrix with the vector x on a diagonal: ``out[i, i + offset] = x[i]``. For a matrix x, its diagonal."""

def diagonal(x: R | Array, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> R:
    """Diagonal of two axes of x: ``out[..., i] = x[i, i + offset]``. The diagonal becomes the last axis."""

def diagonal_into(x: R | Array, like: R | Array, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> R:
    """Zeros shaped like `like`, with x at the positions that `diagonal(like)` reads: the transpose of `diagonal`."""

def diagonal_mask_like(x: R | Array) -> R:
    """True on the diagonal of the last two axes, false elsewhere. x gives only its shape."""

def diagonals_into(x: R | Array, like: R | Array, *, letters: str) -> R:
    """Zeros shaped like `like`, with x on the diagonals that einsum reads for ``letters -> letters without repeats``."""

def dice_loss(p: R | Array, label: R | Array, *, epsilon: float = 1e-05) -> R:
    """Dice loss (Milletari et al. 2016): ``1 - 2 * sum(p * label) / (sum(p) + sum(label) + epsilon)`` per sample, averaged."""

def digamma(x: R | Array) -> R:
    """Derivative of `lgamma`: ``polygamma(x, order=0)``."""

def dist(x: R | Array, y: R | Array, *, p: Number = 2.0) -> R:
    """p-norm of the difference of two arrays over all elements: ``sum(|x - y| ** p) ** (1 / p)``, with p as in `norm`."""

def div(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Quotient of two floating-point arrays: ``out = x / y``. Shapes broadcast."""

def dot(x: R | Array, y: R | Array) -> R:
    """Inner product along the last axis: ``sum(x * y)``. For two vectors the result is a 0-d array."""

def dropout(x: R | Array, key: R | Array | None = None, *, p: float = 0.5, is_test: bool = False, mode: Literal['upscale_in_train', 'downscale_in_infer'] = 'upscale_in_train', axes: Sequence[int] | None = None, seed: int = 0, stream: int = 0) -> R:
    """Set each element to 0 with probability `p` (Srivastava et al. 2014)."""

def dynamic_expand(x: R | Array, sizes: R | Array, *, shape: Sequence[int]) -> R:
    """x broadcast with the shape in `sizes`, int64 [rank]: a size of 1 keeps the size of x."""

def dynamic_fill(sizes: R | Array, *, shape: Sequence[int], value: Number = 0.0, dtype: Dtype = 'float32') -> R:
    """Array of the shape in `sizes`, int64 [rank], with `value` in every element."""

def dynamic_range(start: R | Array, end: R | Array, step: R | Array) -> R:
    """Vector of equally spaced numbers ``start, start + step, ...``, excluding `end`: three scalars of one dtype."""

def dynamic_reshape(x: R | Array, sizes: R | Array, *, shape: Sequence[int]) -> R:
    """x with the shape in `sizes`, int64 [rank]; the elements keep their row-major order. One size may be -1 and is computed from the others."""

def dynamic_slice(x: R | Array, starts: R | Array, ends: R | Array, steps: R | Array, *, axes: Sequence[int], shape: Sequence[int]) -> R:
    """``x[start:end:step]`` along each of `axes`, with starts, ends and steps as operands, int64 [axes]."""

def dynamic_slice_into(x: R | Array, like: R | Array, starts: R | Array, ends: R | Array, steps: R | Array, *, axes: Sequence[int]) -> R:
    """Zeros shaped like `like`, with x at the positions that `dynamic_slice` reads: ``dynamic_slice(out) = x``."""

def eigh(x: R | Array) -> _ValuesVectors[R]:
    """Ascending eigenvalues w and orthonormal eigenvectors V (columns): ``V @ diag(w) @ V.T = (x + x.T) / 2``."""

def eigh_factor(x: R | Array) -> _ValuesVectors[R]:
    """Ascending eigenvalues w and orthonormal eigenvectors V (columns) of a symmetric x: ``V @ diag(w) @ V.T = x``."""

def eigvalsh(x: R | Array) -> R:
    """Ascending eigenvalues of the symmetric part of x."""

def eigvalsh_factor(x: R | Array) -> R:
    """Ascending eigenvalues w of a symmetric x: ``det(x - w) = 0``. The op reads only the lower triangle of x."""

def einsum(*x: R | Array | Sequence[R | Array], equation: str) -> R:
    """Einstein summation: multiplies the operands and sums over each letter that the result lacks, as in ``ij,jk->ik``."""

def elementwise_add(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`add` with the axes of y aligned to the axes of x from `axis` on."""

def elementwise_div(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`div` with the axes of y aligned to the axes of x from `axis` on."""

def elementwise_floordiv(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`floor_div` with the axes of y aligned to the axes of x from `axis` on."""

def elementwise_max(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`maximum` with the axes of y aligned to the axes of x from `axis` on."""

def elementwise_min(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`minimum` with the axes of y aligned to the axes of x from `axis` on."""

def elementwise_mod(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`mod` with the axes of y aligned to the axes of x from `axis` on."""

def elementwise_mul(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`mul` with the axes of y aligned to the axes of x from `axis` on."""

def elementwise_pow(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`pow` with the axes of y aligned to the axes of x from `axis` on."""

def elementwise_sub(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """`sub` with the axes of y aligned to the axes of x from `axis` on."""

def elu(x: R | Array, *, alpha: float = 1.0) -> R:
    """Exponential linear unit (Clevert et al. 2016): ``out = x`` where x > 0, else ``alpha * (exp(x) - 1)``."""

def embedding(weight: R | Array, ids: R | Array, *, padding_idx: int | None = None, is_sparse: bool = False) -> R:
    """``out[..., :] = weight[ids[...], :]``: rows of a table, looked up."""

def embedding_bag(weight: R | Array, ids: R | Array, offsets: R | Array | None = None, sample_weight: R | Array | None = None, *, mode: Literal['sum', 'mean', 'max'] = 'mean', is_sparse: bool = False) -> R:
    """Rows of the table `weight` reduced over bags of `ids`: ``out[b] = sum of weight[i] for i in bag b``."""

def empty_stack(*, depth: int = 1, shape: Sequence[int] = [], dtype: Dtype = 'float32') -> Any:
    """Empty stack, nested `depth` times, of arrays of `shape`: the record of a loop that never ran."""

def equal(x: R | Array, y: R | Array) -> R:
    """Whether x equals y: ``x == y``, as bool."""

def erf(x: R | Array) -> R:
    """Error function: ``2 / sqrt(pi) * integral of exp(-t^2) from 0 to x``."""

def erfc(x: R | Array) -> R:
    """Complementary error function: ``1 - erf(x)``. It stays accurate for large x."""

def erfinv(x: R | Array) -> R:
    """Inverse of the error function: ``erf(out) = x``. The result is -inf at -1, inf at 1, and NaN outside [-1, 1]."""

def exp(x: R | Array) -> R:
    """Exponential function: ``out = e ** x``."""

def expand(x: R | Array, *, shape: Sequence[int]) -> R:
    """x broadcast to `shape`. A size of -1 keeps the size of x."""

def expand_as(x: R | Array, like: R | Array) -> R:
    """x broadcast to the shape of `like`, which gives only its shape."""

def expanded_rows(times: R | Array, lengths: R | Array, x: R | Array) -> R:
    """The positions, int64, of the rows of x, with the rows of sequence i ``times[i]`` times, for i = 0, 1, 2, ..."""

def expm1(x: R | Array) -> R:
    """Exponential minus 1: ``out = e ** x - 1``. It stays accurate for small x."""

def exponential(key: R | Array | None = None, *, shape: Sequence[int], rate: float = 1.0, dtype: Dtype = 'float32', seed: int = 0, stream: int = 0) -> R:
    """Numbers from the exponential distribution: density ``rate exp(-rate x)``, mean ``1 / rate``."""

def exponential_decay(step: R | Array, *, learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> R:
    """``learning_rate * decay_rate ** (step / decay_steps)``. `staircase` rounds the exponent down."""

def exponential_like(x: R | Array, key: R | Array | None = None, *, rate: float = 1.0, dtype: Dtype | None = None, seed: int = 0, stream: int = 0) -> R:
    """Numbers from the exponential distribution: density ``rate exp(-rate x)``, mean ``1 / rate``. The shape is that of x, and so is the dtype unless `dtype` is given."""

def eye(*, num_rows: int, num_columns: int | None = None, dtype: Dtype = 'float32') -> Any:
    """Identity matrix: ``out[i, j] = 1`` where ``i == j``, else 0. Without `num_columns` the matrix is square."""

def eye_like(x: R | Array, *, offset: int = 0, dtype: Dtype | None = None) -> R:
    """Ones on a diagonal and zeros elsewhere, in the shape of the matrix x: ``out[i, i + offset] = 1``."""

def fft(x: R | Array, *, n: int | None = None, axis: int = -2, inverse: bool = False, norm: Literal['backward', 'ortho', 'forward'] = 'backward') -> R:
    """Discrete Fourier transform along `axis` of complex numbers x [..., n, ..., 2]: ``out[k] = sum of x[j] exp(-2 pi i j k / n)``."""

def fill_constant(*, shape: Sequence[int] = [], value: Number = 0.0, dtype: Dtype = 'float32') -> Any:
    """Array of `shape` with `value` in every element: ``out[...] = value``."""

def fill_constant_batch_size_like(x: R | Array, *, shape: Sequence[int], value: Number = 0.0, dtype: Dtype = 'float32', input_dim: int = 0, output_dim: int = 0) -> R:
    """Array filled with `value`, whose shape is `shape` with the size of axis `input_dim` of x at axis `output_dim`."""

def fill_zeros_like(x: R | Array) -> R:
    """Zeros with the shape and dtype of x: ``out[...] = 0``. For a stack, zeros for each of its elements."""

def first_true(x: R | Array, *, axes: Sequence[int] | None = None) -> R:
    """True at the first true element of x over `axes` in row-major order, and false elsewhere."""

def flatten(x: R | Array, *, axis: int = 1) -> R:
    """x as a matrix: the axes before `axis` become the rows, the other axes the columns."""

def flatten_contiguous_range(x: R | Array, *, start_axis: int = 1, stop_axis: int = -1) -> R:
    """x with the axes from `start_axis` to `stop_axis`, both included, merged into one."""

def flip(x: R | Array, *, axes: Sequence[int]) -> R:
    """x in reverse order along each of `axes`: ``out[i] = x[n - 1 - i]``."""

def floor(x: R | Array, *, straight_through: bool = False) -> R:
    """Largest whole number not above x: ``out <= x < out + 1``."""

def floor_div(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Quotient rounded down: ``out = floor(x / y)``."""

def fmod(x: R | Array, y: R | Array) -> R:
    """Remainder with the sign of x: ``out = x - trunc(x / y) * y``."""

def fold(x: R | Array, *, output_size: Sequence[int], kernel: Sequence[int], strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1]) -> R:
    """Columns [n, c * elements of a window, windows] summed into [n, c, *output_size]: the transpose of `unfold`."""

def frobenius_norm(x: R | Array, *, axes: Sequence[int] = [-2, -1], keepdims: bool = False) -> R:
    """Frobenius norm: ``sqrt(sum(x ** 2))`` over `axes`, by default the last two."""

def ftrl(parameter: R | Array, gradient: R | Array, squares: R | Array, linear: R | Array, *, learning_rate: float = 0.01, l1: float = 0.0, l2: float = 0.0) -> _ParameterOutSquaresOutLinearOut[R]:
    """Follow the regularised leader (McMahan et al. 2013): a parameter becomes 0 where ``|linear| <= l1``."""

def full_like(x: R | Array, *, value: Number) -> R:
    """`value` in every element, with the shape and dtype of x: ``out[...] = value``."""

def gap_quotient(x: R | Array, gap: R | Array, values: R | Array) -> R:
    """Quotient ``x / gap``, and 0 where x is 0 and the gap is 0 up to the rounding of `values` [..., k]."""

def gather(x: R | Array, index: R | Array, *, axis: int = 0) -> R:
    """``out[..., i, ...] = x[..., index[i], ...]``: the axes of `index` take the place of `axis` of x."""

def gather_nd(x: R | Array, index: R | Array, *, batch_dims: int = 0) -> R:
    """``out[...] = x[index[..., 0], index[..., 1], ...]``: slices of x by their coordinates along its first axes."""

def gaussian_nll_loss(x: R | Array, label: R | Array, variance: R | Array, *, full: bool = False, epsilon: float = 1e-06, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Negative log-likelihood of a Gaussian (Nix and Weigend 1994): ``(log(v) + (x - label) ** 2 / v) / 2``."""

def gaussian_random(key: R | Array | None = None, *, shape: Sequence[int], mean: float = 0.0, std: float = 1.0, dtype: Dtype = 'float32', seed: int = 0, stream: int = 0) -> R:
    """Numbers from the normal distribution with mean `mean` and standard deviation `std` (Box and Muller 1958)."""

def gaussian_random_like(x: R | Array, key: R | Array | None = None, *, mean: float = 0.0, std: float = 1.0, dtype: Dtype | None = None, seed: int = 0, stream: int = 0) -> R:
    """Numbers from the normal distribution with mean `mean` and standard deviation `std` (Box and Muller 1958). The shape is that of x, and so is the dtype unless `dtype` is given."""

def gelu(x: R | Array, *, approximate: bool = False) -> R:
    """Gaussian error linear unit (Hendrycks and Gimpel 2016): ``out = x * P(N <= x)`` for a standard normal N."""

def global_avg_pool(x: R | Array) -> R:
    """Mean over all spatial axes: ``out[n, c] = mean(x[n, c])``. The spatial axes stay in the result with size 1."""

def global_max_pool(x: R | Array) -> R:
    """Maximum over all spatial axes: ``out[n, c] = max(x[n, c])``. The spatial axes stay in the result with size 1."""

def glu(x: R | Array, *, axis: int = -1) -> R:
    """Gated linear unit (Dauphin et al. 2017): ``out = a * sigmoid(b)``, where a and b are the halves of x along `axis`."""

def grad_add(x: R | Array, y: R | Array) -> R:
    """``out = x + y``: the sum of two contributions to one gradient."""

def gradients(*targets: R | Array | Sequence[R | Array], inputs: Sequence[R | Array]) -> tuple[R, ...]:
    """The gradients of the sum of all elements of `targets` with respect to each of `inputs`, one in `out` for each."""

def greater_equal(x: R | Array, y: R | Array) -> R:
    """Whether x is at least y: ``x >= y``, as bool."""

def greater_than(x: R | Array, y: R | Array) -> R:
    """Whether x is greater than y: ``x > y``, as bool."""

def grid_sample(x: R | Array, grid: R | Array, *, mode: Literal['bilinear', 'nearest', 'bicubic'] = 'bilinear', padding_mode: Literal['zeros', 'border', 'reflection'] = 'zeros', align_corners: bool = True) -> R:
    """x sampled at the positions in `grid` (Jaderberg et al. 2015): ``out[n, c, i, j]`` is x[n, c] at (x, y) = grid[n, i, j]."""

def group_norm(x: R | Array, scale: R | Array | None = None, bias: R | Array | None = None, *, groups: int, epsilon: float = 1e-05) -> R:
    """Group normalization (Wu and He 2018): `instance_norm` over `groups` equal groups of channels."""

def gru(x: R | Array, h: R | Array, weight_x: R | Array, weight_h: R | Array, bias_x: R | Array | None = None, bias_h: R | Array | None = None, *, reverse: bool = False) -> _OutHOut[R]:
    """`gru_cell` over x [time, batch, input]: h of each time [time, batch, hidden], and the last h."""

def gru_cell(x: R | Array, h: R | Array, weight_x: R | Array, weight_h: R | Array, bias_x: R | Array | None = None, bias_h: R | Array | None = None) -> R:
    """One step of a gated recurrent unit: the new h [n, hidden]."""

def hamming_window(*, size: int, periodic: bool = True, alpha: float = 0.54, dtype: Dtype = 'float32') -> Any:
    """Hamming window of `size` elements: ``out[i] = alpha - (1 - alpha) cos(2 pi i / n)``, with n as in `hann_window`."""

def hann_window(*, size: int, periodic: bool = True, dtype: Dtype = 'float32') -> Any:
    """Hann window of `size` elements: ``out[i] = (1 - cos(2 pi i / n)) / 2``."""

def hard_shrink(x: R | Array, *, threshold: float = 0.5) -> R:
    """Hard shrinkage: ``out = x`` where ``|x| > threshold``, else 0."""

def hard_sigmoid(x: R | Array, *, slope: float = 0.16666666666666666, offset: float = 0.5) -> R:
    """Piecewise linear sigmoid: ``out = min(max(slope * x + offset, 0), 1)``."""

def hard_swish(x: R | Array, *, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0) -> R:
    """Piecewise swish: ``out = x * min(max(x + offset, 0), threshold) / scale`` (Howard et al. 2019)."""

def hard_tanh(x: R | Array, *, min: float = -1.0, max: float = 1.0) -> R:
    """x clamped to two bounds: ``out = min(max(x, min), max)``."""

def hardmax(x: R | Array, *, axis: int = -1) -> R:
    """1 at the largest element along `axis`, at the first of equal ones, and 0 elsewhere, in the dtype of x."""

def hierarchical_sigmoid(x: R | Array, label: R | Array, weight: R | Array, bias: R | Array | None = None, path_table: R | Array | None = None, path_code: R | Array | None = None, *, num_classes: int = 2) -> R:
    """Hierarchical sigmoid loss (Morin and Bengio 2005): cross-entropy of the branch bits on the tree path to the label."""

def hinge_embedding_loss(x: R | Array, label: R | Array, *, margin: float = 1.0, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Loss of distances x: ``x`` where the label is positive, else ``max(0, margin - x)``. At the kink the gradient is 0."""

def hinge_loss(x: R | Array, label: R | Array) -> R:
    """Hinge loss for labels 0 and 1: ``max(0, 1 - x * (2 * label - 1))``. At the kink the gradient is 0."""

def huber_loss(x: R | Array, label: R | Array, *, delta: float = 1.0, reduction: Literal['none', 'mean', 'sum'] = 'none') -> R:
    """Huber loss (Huber 1964) with d = x - label: ``d ** 2 / 2`` for ``|d| <= delta``, else ``delta * (|d| - delta / 2)``."""

def hypot(x: R | Array, y: R | Array) -> R:
    """Length of the hypotenuse: ``out = sqrt(x ** 2 + y ** 2)``, even where the squares would overflow or underflow."""

def increment(x: R | Array, *, step: float = 1.0) -> R:
    """x plus a constant: ``out = x + step``. A counter uses it with the same variable as input and output."""

def index_add(x: R | Array, index: R | Array, updates: R | Array, *, axis: int = 0) -> R:
    """x with ``updates`` added at the slices that the vector `index` names along `axis`."""

def index_put(x: R | Array, values: R | Array, *index: R | Array | Sequence[R | Array], accumulate: bool = False) -> R:
    """x with `values` written, or with `accumulate` added, at ``x[index[0], index[1], ...]``."""

def index_sample(x: R | Array, index: R | Array) -> R:
    """``out[i, j] = x[i, index[i, j]]``: elements of each row of a matrix, by the same row of `index`."""

def index_select(x: R | Array, index: R | Array, *, axis: int = 0) -> R:
    """``out[..., i, ...] = x[..., index[i], ...]``: slices of x along `axis`, by a 1-D `index`."""

def instance_norm(x: R | Array, scale: R | Array | None = None, bias: R | Array | None = None, *, epsilon: float = 1e-05) -> R:
    """Instance normalization (Ulyanov et al. 2016): ``(x - mean) / sqrt(variance + epsilon) * scale + bias``."""

def interleaved_rows(lengths: R | Array, more: R | Array, x: R | Array, y: R | Array) -> R:
    """The positions of the rows of ``concat(x, y)``, ordered as sequence 0 of x, sequence 0 of y, sequence 1 of x, ..."""

def interpolate(x: R | Array, *, size: Sequence[int] | None = None, scale_factor: Sequence[float] | None = None, mode: Literal['nearest', 'nearest_exact', 'linear', 'cubic'] = 'nearest', align_corners: bool = False, align_mode: int = 0, antialias: bool = False, cubic_coefficient: float = -0.75, exact_scale: bool = False) -> R:
    """x [n, c, *spatial] resized to `size`, or by `scale_factor` (rounded down), over one to three spatial axes."""

def inverse(x: R | Array) -> R:
    """Inverse of each square matrix: ``out @ x = 1``. A singular matrix is an error of the run (singular_matrix)."""

def inverse_count(x: R | Array, *, axes: Sequence[int] | None = None, ddof: int = 0) -> R:
    """``1 / (n - ddof)`` as a 0-d array, where n is the number of elements of x over `axes`."""

def inverse_time_decay(step: R | Array, *, learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> R:
    """``learning_rate / (1 + decay_rate * step / decay_steps)``."""

def irfft(x: R | Array, *, n: int | None = None, axis: int = -2, norm: Literal['backward', 'ortho', 'forward'] = 'backward') -> R:
    """Real numbers [..., n, ...] whose `rfft` along `axis` is x [..., m, ..., 2]."""

def is_last(index: R | Array) -> R:
    """For each element of an integer array whether all later ones, in row-major order, differ from it."""

def is_padding(ids: R | Array, like: R | Array, *, padding_idx: int) -> R:
    """For each of `ids` whether it means the row `padding_idx` of a table like `like`; both may count from the end."""

def isfinite(x: R | Array) -> R:
    """Whether x is finite, so neither infinite nor NaN: ``|x| < inf``, as bool."""

def isinf(x: R | Array, *, positive: bool = True, negative: bool = True) -> R:
    """Whether x is positive or negative infinity: ``|x| == inf``, as bool."""

def isnan(x: R | Array) -> R:
    """Whether x is NaN: ``x != x``, as bool."""

def istft(x: R | Array, window: R | Array | None = None, *, frame_length: int, hop_length: int, center: bool = False, length: int | None = None) -> R:
    """Signals [..., time] whose one-sided `stft` is x [..., frames, frame_length / 2 + 1, 2] (Griffin and Lim 1984)."""

def kldiv_loss(x: R | Array, target: R | Array, *, reduction: Literal['none', 'mean', 'sum', 'batchmean'] = 'mean') -> R:
    """Kullback-Leibler divergence: ``target * (log(target) - x)`` for log-probabilities x."""

def kron(x: R | Array, y: R | Array) -> R:
    """Kronecker product of two arrays of the same rank: ``out[i * p + k, j * q + l] = x[i, j] * y[k, l]``."""

def kthvalue(x: R | Array, *, k: int, axis: int = -1, keepdims: bool = False) -> _OutIndex[R]:
    """``sort(x)[k - 1]``: the `k`-th smallest element along `axis`, and its position in x."""

def l1_loss(x: R | Array, label: R | Array, *, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Absolute error: ``|x - label|``. Where x equals label the gradient is 0."""

def l1_norm(x: R | Array) -> R:
    """Sum of absolute values of all elements: ``sum(|x|)``, a 0-d array. The gradient at 0 is 0."""

def l2_normalize(x: R | Array, *, axis: int = -1, epsilon: float = 1e-12) -> R:
    """x divided by its 2-norm along `axis`: ``x / sqrt(max(sum(x ** 2), epsilon))``."""

def label_rows(label: R | Array, weight: R | Array) -> R:
    """Labels [n] or [n, 1] as int64 row numbers [n] of `weight` [classes, ...]."""

def label_smooth(label: R | Array, prior: R | Array | None = None, *, epsilon: float = 0.1) -> R:
    """Smoothed labels: ``(1 - epsilon) * label + epsilon * prior``."""

def lamb(parameter: R | Array, gradient: R | Array, first: R | Array, second: R | Array, step: R | Array, *, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-06, weight_decay: float = 0.01) -> _ParameterOutFirstOutSecondOutStepOut[R]:
    """``parameter - learning_rate * norm(parameter) / norm(move) * move`` (You et al. 2020)."""

def lars(parameter: R | Array, gradient: R | Array, velocity: R | Array, *, learning_rate: float = 0.01, momentum: float = 0.9, coefficient: float = 0.001, weight_decay: float = 0.0005, l1_decay: float = 0.0, epsilon: float = 0.0) -> _ParameterOutVelocityOut[R]:
    """`momentum` whose gradient is multiplied by a rate for each parameter (You et al. 2017)."""

def layer_norm(x: R | Array, scale: R | Array | None = None, bias: R | Array | None = None, *, begin_norm_axis: int = 1, epsilon: float = 1e-05) -> R:
    """Layer normalization: ``out = (x - mean) / sqrt(variance + epsilon) * scale + bias`` over the axes from `begin_norm_axis` on."""

def leaky_relu(x: R | Array, *, alpha: float = 0.02) -> R:
    """ReLU with a slope below 0: ``out = x`` where x > 0, else ``alpha * x``. The gradient at 0 is `alpha`."""

def lerp(x: R | Array, y: R | Array, weight: R | Array) -> R:
    """Linear interpolation: ``out = x + weight * (y - x)``. Shapes broadcast."""

def less_equal(x: R | Array, y: R | Array) -> R:
    """Whether x is at most y: ``x <= y``, as bool."""

def less_than(x: R | Array, y: R | Array) -> R:
    """Whether x is less than y: ``x < y``, as bool."""

def lgamma(x: R | Array) -> R:
    """Logarithm of the absolute value of the gamma function: ``log(|gamma(x)|)``."""

def linear_chain_crf(emission: R | Array, transition: R | Array, label: R | Array, lengths: R | Array | None = None) -> R:
    """``crf_partition - crf_score``: minus the log-likelihood of the labels [n, time], one number for each sequence."""

def linear_lr_warmup(step: R | Array, *, learning_rate: float, warmup_steps: int, start_learning_rate: float = 0.0) -> R:
    """``start + (rate - start) * min(step / warmup_steps, 1)``: from `start_learning_rate` to `learning_rate`."""

def linear_scan(a: R | Array, b: R | Array, begins: R | Array | None = None, *, axis: int = -1, reverse: bool = False) -> R:
    """Linear recurrence along `axis`: ``out[t] = a[t] * out[t - 1] + b[t]``, starting from 0."""

def linspace(*, start: float, stop: float, num: int, dtype: Dtype = 'float32') -> Any:
    """`num` equally spaced numbers, both ends included: ``out[i] = start + i * (stop - start) / (num - 1)``."""

def log(x: R | Array) -> R:
    """Natural logarithm: ``exp(out) = x``. At 0 the result is -inf and the gradient inf. Below 0 the result is NaN."""

def log10(x: R | Array) -> R:
    """Logarithm to base 10: ``10 ** out = x``. It is exact for powers of 10."""

def log1p(x: R | Array) -> R:
    """Logarithm of 1 plus x: ``out = log(1 + x)``. It stays accurate for small x."""

def log2(x: R | Array) -> R:
    """Logarithm to base 2: ``2 ** out = x``. It is exact for powers of 2."""

def log_loss(p: R | Array, label: R | Array, *, epsilon: float = 0.0001) -> R:
    """Binary cross-entropy with an offset: ``-label * log(p + epsilon) - (1 - label) * log(1 - p + epsilon)``."""

def log_softmax(x: R | Array, *, axis: int = -1) -> R:
    """Logarithm of the softmax along `axis`: ``out = x - log(sum(exp(x)))``."""

def logaddexp(x: R | Array, y: R | Array) -> R:
    """Logarithm of the sum of exponentials: ``log(exp(x) + exp(y))``, without overflow. Shapes broadcast."""

def logcumsumexp(x: R | Array, *, axis: int = -1) -> R:
    """Logarithm of the cumulative sum of exponentials along `axis`: ``log(cumsum(exp(x)))``, without overflow."""

def logdet(x: R | Array) -> R:
    """Logarithm of each determinant: ``log(det(x))``. It is -inf where the determinant is 0, and NaN where it is negative."""

def logical_and(x: R | Array, y: R | Array) -> R:
    """Logical and of two bools: ``out = x and y``, element by element."""

def logical_not(x: R | Array) -> R:
    """Negation of a bool: ``out = not x``, element by element."""

def logical_or(x: R | Array, y: R | Array) -> R:
    """Logical or of two bools: ``out = x or y``, element by element."""

def logical_xor(x: R | Array, y: R | Array) -> R:
    """Exclusive or of two bools: ``out = x != y``, true where exactly one of them is true."""

def logsigmoid(x: R | Array) -> R:
    """Logarithm of the sigmoid: ``out = log(1 / (1 + exp(-x)))``, without overflow for large positive or negative x."""

def logsumexp(x: R | Array, *, axes: Sequence[int] | None = None, keepdims: bool = False) -> R:
    """Logarithm of the sum of exponentials over `axes`: ``log(sum(exp(x)))``, without overflow."""

def lookup_table(w: R | Array, ids: R | Array, *, padding_idx: int | None = None, is_sparse: bool = False) -> R:
    """`embedding` of ids [..., 1]: their last axis becomes that of the rows."""

def lp_normalize(x: R | Array, *, p: float = 2.0, axis: int = -1) -> R:
    """x divided by its p-norm along `axis`: ``x / sum(|x| ** p) ** (1 / p)``. Zeros stay zeros, with gradient 0."""

def lp_pool(x: R | Array, *, p: float = 2.0, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False) -> R:
    """p-norm of each window of x [n, c, *spatial]: ``sum(|x| ** p) ** (1 / p)``. A window of zeros has gradient 0."""

def lrn(x: R | Array, *, n: int = 5, k: float = 1.0, alpha: float = 0.0001, beta: float = 0.75) -> R:
    """Local response normalization (Krizhevsky et al. 2012) of x [n, c, *spatial]."""

def lstm(x: R | Array, h: R | Array, c: R | Array, weight_x: R | Array, weight_h: R | Array, bias_x: R | Array | None = None, bias_h: R | Array | None = None, *, reverse: bool = False) -> _OutHOutCOut[R]:
    """`lstm_cell` over x [time, batch, input]: h of each time [time, batch, hidden], and the last h and c."""

def lstm_cell(x: R | Array, h: R | Array, c: R | Array, weight_x: R | Array, weight_h: R | Array, bias_x: R | Array | None = None, bias_h: R | Array | None = None) -> _HOutCOut[R]:
    """One step of a long short-term memory: the new h and c, both [n, hidden]."""

def lstsq(x: R | Array, y: R | Array, *, rcond: float | None = None) -> R:
    """Least-squares solution z of ``x @ z = y``: of all z with the smallest ``norm(x @ z - y)`` the one of the smallest norm. x is [..., m, n] and y [..., m, k], or a vector [m]."""

def lu(x: R | Array) -> _LowerUpperRows[R]:
    """LU decomposition with partial pivoting of square matrices: ``x[rows] = lower @ upper``."""

def lu_solve(lower: R | Array, upper: R | Array, rows: R | Array, y: R | Array) -> R:
    """Solution z of ``x @ z = y`` from the factors that `lu` gives for x; y is [..., n, k], or a vector [n]."""

def margin_rank_loss(label: R | Array, left: R | Array, right: R | Array, *, margin: float = 0.0, reduction: Literal['none', 'mean', 'sum'] = 'none') -> R:
    """Ranking loss with a margin: ``max(0, -label * (left - right) + margin)``."""

def mask_gradient(condition: R | Array, x: R | Array) -> R:
    """x broadcast to the shape of `condition` (bool). Gradient flows back only where the condition holds."""

def masked_fill(x: R | Array, mask: R | Array, value: R | Array | None = None, *, fill: Number = 0.0) -> R:
    """``out = value`` where `mask` is true, else x. `value` is a single element; without it the number `fill` is used."""

def masked_scatter(x: R | Array, mask: R | Array, source: R | Array) -> R:
    """x with its elements where `mask` is true replaced by the elements of `source`, both in row-major order."""

def masked_select(x: R | Array, mask: R | Array) -> R:
    """The elements of x where `mask` is true, as a vector in row-major order; shapes broadcast."""

def matmul(x: R | Array, y: R | Array, *, transpose_x: bool = False, transpose_y: bool = False) -> R:
    """Matrix product: ``out[i, j] = sum over k of x[i, k] * y[k, j]``. The axes before the last two are a batch and broadcast."""

def matrix_exp(x: R | Array) -> R:
    """Exponential of each square matrix: ``1 + x + x @ x / 2 + x @ x @ x / 6 + ...`` (Al-Mohy and Higham 2009)."""

def matrix_power(x: R | Array, *, n: int) -> R:
    """Power of a square matrix: ``x @ x @ ... @ x``, `n` times."""

def max_pool(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False) -> _OutIndex[R]:
    """Maximum over windows of all spatial axes of x, and its position: see `max_pool2d`."""

def max_pool1d(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False) -> _OutIndex[R]:
    """Maximum over windows of one spatial axis, x [n, c, length]: see `max_pool2d`."""

def max_pool2d(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0, 0], dilations: Sequence[int] = [1], ceil_mode: bool = False) -> _OutIndex[R]:
    """Maximum over each window of x [n, c, h, w]: ``out[..., i, j] = max(x[..., i s : i s + k, j s : j s + k])``."""

def max_pool3d(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False) -> _OutIndex[R]:
    """Maximum over windows of three spatial axes, x [n, c, depth, h, w]: see `max_pool2d`."""

def max_sequence_len(lengths: R | Array) -> R:
    """``max(lengths)``: the length of the longest sequence; 0 without sequences."""

def max_unpool(x: R | Array, index: R | Array, *, output_size: Sequence[int]) -> R:
    """Zeros [n, c, *output_size] with x at the positions in `index`, which come from a maximum pooling."""

def maximum(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Larger of two values: ``out = max(x, y)``. NaN if either is NaN. Shapes broadcast."""

def maxout(x: R | Array, *, groups: int, axis: int = 1) -> R:
    """Maximum of each group of `groups` consecutive elements along `axis` (Goodfellow et al. 2013)."""

def mean(x: R | Array) -> R:
    """Mean of all elements: ``sum(x) / n``, a 0-d array; 0 if there are none."""

def median(x: R | Array, *, axis: int = -1, keepdims: bool = False) -> R:
    """``sort(x)[n // 2]``, the middle element along `axis`; for an even number of elements the mean of the middle two."""

def mel_weight_matrix(*, num_mel_bins: int, dft_length: int, sample_rate: int, lower_edge: float = 0.0, upper_edge: float, dtype: Dtype = 'float32') -> Any:
    """Matrix [dft_length / 2 + 1, num_mel_bins] of triangular filters, equally spaced on the mel scale."""

def merge_axes(x: R | Array, *, start: int, end: int) -> R:
    """x with its axes from `start` to ``end - 1`` merged into one, in row-major order. Any sizes may be open."""

def merge_by_mask(mask: R | Array, true: R | Array, false: R | Array) -> R:
    """The inverse of `split_by_mask`: rows of `true`, in order, where `mask` [n] is true, and rows of `false` elsewhere."""

def merge_rows(x: R | Array, ids: R | Array, like: R | Array, *, padding_idx: int | None = None) -> _RowsValues[R]:
    """The rows of a table like `like` that `ids` names, each once and ascending, and for each the sum of its x."""

def merge_rows_padded(x: R | Array, ids: R | Array, like: R | Array, kept: R | Array | None = None, *, padding_idx: int | None = None) -> _RowsValuesCount[R]:
    """`merge_rows` with results of known size: as many rows as there may be, and `count`, how many there are."""

def meshgrid(*x: R | Array | Sequence[R | Array]) -> tuple[R, ...]:
    """Coordinate grids of vectors of sizes n1, n2, ...: array i has shape [n1, n2, ...] and holds vector i along axis i."""

def minimum(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Smaller of two values: ``out = min(x, y)``. NaN if either is NaN. Shapes broadcast."""

def mish(x: R | Array) -> R:
    """Mish activation: ``out = x * tanh(log(1 + exp(x)))`` (Misra 2020)."""

def mm(x: R | Array, y: R | Array) -> R:
    """Product of two matrices [m, k] and [k, n]: ``out[i, j] = sum over k of x[i, k] * y[k, j]``."""

def mod(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Remainder with the sign of y: ``out = x - floor(x / y) * y``."""

def mode(x: R | Array, *, axis: int = -1, keepdims: bool = False) -> _OutIndex[R]:
    """The most frequent element along `axis`, ``count(out) >= count(x[i])``, and its first position in x."""

def mode_position(x: R | Array, *, axis: int = -1) -> R:
    """The position of the most frequent element along `axis`: int64, and `axis` becomes 1."""

def momentum(parameter: R | Array, gradient: R | Array, velocity: R | Array, *, learning_rate: float = 0.01, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutVelocityOut[R]:
    """``velocity = momentum * velocity + gradient``; the parameter moves by ``-learning_rate * velocity``."""

def moving_average(average: R | Array, x: R | Array, *, decay: float = 0.999) -> R:
    """``decay * average + (1 - decay) * x``: an exponential moving average, for example of parameters."""

def mse_loss(x: R | Array, y: R | Array, *, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Squared error: ``(x - y) ** 2``, by default averaged over all elements."""

def mul(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Elementwise product of two arrays: ``out = x * y``. Shapes broadcast."""

def mul_flattened(x: R | Array, y: R | Array, *, x_num_col_dims: int = 1, y_num_col_dims: int = 1) -> R:
    """Matrix product ``x @ y`` of two arrays flattened to matrices: the first `num_col_dims` axes are rows, the others columns."""

def multi_dot(*x: R | Array | Sequence[R | Array]) -> R:
    """Product of two or more matrices ``x[0] @ x[1] @ ...`` in the order that needs the fewest operations."""

def multi_label_margin_loss(x: R | Array, label: R | Array, *, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Hinge loss of sets of classes: the sum over classes j of the set and i outside of it of ``max(0, 1 - x[j] + x[i])``, divided by the number of classes."""

def multi_label_soft_margin_loss(x: R | Array, label: R | Array, weight: R | Array | None = None, *, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Mean over the last axis, the classes, of the binary cross-entropy of logits: ``log(1 + exp(x)) - label * x``."""

def multi_margin_loss(x: R | Array, label: R | Array, weight: R | Array | None = None, *, p: int = 1, margin: float = 1.0, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Hinge loss of classes: the sum over all other classes j of ``max(0, margin - x[label] + x[j]) ** p``, divided by the number of classes. x is [n, classes] and label [n]. A label outside the classes is an error of the run (index_out_of_range)."""

def multinomial(p: R | Array, key: R | Array | None = None, *, num_samples: int = 1, replacement: bool = False, seed: int = 0, stream: int = 0) -> R:
    """Positions, int64 [..., num_samples], drawn with probabilities proportional to p [..., n]."""

def mv(x: R | Array, y: R | Array) -> R:
    """Product of a matrix [m, n] and a vector [n]: ``out[i] = sum over j of x[i, j] * y[j]``."""

def nadam(parameter: R | Array, gradient: R | Array, first: R | Array, second: R | Array, step: R | Array, *, learning_rate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutFirstOutSecondOutStepOut[R]:
    """`adam` with Nesterov momentum (Dozat 2016, with a constant beta1)."""

def nanquantile(x: R | Array, *, q: Sequence[float] = [0.5], axis: int | None = None, keepdims: bool = False, interpolation: Literal['linear', 'lower', 'higher', 'midpoint', 'nearest'] = 'linear') -> R:
    """`quantile` of the elements that are not NaN. It is NaN if all elements are NaN."""

def natural_exp_decay(step: R | Array, *, learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> R:
    """``learning_rate * exp(-decay_rate * step / decay_steps)``."""

def nce(x: R | Array, label: R | Array, weight: R | Array, bias: R | Array | None = None, samples: R | Array | None = None, key: R | Array | None = None, *, num_neg_samples: int = 10, sampler: Literal['uniform', 'log_uniform'] = 'uniform', seed: int = 0, stream: int = 0) -> R:
    """Noise-contrastive estimation (Gutmann and Hyvarinen 2010; Mnih and Teh 2012): the label against randomly drawn classes."""

def neg(x: R | Array) -> R:
    """Negation: ``out = -x``."""

def next_key(key: R | Array) -> R:
    """The key for the next trip of a loop."""

def nll_loss(x: R | Array, label: R | Array, weight: R | Array | None = None, *, ignore_index: int = -100, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Negative log-likelihood: ``-weight[label] * x[label]`` for log-probabilities x."""

def noam_decay(step: R | Array, *, d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> R:
    """``learning_rate * d_model ** -0.5 * min(n ** -0.5, n * warmup_steps ** -1.5)``, where n = step + 1."""

def non_max_suppression(boxes: R | Array, scores: R | Array, *, max_output: int = 2147483647, iou_threshold: float = 0.0, score_threshold: Number = '-inf', box_format: Literal['corners', 'center'] = 'corners') -> R:
    """Greedy suppression of boxes that overlap a box with a higher score: int64 [selected, 3], each row (batch, class, box)."""

def nonzero(x: R | Array) -> R:
    """The positions of all elements that are not 0 or false, in row-major order: int64 [count, rank]."""

def norm(x: R | Array, *, p: Number = 2.0, axes: Sequence[int] | None = None, keepdims: bool = False) -> R:
    """p-norm over `axes`: ``sum(|x| ** p) ** (1 / p)``."""

def not_equal(x: R | Array, y: R | Array) -> R:
    """Whether x differs from y: ``x != y``, as bool."""

def npair_loss(anchor: R | Array, positive: R | Array, label: R | Array, *, l2_reg: float = 0.002) -> R:
    """N-pair loss (Sohn 2016): softmax cross-entropy over ``anchor @ positive.T``, averaged, with a norm penalty."""

def numel(x: R | Array) -> R:
    """Number of elements of x, as a 0-d int64 array. Another name for `size`."""

def one_cycle(step: R | Array, *, learning_rate: float, total_steps: int, warmup: float = 0.3, start_factor: float = 0.04, end_factor: float = 4e-06) -> R:
    """Half a cosine up to `learning_rate` during the fraction `warmup` of `total_steps` steps, then half a cosine down."""

def one_hot(x: R | Array, *, depth: int, dtype: Dtype = 'float32') -> R:
    """``out[..., k] = 1`` where ``k == x[...]``, else 0. An index outside 0 to depth - 1 is an error."""

def ones_like(x: R | Array) -> R:
    """Ones with the shape and dtype of x: ``out[...] = 1``."""

def outer(x: R | Array, y: R | Array) -> R:
    """Outer product of the elements of x and y in row-major order: ``out[i, j] = x[i] * y[j]``."""

def pad(x: R | Array, *, paddings: Sequence[int], value: Number = 0.0, mode: Literal['constant', 'reflect', 'replicate', 'circular'] = 'constant') -> R:
    """x with a border around it: ``out[before + i] = x[i]`` along each axis."""

def pad_constant(x: R | Array, *, paddings: Sequence[int], value: Number = 0.0) -> R:
    """x with a border of `value`: ``out[before + i] = x[i]`` along each axis."""

def padded_like(lengths: R | Array, *, shape: Sequence[int], width: int = -1, value: Number = 0.0, dtype: Dtype = 'float32') -> R:
    """An array [n, width, *shape] full of `value`, for n lengths. A width of -1 stands for the largest length."""

def padded_rows(lengths: R | Array, x: R | Array, *, width: int = -1) -> R:
    """``out[i, t]`` is the position in x of row t of sequence i, or the number of rows of x if there is no such row."""

def pairwise_distance(x: R | Array, y: R | Array, *, p: Number = 2.0, epsilon: float = 1e-06, keepdims: bool = False) -> R:
    """Distance of each pair of rows: the p-norm of ``x - y + epsilon`` along the last axis. Other axes broadcast."""

def pick(x: R | Array, index: R | Array) -> R:
    """Elements of each image of x [n, c, *spatial] at the row-major positions in `index`."""

def piecewise_decay(step: R | Array, *, boundaries: Sequence[int], values: Sequence[float]) -> R:
    """``values[i]``, where i is the number of `boundaries` less than or equal to the step."""

def pinv(x: R | Array, *, rcond: float | None = None) -> R:
    """Moore-Penrose pseudo-inverse of each matrix: ``x @ out @ x = x``, of shape [..., n, m] for x [..., m, n]."""

def pixel_shuffle(x: R | Array, *, factor: int) -> R:
    """[n, c f f, h, w] rearranged to [n, c, h f, w f], where f is `factor`."""

def pixel_unshuffle(x: R | Array, *, factor: int) -> R:
    """[n, c, h f, w f] rearranged to [n, c f f, h, w]: the inverse of `pixel_shuffle`."""

def poisson_nll_loss(x: R | Array, label: R | Array, *, log_input: bool = True, full: bool = False, epsilon: float = 1e-08, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Negative log-likelihood of Poisson counts: ``exp(x) - label * x``, where x is the logarithm of the expected value."""

def polygamma(x: R | Array, *, order: int = 1) -> R:
    """Derivative of order `order` + 1 of ``log(gamma(x))``. `order` is 0 to 20."""

def polynomial_decay(step: R | Array, *, learning_rate: float, decay_steps: int, end_learning_rate: float = 0.0001, power: float = 1.0, cycle: bool = False) -> R:
    """``(learning_rate - end) * (1 - step / decay_steps) ** power + end``, with end = `end_learning_rate`."""

def positions_along(index: R | Array, x: R | Array, *, axis: int = -1) -> R:
    """The position in x, in row-major order, of ``x[..., index[...], ...]`` for each element of `index`: int64."""

def positions_nd(index: R | Array, x: R | Array) -> R:
    """The position, in row-major order, of the slice of x that each vector along the last axis of `index` names."""

def pow(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Power of two floating-point arrays: ``out = x ** y``. Shapes broadcast."""

def prelu(x: R | Array, alpha: R | Array, *, mode: Literal['all', 'channel', 'element'] = 'all') -> R:
    """ReLU with a learned negative slope (He et al. 2015): ``out = x`` where x > 0, else ``alpha * x``."""

def print(x: R | Array, *, message: str = '', summarize: int = 20, first_n: int = -1) -> R:
    """``out = x``. The answer of the run reports the first `summarize` elements of x under `messages`."""

def product_of_others(x: R | Array, *, axes: Sequence[int] | None = None) -> R:
    """For each element, the product of all other elements over `axes`: ``prod(x) / x[i]``, without a division."""

def put_along_axis(x: R | Array, index: R | Array, values: R | Array, *, axis: int = -1, reduce: Literal['assign', 'add', 'mul', 'max', 'min'] = 'assign') -> R:
    """x with ``values[..., i, ...]`` written at ``x[..., index[..., i, ...], ...]``, or combined with the old one."""

def qr(x: R | Array) -> _QR[R]:
    """QR decomposition ``Q @ R = x``: orthonormal columns Q [..., m, k] and upper triangular R [..., k, n] of x [..., m, n]."""

def qr_factor(x: R | Array) -> _QR[R]:
    """Orthonormal columns Q and upper triangular R with ``Q @ R = x``, for matrices with at least as many rows as columns."""

def quantile(x: R | Array, *, q: Sequence[float] = [0.5], axis: int | None = None, keepdims: bool = False, interpolation: Literal['linear', 'lower', 'higher', 'midpoint', 'nearest'] = 'linear') -> R:
    """Quantiles along `axis` (by default of all elements): ``sort(x)[q * (n - 1)]``, one for each q, stacked along a new first axis."""

def radam(parameter: R | Array, gradient: R | Array, first: R | Array, second: R | Array, step: R | Array, *, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutFirstOutSecondOutStepOut[R]:
    """`adam` that moves by the mean alone in the first steps, in which the variance of the mean square is large."""

def randint(key: R | Array | None = None, *, shape: Sequence[int], low: int = 0, high: int, dtype: Literal['int32', 'int64'] = 'int64', seed: int = 0, stream: int = 0) -> R:
    """Integers from `low` to `high` - 1, all equally likely."""

def randint_like(x: R | Array, key: R | Array | None = None, *, low: int = 0, high: int, dtype: Literal['int32', 'int64'] | None = None, seed: int = 0, stream: int = 0) -> R:
    """Integers from `low` to `high` - 1, all equally likely. The shape is that of x, and so is the dtype unless `dtype` is given."""

def randperm(key: R | Array | None = None, *, n: int, dtype: Literal['int32', 'int64'] = 'int64', seed: int = 0, stream: int = 0) -> R:
    """The integers 0 to `n` - 1 in a random order."""

def range(*, start: float = 0.0, end: float, step: float = 1.0, dtype: Dtype = 'int64') -> Any:
    """Vector of equally spaced numbers ``start, start + step, start + 2 step, ...``, excluding `end`."""

def rank(x: R | Array) -> R:
    """Number of axes of x, as a 0-d int64 array."""

def rank_loss(label: R | Array, left: R | Array, right: R | Array) -> R:
    """Pairwise ranking loss of RankNet (Burges et al. 2005): ``log(1 + exp(left - right)) - label * (left - right)``."""

def rank_table(lengths: R | Array) -> R:
    """The numbers of the sequences, int64, from the longest to the shortest; equally long ones keep their order."""

def read_rows(values: R | Array, rows: R | Array, ids: R | Array, like: R | Array) -> R:
    """Look up `ids` in a table like `like` whose rows number `rows` are `values`, and whose other rows are zero."""

def real_dft(x: R | Array, *, axis: int = -1, norm: Literal['backward', 'ortho', 'forward'] = 'backward', inner: float = 1.0) -> R:
    """Discrete Fourier transform along `axis` of real numbers, without a change of length: see `rfft`."""

def real_from_dft(x: R | Array, *, n: int, axis: int = -2, norm: Literal['backward', 'ortho', 'forward'] = 'backward', inner: float = 1.0) -> R:
    """`n` real numbers from all of their n / 2 + 1 frequencies x [..., n / 2 + 1, ..., 2]: see `irfft`."""

def reciprocal(x: R | Array) -> R:
    """Reciprocal: ``out = 1 / x``. At 0 the result is inf and the gradient -inf."""

def reduce_all(x: R | Array, *, axes: Sequence[int] | None = None, keepdims: bool = False) -> R:
    """Whether all elements over `axes` are true: ``x[0] and x[1] and ...``. An empty set gives true."""

def reduce_any(x: R | Array, *, axes: Sequence[int] | None = None, keepdims: bool = False) -> R:
    """Whether any element over `axes` is true: ``x[0] or x[1] or ...``. An empty set gives false."""

def reduce_max(x: R | Array, *, axes: Sequence[int] | None = None, keepdims: bool = False, tie: Literal['even', 'first', 'all'] = 'even', empty: Literal['error', 'identity'] = 'error') -> R:
    """Maximum over `axes`: ``max(x[0], x[1], ...)``."""

def reduce_mean(x: R | Array, *, axes: Sequence[int] | None = None, keepdims: bool = False) -> R:
    """Mean over `axes`: ``sum(x) / n``. An empty set gives 0. 16-bit floats are accumulated in float32."""

def reduce_min(x: R | Array, *, axes: Sequence[int] | None = None, keepdims: bool = False, tie: Literal['even', 'first', 'all'] = 'even', empty: Literal['error', 'identity'] = 'error') -> R:
    """Minimum over `axes`: ``min(x[0], x[1], ...)``. `tie` works as in `reduce_max`."""

def reduce_prod(x: R | Array, *, axes: Sequence[int] | None = None, keepdims: bool = False) -> R:
    """Product over `axes`: ``x[0] * x[1] * ...``."""

def reduce_sum(x: R | Array, *, axes: Sequence[int] | None = None, keepdims: bool = False) -> R:
    """Sum over `axes`: ``x[0] + x[1] + ...``. 16-bit floats are accumulated in float32."""

def relu(x: R | Array) -> R:
    """Rectified linear unit: ``out = max(x, 0)``. The gradient at 0 is 0."""

def relu6(x: R | Array) -> R:
    """ReLU capped at 6: ``out = min(max(x, 0), 6)``. The gradient at 0 and at 6 is 0."""

def reorder_by_rank(x: R | Array, lengths: R | Array) -> R:
    """``out = x[rank_table(lengths)]``: the rows of x, one for each sequence, in the order of `rank_table`."""

def repeat(x: R | Array, counts: R | Array | None = None, *, repeats: int = 1, axis: int = 0) -> R:
    """Each slice of x along `axis`, `repeats` times in a row. With `counts`, slice i occurs `counts[i]` times."""

def repeat_positions(counts: R | Array, x: R | Array | None = None, *, axis: int = 0) -> R:
    """The integers 0, 1, 2, ..., where i occurs `counts[i]` times in a row, as int64."""

def resample_taps(*, size: int, out: int, scale: float, start: float = 0.0, end: float = 1.0, mode: Literal['nearest', 'linear', 'cubic'] = 'nearest', coordinates: Literal['half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric', 'tf_half_pixel_for_nn', 'tf_crop_and_resize'] = 'half_pixel', nearest_mode: Literal['round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'] = 'round_prefer_floor', cubic_coefficient: float = -0.75, exclude_outside: bool = False, antialias: bool = False, dtype: Dtype = 'float32') -> _IndexWeightInside[Any]:
    """Positions and weights [taps, out] of the elements that `resize` reads along one axis of `size` elements."""

def resample_weights(*, size: int, out: int, scale: float, start: float = 0.0, end: float = 1.0, mode: Literal['nearest', 'linear', 'cubic'] = 'nearest', coordinates: Literal['half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric', 'tf_half_pixel_for_nn', 'tf_crop_and_resize'] = 'half_pixel', nearest_mode: Literal['round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'] = 'round_prefer_floor', cubic_coefficient: float = -0.75, exclude_outside: bool = False, antialias: bool = False, dtype: Dtype = 'float32') -> _WeightInside[Any]:
    """Matrix [size, out] that resizes an axis of `size` elements to `out` elements, and `inside` as in `resample_taps`."""

def reshape(x: R | Array, *, shape: Sequence[int]) -> R:
    """x with another shape; the elements keep their row-major order. One size may be -1 and is computed from the others."""

def reshape_as(x: R | Array, like: R | Array) -> R:
    """x reshaped to the shape of `like`, which gives only its shape."""

def resize(x: R | Array, *, sizes: Sequence[int] | None = None, scales: Sequence[float] | None = None, axes: Sequence[int] | None = None, mode: Literal['nearest', 'linear', 'cubic'] = 'nearest', coordinates: Literal['half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric', 'tf_half_pixel_for_nn', 'tf_crop_and_resize'] = 'half_pixel', nearest_mode: Literal['round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'] = 'round_prefer_floor', cubic_coefficient: float = -0.75, exclude_outside: bool = False, antialias: bool = False, roi: Sequence[float] | None = None, extrapolation_value: float = 0.0, keep_aspect_ratio: Literal['stretch', 'not_larger', 'not_smaller'] = 'stretch') -> R:
    """x with `axes` (by default all) resized to `sizes`, or by `scales`: ONNX's Resize."""

def resize_tap(*, size: int, out: int, tap: int, mode: Literal['nearest', 'linear', 'cubic'], align_corners: bool = False, align_mode: int = 0, dtype: Dtype = 'float32') -> _IndexWeight[Any]:
    """Position and weight of tap number `tap` of each of `out` output elements: see `interpolate`."""

def resize_weights(*, size: int, out: int, mode: Literal['nearest', 'linear', 'cubic'], align_corners: bool = False, align_mode: int = 0, dtype: Dtype = 'float32') -> Any:
    """Matrix [size, out] that resizes an axis of `size` elements to `out` elements: see `interpolate`."""

def reverse_sequence(x: R | Array, lengths: R | Array, *, time_axis: int = 1, batch_axis: int = 0) -> R:
    """The first ``lengths[b]`` elements along `time_axis` of each element b of the batch reversed; the others stay."""

def rfft(x: R | Array, *, n: int | None = None, axis: int = -1, norm: Literal['backward', 'ortho', 'forward'] = 'backward') -> R:
    """Discrete Fourier transform along `axis` of real numbers: the first frequencies as pairs [..., n / 2 + 1, ..., 2]. The others are their conjugates."""

def rms_norm(x: R | Array, scale: R | Array | None = None, *, begin_axis: int = -1, epsilon: float = 1e-06) -> R:
    """Root mean square normalization (Zhang and Sennrich 2019): ``x / sqrt(mean(x ** 2) + epsilon) * scale``."""

def rmsprop(parameter: R | Array, gradient: R | Array, mean_square: R | Array, mean: R | Array, velocity: R | Array, *, learning_rate: float = 0.01, rho: float = 0.95, epsilon: float = 1e-06, momentum: float = 0.0, centered: bool = False, weight_decay: float = 0.0, l1_decay: float = 0.0) -> _ParameterOutMeanSquareOutMeanOutVelocityOut[R]:
    """``velocity = momentum * velocity + learning_rate * gradient / sqrt(mean_square + epsilon)`` (Hinton 2012)."""

def rnn(x: R | Array, h: R | Array, weight_x: R | Array, weight_h: R | Array, bias_x: R | Array | None = None, bias_h: R | Array | None = None, *, reverse: bool = False) -> _OutHOut[R]:
    """`rnn_cell` over x [time, batch, input]: h of each time [time, batch, hidden], and the last h."""

def rnn_cell(x: R | Array, h: R | Array, weight_x: R | Array, weight_h: R | Array, bias_x: R | Array | None = None, bias_h: R | Array | None = None) -> R:
    """``out = tanh(x @ weight_x.T + bias_x + h @ weight_h.T + bias_h)``, for x [n, input] and h [n, hidden]."""

def roi_align(x: R | Array, boxes: R | Array, image: R | Array, *, output_size: Sequence[int], spatial_scale: float = 1.0, sampling_ratio: int = 2, aligned: bool = True, mode: Literal['avg', 'max'] = 'avg') -> R:
    """Region pooling with bilinear sampling (He et al. 2017): each box is divided into bins, and each bin is a mean of samples."""

def roi_fractions(extent: R | Array, *, count: int) -> _FractionCounted[R]:
    """For `roi_align`: the places of the points of `count` bins in an extent of 1, [r, count, points]."""

def roi_pool(x: R | Array, boxes: R | Array, image: R | Array, *, output_size: Sequence[int], spatial_scale: float = 1.0) -> R:
    """Region pooling by maximum (Girshick 2015): each box is divided into bins, and each bin gives its largest element."""

def roi_positions(x: R | Array, boxes: R | Array, image: R | Array, *, output_size: Sequence[int], spatial_scale: float = 1.0) -> R:
    """For `roi_pool`: row-major position in x of the largest element of each bin, or -1 for an empty bin."""

def roll(x: R | Array, *, shifts: Sequence[int], axes: Sequence[int]) -> R:
    """x moved cyclically by `shifts[i]` along `axes[i]`: ``out[i] = x[(i - shift) mod n]``."""

def roll_positions(x: R | Array, *, shift: int, axis: int = 0) -> R:
    """The position along `axis` of x from which `roll` takes each slice, as int64."""

def rotary_embedding(x: R | Array, positions: R | Array, *, base: float = 10000.0) -> R:
    """Rotary position embedding (Su et al. 2021): each pair (i, i + d / 2) of the last axis of x [..., l, d] is rotated."""

def round(x: R | Array, *, straight_through: bool = False) -> R:
    """Nearest whole number: ``|out - x| <= 1 / 2``. Halves are rounded to the even number."""

def row_conv(x: R | Array, filter: R | Array) -> R:
    """Lookahead convolution of Deep Speech 2 (Amodei et al. 2016): ``out[t] = sum over k of filter[k] * x[t + k]``."""

def rsqrt(x: R | Array) -> R:
    """Reciprocal of the square root: ``out = 1 / sqrt(x)``. At 0 the result is inf."""

def running_argmax(x: R | Array, *, axis: int = -1, sign: Literal['max', 'min'] = 'max') -> R:
    """Position of the largest (or smallest) element so far along `axis`, as int64. Ties give the first position."""

def scale(x: R | Array, *, scale: float = 1.0, bias: float = 0.0) -> R:
    """Linear function with two constants: ``out = scale * x + bias``."""

def scaled_dot_product_attention(query: R | Array, key: R | Array, value: R | Array, mask: R | Array | None = None, *, causal: bool = False, scale: float | None = None, softcap: float = 0.0) -> R:
    """Scaled dot-product attention: ``softmax(query @ key.T * scale + mask) @ value`` (Vaswani et al. 2017)."""

def scatter(x: R | Array, index: R | Array, updates: R | Array, *, overwrite: bool = True) -> R:
    """x with slice ``index[i]`` along the first axis replaced by ``updates[i]``."""

def scatter_add_like(x: R | Array, index: R | Array, like: R | Array, *, axis: int = 0) -> R:
    """Zeros shaped like `like`, with x added at the positions that `gather(like, index, axis)` reads."""

def scatter_nd(index: R | Array, updates: R | Array, *, shape: Sequence[int]) -> R:
    """Zeros of `shape` with ``updates[...]`` added at ``out[index[..., 0], index[..., 1], ...]``."""

def scatter_nd_add(x: R | Array, index: R | Array, updates: R | Array) -> R:
    """x with ``updates[...]`` added at ``x[index[..., 0], index[..., 1], ...]``."""

def scatter_nd_update(x: R | Array, index: R | Array, updates: R | Array, *, reduce: Literal['assign', 'add', 'mul', 'max', 'min'] = 'assign') -> R:
    """x with ``updates[...]`` written at ``x[index[..., 0], index[..., 1], ...]``, or combined with the slice there."""

def searchsorted(sorted_sequence: R | Array, values: R | Array, *, right: bool = False) -> R:
    """For each value the position, int64, at which inserting it keeps the vector `sorted_sequence` ascending."""

def segment_max(x: R | Array, ids: R | Array, like: R | Array | None = None, *, num_segments: int = -1) -> R:
    """Maximum of the rows of each segment, element by element, with segments as in `segment_sum`."""

def segment_mean(x: R | Array, ids: R | Array, like: R | Array | None = None, *, num_segments: int = -1) -> R:
    """Mean of the rows of each segment, with segments as in `segment_sum`. A segment without rows gives 0."""

def segment_min(x: R | Array, ids: R | Array, like: R | Array | None = None, *, num_segments: int = -1) -> R:
    """Minimum of the rows of each segment, element by element, with segments as in `segment_sum`."""

def segment_prod(x: R | Array, ids: R | Array, like: R | Array | None = None, *, num_segments: int = -1) -> R:
    """Product of the rows of each segment, element by element, with segments as in `segment_sum`."""

def segment_sum(x: R | Array, ids: R | Array, like: R | Array | None = None, *, num_segments: int = -1) -> R:
    """Sum of the rows of each segment: ``out[k]`` is the sum of the rows of x with id k."""

def select_input(index: R | Array, *x: R | Array | Sequence[R | Array]) -> R:
    """``out = x[index]``: one of several values, whose shapes may differ. Only the selected one gets the gradient."""

def select_output(index: R | Array, x: R | Array, *like: R | Array | Sequence[R | Array]) -> tuple[R, ...]:
    """One value for each of `like`: ``out[index] = x``, and zeros shaped like the others."""

def selu(x: R | Array) -> R:
    """Scaled exponential linear unit: ``out = scale * elu(x, alpha)`` with the constants of Klambauer et al. 2017."""

def sequence_concat(x: R | Array, lengths: R | Array, y: R | Array, more: R | Array) -> _OutLengthsOut[R]:
    """Each sequence of x followed by the same sequence of y, and the new lengths, ``lengths + more``."""

def sequence_conv(x: R | Array, lengths: R | Array, filter: R | Array, *, context_length: int = 3, context_start: int | None = None) -> R:
    """``out[t] = concat(x[t + start], ..., x[t + start + context_length - 1]) @ filter`` within each sequence."""

def sequence_expand(x: R | Array, lengths: R | Array, x_lengths: R | Array | None = None) -> R:
    """Row i of x, or with `x_lengths` sequence i of x, ``lengths[i]`` times. Gradients of copies add up."""

def sequence_ids(lengths: R | Array, x: R | Array) -> R:
    """For each row of x the number of its sequence: int64."""

def sequence_mask(lengths: R | Array, *, maxlen: int = -1, dtype: Dtype = 'bool') -> R:
    """``out[i, t] = t < lengths[i]``: [n, maxlen]; a `maxlen` of -1 stands for the largest length."""

def sequence_pad(x: R | Array, lengths: R | Array, value: R | Array | None = None, *, pad_value: Number = 0.0, padded_length: int = -1) -> R:
    """``out[i, t]`` is row t of sequence i: [n, padded_length, ...]."""

def sequence_pool(x: R | Array, lengths: R | Array, *, pool_type: Literal['sum', 'mean', 'sqrt', 'max', 'first', 'last'] = 'sum', pad_value: Number = 0.0) -> R:
    """One row for each sequence: the sum, mean, ``sum / sqrt(length)``, maximum, first or last of its rows."""

def sequence_reset_lengths(x: R | Array, lengths: R | Array) -> _OutLengthsOut[R]:
    """``out = x`` and the new `lengths`, after a check that they add up to the rows of x."""

def sequence_reverse(x: R | Array, lengths: R | Array) -> R:
    """The rows of each sequence in reverse order."""

def sequence_rows(lengths: R | Array, x: R | Array, *, order: Literal['first', 'last', 'reverse']) -> R:
    """The positions of the first or last row of each sequence (0 for an empty one), or of all rows, in reverse."""

def sequence_slice(x: R | Array, lengths: R | Array, offsets: R | Array, counts: R | Array) -> _OutLengthsOut[R]:
    """``counts[i]`` rows of each sequence, starting at ``offsets[i]``, and the new lengths, which equal `counts`."""

def sequence_slice_rows(lengths: R | Array, offsets: R | Array, counts: R | Array, x: R | Array) -> _RowsLengths[R]:
    """The positions of rows ``offsets[i]`` to ``offsets[i] + counts[i] - 1`` of each sequence, and the new lengths."""

def sequence_slots(lengths: R | Array, x: R | Array, *, width: int = -1) -> R:
    """For each row of x its position in the padded batch, ``sequence * width + step``."""

def sequence_softmax(x: R | Array, lengths: R | Array) -> R:
    """``exp(x) / sum(exp(x))`` over the rows of each sequence, column by column."""

def sequence_to_array(x: R | Array, lengths: R | Array) -> R:
    """A tensor array: element t has row t of each sequence that is long enough, in the order of `rank_table`."""

def sequence_unpad(x: R | Array, lengths: R | Array) -> R:
    """The inverse of `sequence_pad`: the rows of x [n, width, ...] that are not padding, sequence after sequence."""

def sgd(parameter: R | Array, gradient: R | Array, *, learning_rate: float = 0.01, weight_decay: float = 0.0, l1_decay: float = 0.0) -> R:
    """``parameter - learning_rate * (gradient + weight_decay * parameter + l1_decay * sign(parameter))``."""

def shape(x: R | Array) -> R:
    """Sizes of the axes of x, as int64 [rank]."""

def shard_index(x: R | Array, *, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1) -> R:
    """Indices local to shard `shard_id`. `index_num` indices are divided into `nshards` equal shards."""

def shift(x: R | Array, *, axis: int = -1, steps: int = 1) -> R:
    """x moved by `steps` positions along `axis`, towards the front if negative. The free positions hold 0."""

def shrink(x: R | Array, *, threshold: float = 0.5, bias: float = 0.0) -> R:
    """Shrinkage: ``out = x - bias`` where ``x > threshold``, ``x + bias`` where ``x < -threshold``, and 0 between."""

def shrink_rnn_memory(x: R | Array, lengths: R | Array, step: R | Array) -> R:
    """The first rows of x, one for each sequence longer than `step`; x is in the order of `rank_table`."""

def sigmoid(x: R | Array) -> R:
    """Logistic sigmoid: ``out = 1 / (1 + exp(-x))``. It stays accurate for large positive and negative x."""

def sigmoid_cross_entropy_with_logits(x: R | Array, label: R | Array, pos_weight: R | Array | None = None, *, ignore_index: float = -100.0, normalize: bool = False, reduction: Literal['none', 'mean', 'sum'] = 'none') -> R:
    """Binary cross-entropy of logits: ``-label * log(sigmoid(x)) - (1 - label) * log(1 - sigmoid(x))``, without overflow."""

def sigmoid_focal_loss(x: R | Array, label: R | Array, *, alpha: float = 0.25, gamma: float = 2.0, reduction: Literal['none', 'mean', 'sum'] = 'none') -> R:
    """Focal loss (Lin et al. 2017): cross-entropy of sigmoid(x), weighted by ``alpha_t * (1 - p_t) ** gamma``."""

def sign(x: R | Array, *, straight_through: bool = False) -> R:
    """Sign of x, as -1, 0 or 1: ``x / |x|``, and 0 at 0."""

def silu(x: R | Array) -> R:
    """Sigmoid linear unit, also called swish: ``out = x * sigmoid(x)``."""

def sin(x: R | Array) -> R:
    """Sine: ``out = sin(x)``, with x in radians."""

def sinh(x: R | Array) -> R:
    """Hyperbolic sine: ``(exp(x) - exp(-x)) / 2``."""

def size(x: R | Array) -> R:
    """Number of elements of x, as a 0-d int64 array."""

def slice(x: R | Array, *, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None) -> R:
    """``x[start:end:step]`` along each of `axes`. Negative and too large positions mean the same as in Python."""

def slice_into(x: R | Array, like: R | Array, *, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None) -> R:
    """Zeros shaped like `like`, with x at the positions that `slice` reads: ``slice(out) = x``."""

def slogdet(x: R | Array) -> _SignLogabs[R]:
    """Sign of each determinant, and ``log(|det(x)|)``. A singular matrix gives 0 and -inf. Where the determinant is NaN, both are NaN."""

def smooth_l1_loss(x: R | Array, label: R | Array, *, delta: float = 1.0, sigma: float | None = None, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Smooth L1 loss (Girshick 2015) with d = x - label: ``d ** 2 / (2 delta)`` for ``|d| <= delta``, else ``|d| - delta / 2``."""

def soft_margin_loss(x: R | Array, label: R | Array, *, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Logistic loss for labels 1 and -1: ``log(1 + exp(-label * x))``, without overflow."""

def softmax(x: R | Array, *, axis: int = -1) -> R:
    """Softmax along `axis`: ``out = exp(x) / sum(exp(x))``."""

def softmax_with_cross_entropy(logits: R | Array, label: R | Array, weight: R | Array | None = None, *, soft_label: bool = False, ignore_index: int = -100, axis: int = -1, reduction: Literal['none', 'mean', 'sum'] = 'none', label_smoothing: float = 0.0) -> R:
    """Cross-entropy of a softmax over logits: ``loss = -sum(label * log_softmax(logits))`` along `axis`, one value per row."""

def softmin(x: R | Array, *, axis: int = -1) -> R:
    """Softmax of the negated input along `axis`: ``softmax(-x)``."""

def softplus(x: R | Array, *, beta: float = 1.0, threshold: float | None = None) -> R:
    """Smooth approximation of ReLU (Dugas et al. 2001): ``out = log(1 + exp(beta * x)) / beta``, without overflow."""

def softshrink(x: R | Array, *, alpha: float = 0.5) -> R:
    """Soft shrinkage: ``sign(x) * max(|x| - alpha, 0)`` moves x towards 0 by `alpha`."""

def softsign(x: R | Array) -> R:
    """Softsign activation: ``out = x / (1 + |x|)``. The function is smooth at 0, and its gradient there is 1."""

def solve(x: R | Array, y: R | Array) -> R:
    """Solution z of the linear system ``x @ z = y``, for square x [..., n, n] and y [..., n, k] or a vector [n]."""

def sort(x: R | Array, *, axis: int = -1, descending: bool = False) -> _OutIndex[R]:
    """``out[0] <= out[1] <= ...``: x in order along `axis`, and the position of each element in x (`argsort`)."""

def space_to_depth(x: R | Array, *, block_size: int) -> R:
    """[n, c, h b, w b] rearranged to [n, b b c, h, w], where b is `block_size`."""

def spectral_norm(weight: R | Array, u: R | Array, v: R | Array, *, axis: int = 0, power_iterations: int = 1, epsilon: float = 1e-12) -> _OutUOutVOut[R]:
    """Spectral normalization (Miyato et al. 2018): ``weight / (u @ weight @ v)``, the largest singular value by power iteration."""

def split(x: R | Array, *, num: int = 0, sections: Sequence[int] | None = None, axis: int = 0) -> tuple[R, ...]:
    """x split along `axis` into `num` equal parts, or into parts of the sizes in `sections`."""

def split_by_mask(x: R | Array, mask: R | Array) -> _TrueFalse[R]:
    """``x[mask]`` and ``x[~mask]``: the rows of x [n, ...] where `mask` [n] is true, and the other rows, in their order."""

def split_like(x: R | Array, *like: R | Array | Sequence[R | Array], axis: int = 0) -> tuple[R, ...]:
    """x split along `axis` into parts with the sizes of the arrays in `like`, which give only their shapes."""

def sqrt(x: R | Array) -> R:
    """Square root: ``out * out = x``. The gradient at 0 is inf. Below 0 the result is NaN."""

def square(x: R | Array) -> R:
    """Square: ``out = x * x``."""

def square_error_cost(x: R | Array, label: R | Array) -> R:
    """Squared error of each element: ``(x - label) ** 2``."""

def squared_l2_norm(x: R | Array) -> R:
    """Sum of squares of all elements: ``sum(x ** 2)``, a 0-d array."""

def squeeze(x: R | Array, *, axes: Sequence[int] | None = None) -> R:
    """x without the given axes, which must have size 1. With null, all axes of size 1 are removed."""

def stack(*x: R | Array | Sequence[R | Array], axis: int = 0) -> R:
    """Arrays of one shape stacked along a new axis. `axis` is its position in the result."""

def std(x: R | Array, *, axes: Sequence[int] | None = None, ddof: int = 1, keepdims: bool = False) -> R:
    """Standard deviation over `axes`: ``sqrt(var(x))``, with `ddof` as in `var`."""

def step_rows(lengths: R | Array, x: R | Array) -> _RowsCounts[R]:
    """The positions of the rows of step 0 of all sequences, then of step 1, ..., and the number of rows of each step."""

def steps_within(x: R | Array, lengths: R | Array | None = None) -> R:
    """``out[i, t] = t < lengths[i]``: whether sequence i has step t, bool [n, time] for x [n, time, ...]."""

def stft(x: R | Array, window: R | Array | None = None, *, frame_length: int, hop_length: int, onesided: bool = True, center: bool = False, complex_input: bool = False) -> R:
    """Short-time Fourier transform of signals x [..., time]: pairs [..., frames, frequencies, 2]."""

def stop_gradient(x: R | Array) -> R:
    """Identity that blocks the gradient: ``out = x``, treated as a constant in the backward pass."""

def strided_slice(x: R | Array, *, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], strides: Sequence[int]) -> R:
    """Slice of x along each of `axes`: ``x[start:end:stride]``, with the rules of Python slices. A stride may be negative."""

def sub(x: R | Array, y: R | Array, *, axis: int | None = None) -> R:
    """Difference of two arrays: ``out = x - y``. Shapes broadcast."""

def sum(*x: R | Array | Sequence[R | Array]) -> R:
    """Sum of a list of arrays of one dtype, in the order given: ``x[0] + x[1] + ...``. Shapes broadcast."""

def sum_tiles_like(x: R | Array, like: R | Array, *, repeats: Sequence[int]) -> R:
    """Sum of the tiles of x, each shaped like `like`: the transpose of `tile` with these `repeats`. `like` gives only its shape. 16-bit floats are accumulated in float32."""

def sum_to(x: R | Array, *, shape: Sequence[int]) -> R:
    """x summed to `shape`: the transpose of broadcasting an array of `shape` to x."""

def sum_to_like(x: R | Array, like: R | Array) -> R:
    """x summed to the shape of `like`: the transpose of `expand_as`. `like` gives only its shape."""

def svd(x: R | Array) -> _USV[R]:
    """Singular value decomposition ``U @ diag(s) @ V.T = x`` with orthonormal columns U and V and descending s."""

def swish(x: R | Array, *, beta: float = 1.0) -> R:
    """Swish activation: ``out = x * sigmoid(beta * x)`` (Ramachandran et al. 2017). With beta 1 it equals `silu`."""

def take_along_axis(x: R | Array, index: R | Array, *, axis: int = -1) -> R:
    """``out[..., i, ...] = x[..., index[..., i, ...], ...]`` along `axis`: each element of `index` picks one of x."""

def tan(x: R | Array) -> R:
    """Tangent: ``sin(x) / cos(x)``, with x in radians."""

def tanh(x: R | Array) -> R:
    """Hyperbolic tangent: ``(exp(x) - exp(-x)) / (exp(x) + exp(-x))``."""

def tanh_shrink(x: R | Array) -> R:
    """Tanh shrinkage: ``out = x - tanh(x)``."""

def temporal_shift(x: R | Array, *, segments: int, shift_ratio: float = 0.25) -> R:
    """Temporal shift of channels of [n * segments, c, h, w], the consecutive frames of n videos (Lin et al. 2019)."""

def thresholded_relu(x: R | Array, *, threshold: float = 1.0) -> R:
    """ReLU with a threshold: ``out = x`` where ``x > threshold``, else 0. The gradient at the threshold is 0."""

def tile(x: R | Array, *, repeats: Sequence[int]) -> R:
    """x repeated `repeats[i]` times along axis i."""

def topk(x: R | Array, *, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> _OutIndex[R]:
    """``out[0] >= out[1] >= ...``: the `k` largest (or smallest) elements along `axis`, and their positions in x."""

def trace(x: R | Array, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> R:
    """Sum of a diagonal of two axes: ``sum over i of x[i, i + offset]``."""

def transpose(x: R | Array, *, axes: Sequence[int] | None = None) -> R:
    """x with its axes permuted: axis i of the result is axis ``axes[i]`` of x. With null, the axes are reversed."""

def tree_path(label: R | Array, *, num_classes: int) -> _TableCode[R]:
    """Path from the root of a complete binary tree to each class: inner nodes (-1 beyond the leaf) and branch bits."""

def triangle_mask_like(x: R | Array, *, diagonal: int = 0) -> R:
    """True on and below a diagonal of the last two axes, false above. x gives only its shape."""

def triangular_solve(x: R | Array, y: R | Array, *, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> R:
    """Solution z of the triangular system ``x @ z = y``, or of ``x.T @ z = y``, by substitution."""

def tril(x: R | Array, *, diagonal: int = 0) -> R:
    """Lower triangle of the last two axes: ``out[i, j] = x[i, j]`` where ``j <= i + diagonal``, else 0."""

def triplet_margin_loss(anchor: R | Array, positive: R | Array, negative: R | Array, *, margin: float = 1.0, p: Number = 2.0, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> R:
    """Triplet loss: ``max(0, d(anchor, positive) - d(anchor, negative) + margin)``."""

def triu(x: R | Array, *, diagonal: int = 0) -> R:
    """Upper triangle of the last two axes: ``out[i, j] = x[i, j]`` where ``j >= i + diagonal``, else 0."""

def trunc(x: R | Array, *, straight_through: bool = False) -> R:
    """x without its fractional part: ``sign(x) * floor(|x|)``."""

def truncated_gaussian(key: R | Array | None = None, *, shape: Sequence[int], mean: float = 0.0, std: float = 1.0, dtype: Dtype = 'float32', seed: int = 0, stream: int = 0) -> R:
    """Numbers from the normal distribution, limited to two standard deviations from the mean."""

def truncated_gaussian_like(x: R | Array, key: R | Array | None = None, *, mean: float = 0.0, std: float = 1.0, dtype: Dtype | None = None, seed: int = 0, stream: int = 0) -> R:
    """Numbers from the normal distribution, limited to two standard deviations from the mean. The shape is that of x, and so is the dtype unless `dtype` is given."""

def unflatten(x: R | Array, *, axis: int, sizes: Sequence[int]) -> R:
    """x with `axis` divided into axes of these `sizes`, in row-major order. One size may be -1 and is computed."""

def unfold(x: R | Array, *, kernel: Sequence[int], strides: Sequence[int] = [1], paddings: Sequence[int] = [0], dilations: Sequence[int] = [1]) -> R:
    """Windows of x [n, c, *spatial] as columns [n, c * elements of a window, windows], both in row-major order."""

def uniform_random(key: R | Array | None = None, *, shape: Sequence[int], min: float = -1.0, max: float = 1.0, dtype: Dtype = 'float32', seed: int = 0, stream: int = 0) -> R:
    """Numbers from the uniform distribution over [min, max): density ``1 / (max - min)``."""

def uniform_random_like(x: R | Array, key: R | Array | None = None, *, min: float = 0.0, max: float = 1.0, dtype: Dtype | None = None, seed: int = 0, stream: int = 0) -> R:
    """Numbers from the uniform distribution over [min, max): density ``1 / (max - min)``. The shape is that of x, and so is the dtype unless `dtype` is given."""

def unique(x: R | Array, *, axis: int | None = None, sorted: bool = True) -> _OutInverseCountsFirst[R]:
    """The distinct elements of x in ascending order, or with `axis` its distinct slices in lexicographic order."""

def unique_positions(x: R | Array) -> _FirstInverseCounts[R]:
    """`first` and `counts`: the first position and the number of occurrences of each distinct element of x, ascending."""

def unique_slices(x: R | Array, *, axis: int = 0) -> _FirstInverseCounts[R]:
    """As `unique_positions`, for the distinct slices of x along `axis`, in lexicographic order."""

def unpadded_positions(lengths: R | Array, x: R | Array) -> R:
    """The positions, in [n * width], of the rows of x [n, width, ...] that are not padding: int64 [sum of lengths]."""

def unpool_like(x: R | Array, index: R | Array, like: R | Array) -> R:
    """Zeros shaped like `like` [n, c, *spatial], with x added at the row-major positions in `index` of each image."""

def unscale(scale: R | Array, *x: R | Array | Sequence[R | Array]) -> tuple[R, ...]:
    """``x / scale`` for each of x, where the loss scale is one number; then a bool: whether an element is not finite."""

def unsqueeze(x: R | Array, *, axes: Sequence[int]) -> R:
    """x with new axes of size 1. `axes` are their positions in the result."""

def unstack(x: R | Array, *, axis: int = 0) -> tuple[R, ...]:
    """The slices of x along `axis`, without that axis."""

def var(x: R | Array, *, axes: Sequence[int] | None = None, ddof: int = 1, keepdims: bool = False) -> R:
    """Variance over `axes`: ``sum((x - mean(x)) ** 2) / (n - ddof)``."""

def viterbi_decode(emission: R | Array, transition: R | Array, lengths: R | Array | None = None) -> _ScorePath[R]:
    """The highest `crf_score` of each sequence, and its labels (`crf_decoding`)."""

def warmup_cosine_decay(step: R | Array, *, learning_rate: float, warmup_steps: int, decay_steps: int, end_learning_rate: float = 0.0) -> R:
    """`linear_lr_warmup` for `warmup_steps` steps, then `cosine_decay` for `decay_steps` steps."""

def weight_norm(v: R | Array, g: R | Array, *, axis: int = 0) -> R:
    """Weight normalization: ``g * v / norm(v)``, with the 2-norm over all axes but `axis`."""

def where(condition: R | Array, x: R | Array, y: R | Array) -> R:
    """Elementwise selection: ``out = x`` where `condition` (bool) holds, else y. Shapes broadcast."""

def window_positions(*, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """Row-major position of each element of each window over axes of `sizes`, as int64 [elements, windows]."""

def window_sizes(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False) -> R:
    """The number of elements in each window of x [n, c, *spatial], padding included: [1, 1, *windows] in its dtype."""

def window_sum(x: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False) -> R:
    """Sum over each window of x [n, c, *spatial]: ``out[..., i] = x[..., i s] + ... + x[..., i s + (k - 1) d]``."""

def window_sum_adjoint(ct: R | Array, like: R | Array, *, kernel_size: Sequence[int], strides: Sequence[int] | None = None, paddings: Sequence[int] = [0], dilations: Sequence[int] = [1], ceil_mode: bool = False) -> R:
    """Cotangent of the input of `window_sum`. `like` gives the shape of the input."""

def wrapped_index(index: R | Array, x: R | Array) -> R:
    """`index` along the first axis of x, counted from the front. Only the shape of x matters."""

def xlogy(x: R | Array, y: R | Array) -> R:
    """``out = x * log(y)``, and 0 where x is 0, also for a y of 0 or below. NaN where y is NaN. Shapes broadcast."""

def zeros_like(x: R | Array) -> R:
    """Zeros with the shape and dtype of x. Another name for `fill_zeros_like`."""
