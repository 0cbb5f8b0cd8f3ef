"""The traits give the lists of kinds that earlier checkouts had, up to the differences given here with reasons."""

from __future__ import annotations

import pytest

from qfunc.frontend.aliasing import SEVERAL, SPLITS, VIEWS
from qfunc.ops.definition import Trait
from qfunc.ops.opset import kinds


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEW = kinds(Trait.VIEW)

# What the list was for -> (the former kinds, the kinds that the traits give).
FORMER = {
    "scale with their channels, elementwise": (
        "relu leaky_relu prelu abs neg dropout",
        kinds(Trait.ELEMENTWISE | Trait.SCALES_WITH_CHANNELS),
    ),
    "scale with their channels": (
        "relu leaky_relu prelu abs neg dropout max_pool avg_pool adaptive_avg_pool mean sum amax amin",
        kinds(Trait.SCALES_WITH_CHANNELS),
    ),
    "activations that scale with their channels": (
        "relu leaky_relu prelu",
        kinds(Trait.ACTIVATION | Trait.SCALES_WITH_CHANNELS),
    ),
    "folded at capture": (
        "reshape flatten transpose squeeze unsqueeze slice expand add sub mul div pow sqrt rsqrt neg exp abs sum mean guard",
        kinds(Trait.FOLDABLE),
    ),
    "passed by a fusion": (
        "reshape flatten transpose squeeze unsqueeze slice pad expand dropout",
        VIEW | {"pad"},
    ),
    "passed from a guard to a division": (
        "reshape transpose expand unsqueeze squeeze slice flatten cast detach",
        VIEW | {"cast"},
    ),
    "passed from a mask to a softmax": (
        "reshape transpose expand unsqueeze squeeze slice dropout clip maximum add mask cast",
        VIEW | {"clip", "maximum", "add", "mask", "cast"},
    ),
    "positions if their inputs are": (
        "add sub mul div pow neg abs minimum maximum clip where cast concat stack reshape flatten transpose squeeze unsqueeze "
        "slice expand repeat tile index gather full arange exp log sqrt rsqrt sin cos floor tril triu mask roll difference "
        "cumsum detach matmul",
        kinds(Trait.POSITION_IF_INPUTS),
    ),
    "never negative": (
        "relu sigmoid softmax hardsigmoid exp abs sqrt rsqrt",
        kinds(Trait.NON_NEGATIVE),
    ),
    "keep the sign": (
        "max_pool avg_pool global_avg_pool adaptive_avg_pool reshape flatten transpose squeeze unsqueeze slice split chunk "
        "expand concat dropout add mul mean sum resize pad fake_quantize",
        kinds(Trait.KEEPS_SIGN) - kinds(Trait.NON_NEGATIVE),
    ),
    "weighted": ("conv conv_transpose linear", kinds(Trait.WEIGHTED)),
    "layers": ("conv conv_transpose linear lstm gru", kinds(Trait.WEIGHTED) | kinds(Trait.RECURRENT)),
    "layers and products": (
        "conv conv_transpose linear matmul lstm gru",
        kinds(Trait.WEIGHTED) | kinds(Trait.RECURRENT) | {"matmul"},
    ),
    "integers, whatever the inputs are": (
        "compare logic not argmax argmin argsort one_hot isnan isinf any all",
        kinds(Trait.INTEGER_RESULT),
    ),
    "integers if their inputs are": (
        "add sub mul neg abs minimum maximum concat stack reshape flatten transpose squeeze unsqueeze slice expand pad index "
        "gather where roll repeat tile flip cumsum tril triu clip sum remainder floor_divide repeat_interleave",
        kinds(Trait.INTEGER_IF_INPUTS),
    ),
    "numbers, where Python's sum adds 0": (
        "conv conv_transpose linear matmul avg_pool adaptive_avg_pool global_avg_pool mean relu leaky_relu prelu sigmoid tanh "
        "gelu silu hardswish hardsigmoid elu softplus mish softmax layer_norm group_norm sdpa div exp sqrt embedding "
        "add sub mul pow clip max_pool reshape flatten transpose squeeze unsqueeze slice expand pad resize split chunk",
        kinds(Trait.NEVER_BOOLEAN) | VIEW | kinds(Trait.ARITHMETIC) | {"pad"},
    ),
    "end a layer": (
        "relu clip leaky_relu prelu sigmoid tanh gelu silu hardswish hardsigmoid elu softplus mish batch_norm instance_norm "
        "layer_norm group_norm rms_norm dropout",
        kinds(Trait.ACTIVATION) | kinds(Trait.NORM) | {"dropout"},
    ),
    "arithmetic": ("add sub mul div", kinds(Trait.ARITHMETIC)),
    "clamp": ("relu clip", kinds(Trait.CLAMPS)),
    "create": ("full arange", kinds(Trait.CREATES)),
    "averages": ("avg_pool adaptive_avg_pool mean global_avg_pool", kinds(Trait.AVERAGES)),
    "spell views": (
        "view reshape flatten ravel transpose permute swapaxes swapdims movedim moveaxis t T mT H mH numpy_T matrix_H adjoint "
        "squeeze unsqueeze getitem slice select narrow unbind split split_with_sizes tensor_split hsplit vsplit dsplit chunk "
        "expand expand_as broadcast_to view_as reshape_as unflatten diagonal unfold as_strided real imag view_as_real "
        "view_as_complex detach data to type type_as float double half bfloat16 cpu cuda contiguous dropout dropout1d "
        "dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout positive alias requires_grad_ lift_fresh",
        VIEWS,
    ),
    "spell splits": ("unbind split split_with_sizes tensor_split hsplit vsplit dsplit chunk", SPLITS),
    "spell ops with several results": (
        "topk sort max min median mode kthvalue aminmax var_mean std_mean unique max_pool1d_with_indices "
        "max_pool2d_with_indices lstm gru rnn_tanh rnn_relu",
        SEVERAL,
    ),
}

# Kinds that the traits give and the former list lacked.
GAINED = {
    "scale with their channels": ("global_avg_pool", "it is the mean over an image"),
    "passed by a fusion": ("chunk detach split unbind windows", "views too: their result is computed when their input is"),
    "passed from a guard to a division": ("chunk dropout split unbind windows", "views too: they change no value"),
    "passed from a mask to a softmax": ("chunk detach flatten split unbind windows", "views too: a low value stays low"),
    "never negative": (
        "acos acosh all any argmax argmin argsort compare cosh erfc exp2 hypot isinf isnan masked_softmax one_hot "
        "softmin softplus square std var vector_norm",
        "their values are not below 0 either, as their examples show",
    ),
    "keep the sign": (
        "adaptive_max_pool amax amin asin asinh atan atan2 atanh ceil celu channel_shuffle col2im cosine_similarity cumsum "
        "detach div einsum elu erf expm1 flip floor floor_divide fmod frac gather gelu glu guard hardshrink hardswish im2col "
        "index leaky_relu left_out local_response_norm log1p logaddexp logic logsumexp lp_pool matmul max maximum min minimum "
        "mish normalize outer pixel_shuffle pixel_unshuffle pow prelu prod reciprocal remainder repeat repeat_heads "
        "repeat_interleave roll round round_decimals sdpa selu sign silu sinh softshrink softsign sort stack std_mean take "
        "cached_attention index_put tanh tanhshrink tile topk tril triu trunc trunc_divide unbind var_mean where windows",
        "their values are not below 0 either where no input is, as their examples show",
    ),
    "layers": ("rnn", "a recurrent layer like lstm and gru"),
    "layers and products": ("rnn", "a recurrent layer like lstm and gru"),
    "integers if their inputs are": (
        "addcmul amax amin avg_pool ceil channel_shuffle chunk detach difference einsum floor fmod left_out matmul max min "
        "nan_to_num outer pixel_shuffle pixel_unshuffle pow prod relu repeat_heads round scaled_add sign sort split square "
        "index_put take threshold topk trunc trunc_divide unbind windows",
        "PyTorch gives integers for them too, as their examples show",
    ),
    "numbers, where Python's sum adds 0": (
        "abs acos acosh adaptive_max_pool addcdiv addcmul antialias arange argmax argmin argsort asin asinh atan atan2 atanh "
        "bound ceil celu cos cosh cosine_similarity cumsum detach dropout einsum erf erfc exp2 expm1 floor floor_divide fmod "
        "frac glu grid_sample gru guard hardshrink hypot instance_norm lerp local_response_norm log log10 log1p log2 "
        "log_sigmoid log_softmax logaddexp logsumexp lp_pool lstm mask masked_softmax neg normalize one_hot prod "
        "reciprocal remainder rms_norm rnn round round_decimals rsqrt scale selu sin sinh softmin softshrink "
        "softsign square std std_mean sum tan tanhshrink threshold trunc trunc_divide unbind var var_mean vector_norm "
        "windows xlogy cached_attention",
        "they give no booleans either, as their examples show",
    ),
    "end a layer": (
        "celu hardshrink log_sigmoid selu softshrink softsign tanhshrink threshold",
        "nonlinear functions too, which may follow a layer in one unit",
    ),
}

# Kinds that the former list had and the traits do not give.
LOST = {
    "keep the sign": ("pad resize", "it depends on their arguments, which `non_negative` reads"),
}


JUDGED = words(" ".join((*(former for former, _ in FORMER.values()), *(gained for gained, _ in GAINED.values()))))
"""The kinds of these lists. A kind of a later op enters no list: `test_traits` requires the traits that its example shows."""


def differences(former: str, now: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    return (now & JUDGED) - words(former), words(former) - now


@pytest.mark.parametrize("name", FORMER)
def test_the_traits_give_the_former_list(name: str) -> None:
    gained, lost = differences(*FORMER[name])
    assert gained == words(GAINED.get(name, ("", ""))[0])
    assert lost == words(LOST.get(name, ("", ""))[0])


def test_a_later_op_enters_no_list() -> None:
    former, now = FORMER["never negative"]
    assert differences(former, now | {"an_op_of_tomorrow"}) == differences(former, now)
    assert differences(former, now | {"sin"}) != differences(former, now)


def test_each_difference_is_of_a_list_and_has_a_reason() -> None:
    assert {*GAINED, *LOST} <= {*FORMER}
    assert all(reason for _, reason in (*GAINED.values(), *LOST.values()))
