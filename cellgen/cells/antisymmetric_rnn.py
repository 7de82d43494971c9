"""The antisymmetric recurrent network."""

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import tanh, transpose
from cellgen.language.value import H, I


class AntisymmetricRNN(Cell):
    """Antisymmetric recurrent network: a step of Euler's method through an equation that neither
    grows nor decays, but for the diffusion gam (Chang et al. 2019, arXiv:1902.09689); the form
    without a gate."""

    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    eps, gam = Scalar(0.01), Scalar(0.01)

    a = u - transpose(u)
    h = h_prev + eps * tanh(x @ w + h_prev @ a - gam * h_prev + b)
