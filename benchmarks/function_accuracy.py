"""Compare the float32 functions of cellgen_math.h with libm in double over all 2^32 inputs.

    python benchmarks/function_accuracy.py [FUNCTION...] [--exact | --fast] [--threads N]

Input: the header in generated/include, compiled as cellgen compiles kernels ($CELLGEN_CC names
another compiler). Output: a table on standard output, progress on standard error, exit status 1
when a function is beyond its bar.
`--coefficients` instead repeats the fits from which the header's coefficients come.
Not supported: functions of two arguments, float64 (tests/targets/test_runtime_math.py samples
both).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cellgen.runtime.build.compiler import compiler

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent / "generated" / "include"

VECTORISED = ["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "softplus", "log_sigmoid"]
QUICK = ["quick_tanh", "quick_sigmoid"]
"""What time loops take."""
FROM_LIBM = ["sqrt", "sin", "cos", "erf", "abs", "sign", "relu", "hard_sigmoid"]

KNOWN = VECTORISED + QUICK + FROM_LIBM


@dataclass(frozen=True)
class Bar:
    """What a function may be wrong by; infinity where the mode promises nothing."""

    ulp: float
    subnormal: float = 1.0  # in units of the smallest normal number, 2^-126
    absolute: float = float("inf")


# Rounding a double once gives 1/2 ulp; the double functions' own few 2^-53 are the rest.
EXACT_BAR = Bar(ulp=0.51)
# hard_sigmoid is compared with (x + 3)/6 in double; the float one rounds twice.
DEFAULT_BAR = Bar(ulp=4.0)
# Sigmoid from the rational tanh is accurate absolutely, not relatively.
FAST_BARS = {
    "tanh": Bar(ulp=8.0),
    "sigmoid": Bar(ulp=float("inf"), absolute=2.0**-22),
}
FAST_BARS |= {f"quick_{name}": bar for name, bar in FAST_BARS.items()}


@dataclass(frozen=True)
class Finding:
    """The worst of one function over all inputs, and the input at which it occurs."""

    function: str
    ulp: float
    ulp_at: float
    subnormal: float
    subnormal_at: float
    absolute: float
    absolute_at: float
    wrong: int
    wrong_at: float

    def within(self, bar: Bar) -> bool:
        """Say whether every figure is inside its bar."""
        return (
            self.ulp <= bar.ulp
            and self.subnormal <= bar.subnormal
            and self.absolute <= bar.absolute
            and self.wrong == 0
        )


def bar_of(function: str, mode: str) -> Bar:
    """Return the bar of a function in a mode (default, exact or fast)."""
    if mode == "exact":
        return EXACT_BAR
    if mode == "fast":
        return FAST_BARS.get(function, DEFAULT_BAR)
    return DEFAULT_BAR


def from_bits(digits: str) -> float:
    """Return the float32 whose bits are these hexadecimal digits."""
    return float(np.uint32(int(digits, 16)).view(np.float32))


def compile_walker(mode: str, folder: Path) -> Path:
    """Compile function_accuracy.c for a mode and return the program's path."""
    program = folder / "function_accuracy"
    defines = {"default": [], "exact": ["-DCELLGEN_EXACT_MATH"], "fast": ["-DCELLGEN_FAST_MATH"]}
    info = compiler()
    source = str(HERE / "function_accuracy.c")
    command = [*info.command, *info.flags, *defines[mode], f"-I{INCLUDE}", source]
    subprocess.run([*command, "-o", str(program), "-lm", "-lpthread"], check=True)
    return program


def walk(program: Path, function: str, threads: int) -> Finding:
    """Run the program for one function; its progress goes to standard error."""
    run = subprocess.run(
        [str(program), function, str(threads)], check=True, stdout=subprocess.PIPE, text=True
    )
    field = run.stdout.split()
    return Finding(
        function,
        float(field[0]),
        from_bits(field[1]),
        float(field[2]),
        from_bits(field[3]),
        float(field[4]),
        from_bits(field[5]),
        int(field[6]),
        from_bits(field[7]),
    )


HEADER = (
    f"{'function':12s} {'worst ulp':>10s} {'at':>16s} {'subnormal':>10s} {'absolute':>10s} "
    f"{'special values':>15s}"
)


def table_row(finding: Finding, bar: Bar) -> str:
    """Render one function: subnormal error in 2^-126, absolute error where |f(x)| <= 1."""
    special = "ok" if finding.wrong == 0 else f"{finding.wrong} wrong"
    verdict = "" if finding.within(bar) else f"  beyond the bar ({bar})"
    return (
        f"{finding.function:12s} {finding.ulp:10.4g} {finding.ulp_at:16.9g} "
        f"{finding.subnormal:10.2g} {finding.absolute:10.2g} {special:>15s}{verdict}"
    )


# ------------------------------------------------------------------------------- coefficients

NODES = 400


def fit_polynomial(
    target: Callable[[float], float],
    weight: Callable[[float], float],
    low: float,
    high: float,
    degree: int,
) -> tuple[list[float], float]:
    """Minimise max |weight (target - polynomial)| over polynomials with float32 coefficients.

    A linear programme on Chebyshev nodes. The coefficients are rounded one by one from the lowest
    degree, each to the neighbour after which the others, refitted, leave the smallest error.
    """
    from scipy.optimize import linprog  # a development dependency, needed here only

    angle = np.pi * (np.arange(NODES) + 0.5) / NODES
    x = (low + high) / 2 - (high - low) / 2 * np.cos(angle)
    f = np.array([target(v) for v in x])
    w = np.array([abs(weight(v)) for v in x])
    powers = np.vander(x, degree + 1, increasing=True)
    unit = 1e-7  # errors are counted in this unit: the solver's tolerances are absolute

    def refit(fixed: list[float]) -> tuple[float, float]:
        done = len(fixed)
        rest = f - powers[:, :done] @ np.array(fixed) if done else f
        if done == degree + 1:
            return 0.0, float(np.abs(w * rest).max())
        a = powers[:, done:] * w[:, None]
        scale = np.abs(a).max(axis=0)
        b = w * rest / unit
        bound = -np.ones((NODES, 1))
        result = linprog(
            np.r_[np.zeros(a.shape[1]), 1],
            A_ub=np.block([[a / scale, bound], [-a / scale, bound]]),
            b_ub=np.r_[b, -b],
            bounds=[(None, None)] * a.shape[1] + [(0, None)],
            method="highs",
        )
        return float(result.x[0] / scale[0] * unit), float(result.x[-1] * unit)

    fixed: list[float] = []
    for _ in range(degree + 1):
        middle = np.float32(refit(fixed)[0])
        near = [
            float(v)
            for v in (
                middle,
                np.nextafter(middle, np.float32(np.inf)),
                np.nextafter(middle, np.float32(-np.inf)),
            )
        ]
        fixed.append(min(near, key=lambda v: refit([*fixed, v])[1]))
    return fixed, refit(fixed)[1]


def fit_rational_tanh(high: float, above: int, below: int) -> tuple[list[float], list[float]]:
    """Fit tanh(x)/x = A(x^2)/B(x^2) on (0, high], relative error, degrees above and below.

    Linearised least squares |A/f - B|/B_previous with Lawson's weights, which grow where the error
    is large until it is level. A common factor in [1, 2) is then searched for, by which rounding
    to float32 does least harm.
    """
    angle = np.pi * (np.arange(500) + 0.5) / 500
    x = high * (0.5 - 0.5 * np.cos(angle))
    f = np.tanh(x) / x
    a_powers = np.vander((x / high) ** 2, above + 1, increasing=True)
    b_powers = np.vander((x / high) ** 2, below + 1, increasing=True)
    b_previous = 1 + x * x / 2.2
    lawson = np.ones(x.size)
    best = (np.inf, np.zeros(0), np.zeros(0))
    for step in range(300):
        w = np.sqrt(lawson) / b_previous
        system = np.c_[a_powers / f[:, None], -b_powers[:, 1:]] * w[:, None]
        norm = np.linalg.norm(system, axis=0)
        c = np.linalg.lstsq(system / norm, w, rcond=1e-15)[0] / norm
        a, b = c[: above + 1], np.r_[1, c[above + 1 :]]
        error = np.abs(a_powers @ a / (b_powers @ b) / f - 1)
        if error.max() < best[0]:
            best = (float(error.max()), a, b)
        b_previous = np.abs(b_powers @ b)
        if step > 5:
            lawson *= np.sqrt(error / error.max() + 1e-6)
            lawson /= lawson.sum()
    a = best[1] / high ** (2 * np.arange(above + 1))
    b = best[2] / high ** (2 * np.arange(below + 1))
    x = np.linspace(1e-4, high, 20001)
    f = np.tanh(x) / x

    def rounded(factor: float) -> tuple[float, list[float], list[float]]:
        top, bottom = (np.float32(v * factor).astype(float) for v in (a, b))
        value = np.polyval(top[::-1], x * x) / np.polyval(bottom[::-1], x * x)
        return float(np.abs(value / f - 1).max()), top.tolist(), bottom.tolist()

    factors = 2 ** np.random.default_rng(0).uniform(0, 1, 4000)
    error, top, bottom = min(rounded(factor) for factor in factors)
    print(f"tanh(x)/x, 0 <= x <= {high:g}, in x^2: relative error {error:.2g}")
    print("   ", ", ".join(f"{v:.9g}" for v in top), "\n    over")
    print("   ", ", ".join(f"{v:.9g}" for v in bottom))
    return top, bottom


def print_coefficients() -> None:
    """Repeat the fits of cellgen_math.h."""
    import mpmath  # comes with SymPy

    def second_order(function: Callable[[float], float]) -> Callable[[float], float]:
        """(function(x) - x)/x^2, free of cancellation."""

        def value(x: float) -> float:
            with mpmath.workdps(50):
                exact = mpmath.mpf(x)
                return float((function(exact) - exact) / exact**2)

        return value

    half = float(np.log(2)) / 2 * 1.0005  # n may round to the other side of a tie
    fits = [
        ("expm1", mpmath.expm1, np.expm1, -half, half, 4),
        ("log(1 + f)", mpmath.log1p, np.log1p, -1 / 3, 1 / 3, 8),
        ("log(1 + e)", mpmath.log1p, np.log1p, 0.0, 1.0, 8),
    ]
    for name, function, plain, low, high, degree in fits:
        coefficients, error = fit_polynomial(
            second_order(function), lambda x, f=plain: x * x / f(x), low, high, degree
        )
        print(f"({name} - x)/x^2, {low:.4g} <= x <= {high:.4g}: relative error {error:.2g}")
        print("   ", ", ".join(f"{c:.9g}" for c in coefficients))
    fit_rational_tanh(8.0, 3, 4)


# --------------------------------------------------------------------------------- command line


def main() -> int:
    """Parse the command line, walk, print the table; 1 when a function is beyond its bar."""
    first_line = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=first_line)
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help="default: the vectorised")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--exact", action="store_const", const="exact", dest="mode")
    modes.add_argument("--fast", action="store_const", const="fast", dest="mode")
    modes.add_argument("--coefficients", action="store_true", help="repeat the header's fits")
    arguments = parser.parse_args()
    if arguments.coefficients:
        print_coefficients()
        return 0
    mode = arguments.mode or "default"
    functions = arguments.functions or (list(FAST_BARS) if mode == "fast" else VECTORISED + QUICK)
    for name in functions:
        if name not in KNOWN:
            parser.error(f"unknown function {name!r}; known: {' '.join(KNOWN)}")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        program = compile_walker(mode, Path(folder))
        print(HEADER)
        for name in functions:
            finding = walk(program, name, arguments.threads)
            print(table_row(finding, bar_of(name, mode)), flush=True)
            failed |= not finding.within(bar_of(name, mode))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
