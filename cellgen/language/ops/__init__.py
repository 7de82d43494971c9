"""The operator table: what every operator means, in one place.

Pointwise functions are rows with a NumPy meaning, derivatives and a C spelling; operators that look
across elements (``matmul``, ``concat``, ...) are rows with a shape rule, a NumPy meaning, an
adjoint, a tangent and traits. A new row is a new operator: the tests, the interpreter, the deriver
and the printers read this table and nothing else.

Ties: ``maximum``, ``minimum``, ``clip`` and ``relu`` give derivative 0 on the losing side, and the
first argument wins a tie (so ``clip`` passes gradients on its closed interval and ``relu`` has
derivative 0 at 0). ``abs`` and ``sign`` have derivative 0 at 0.
"""

from cellgen.language.ops.activation import (
    activation,
)
from cellgen.language.ops.author import (
    concat,
    cumsum,
    logsumexp,
    matmul,
    norm,
    softmax,
    split,
    transpose,
    units_max,
    units_mean,
    units_sum,
)
from cellgen.language.ops.function import (
    FunctionTraits,
    Growth,
    Pointwise,
    PointwiseRow,
    Sign,
)
from cellgen.language.ops.operator import (
    Array,
    Contraction,
    Form,
    Operator,
    Traits,
    broadcast,
)
from cellgen.language.ops.pointwise import (
    POINTWISE,
    absolute,
    clip,
    cos,
    define_pointwise,
    erf,
    exp,
    expm1,
    ge,
    gt,
    hard_sigmoid,
    identity,
    keep,
    le,
    log,
    log1p,
    log_sigmoid,
    lt,
    maximum,
    minimum,
    power,
    relu,
    sigmoid,
    sign,
    sin,
    softplus,
    sqrt,
    stop_gradient,
    strong_product,
    tanh,
    zeros_like,
)
from cellgen.language.ops.sympy_functions import (
    from_sympy,
    where,
)
from cellgen.language.ops.table import (
    OPERATORS,
    operator_of,
    shape_of,
)
from cellgen.language.ops.views import (
    part,
)

__all__ = [
    "OPERATORS",
    "POINTWISE",
    "Array",
    "Contraction",
    "Form",
    "FunctionTraits",
    "Growth",
    "Operator",
    "Pointwise",
    "PointwiseRow",
    "Sign",
    "Traits",
    "absolute",
    "activation",
    "broadcast",
    "clip",
    "concat",
    "cos",
    "cumsum",
    "define_pointwise",
    "erf",
    "exp",
    "expm1",
    "from_sympy",
    "ge",
    "gt",
    "hard_sigmoid",
    "identity",
    "keep",
    "le",
    "log",
    "log1p",
    "log_sigmoid",
    "logsumexp",
    "lt",
    "matmul",
    "maximum",
    "minimum",
    "norm",
    "operator_of",
    "part",
    "power",
    "relu",
    "shape_of",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "stop_gradient",
    "strong_product",
    "tanh",
    "transpose",
    "units_max",
    "units_mean",
    "units_sum",
    "where",
    "zeros_like",
]
