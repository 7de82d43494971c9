"""Models that are broken, or made to harm: one message, which names the node, and no wait."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

import cellgen.onnx
from cellgen.errors import UsageError
from cellgen.language.value import Role
from tests.onnx.models import of_body, of_operator
from tests.onnx.sessions import difference, run

NODE = r"by_hand: node 'the_node' \(\w+\)"
SCAN = r"by_hand: node 'the_scan' \(Scan\)"
ADD = helper.make_node("Add", ["x", "s"], ["s_new"], "add")


def with_attribute(name, value, op="LSTM"):
    """An operator with one attribute of any kind."""
    model, _ = of_operator(op)
    (node,) = model.graph.node
    for attribute in list(node.attribute):
        if attribute.name == name:
            node.attribute.remove(attribute)
    made = value if isinstance(value, AttributeProto) else helper.make_attribute(name, value)
    node.attribute.append(made)
    return model


def of_bytes(name, content):
    return AttributeProto(name=name, type=AttributeProto.STRING, s=content)


def with_weight(array, *, dims=None):
    """A GRU whose W is another array."""
    model, _ = of_operator("GRU")
    (tensor,) = [t for t in model.graph.initializer if t.name == "W"]
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), "W"))
    if dims is not None:
        tensor.ClearField("dims")
        tensor.dims.extend(dims)
    return model


def made_by(*nodes, **arrays):
    """A GRU whose W nodes make."""
    model, _ = of_operator("GRU")
    (tensor,) = [t for t in model.graph.initializer if t.name == "W"]
    arrays["w0"] = numpy_helper.to_array(tensor)
    model.graph.initializer.remove(tensor)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    return model


def chain(count):
    names = ["w0", *(f"w{k + 1}" for k in range(count - 1)), "W"]
    pairs = itertools.pairwise(names)
    return made_by(*(helper.make_node("Identity", [a], [b]) for a, b in pairs))


def changed(change, **options):
    """A Scan, broken by a function of its node."""
    model = of_body([ADD], **options)
    change(model.graph.node[0])
    return model


def without(name):
    def change(node):
        node.attribute.remove(next(a for a in node.attribute if a.name == name))

    return change


def scans(count):
    def change(node):
        next(a for a in node.attribute if a.name == "num_scan_inputs").i = count

    return change


def make(op, takes, gives="W", **options):
    return helper.make_node(op, takes, [gives], **options)


BROKEN = {
    "direction is no text": (lambda: with_attribute("direction", [1, 2]),
                             f"{NODE}: its attribute 'direction' is of the type INTS"),
    "direction is no utf-8": (lambda: with_attribute("direction", of_bytes("direction", b"\xff")),
                              f"{NODE}: its attribute 'direction' cannot be read: Unicode"),
    "hidden_size is a text": (lambda: with_attribute("hidden_size", "four"),
                              f"{NODE}: its attribute 'hidden_size' is of the type STRING"),
    "hidden_size is 0": (lambda: with_attribute("hidden_size", 0), f"{NODE}: hidden_size is 0"),
    "activations are numbers": (lambda: with_attribute("activations", [1, 2]),
                                f"{NODE}: its attribute 'activations' is of the type INTS"),
    "clip is negative": (lambda: with_attribute("clip", -1.0), f"{NODE}: clip is -1.0, expected"),
    "clip is nan": (lambda: with_attribute("clip", float("nan")), f"{NODE}: clip is nan, expected"),
    "layout is 7": (lambda: with_attribute("layout", 7), f"{NODE}: layout is 7, expected 0 or 1"),
    "an attribute that it has not": (lambda: with_attribute("clipp", 1.0),
                                     f"{NODE} has an unknown attribute 'clipp'; did you .* 'clip'"),
    "a number that is infinite": (
        lambda: of_operator("RNN", activations=["LeakyRelu"], activation_alpha=[np.inf])[0],
        f"{NODE}: .*an equation holds oo, .* \\(in h = leaky_relu"),
    "whole weights": (lambda: with_weight(np.ones((1, 12, 3), int)), f"{NODE}: W is of int64"),
    "complex weights": (lambda: with_weight(np.ones((1, 12, 3), "c8")),
                        f"{NODE}: W is of complex64"),
    "an axis below 0": (lambda: with_weight(np.ones((1, 12, 3), "f"), dims=[1, -12, 3]),
                        f"{NODE}: the initializer 'W': an array of .* no axis below 0"),
    "axes without end": (lambda: with_weight(np.ones(4, "f"), dims=[2**40, 2**40]),
                         f"{NODE}: the initializer 'W': an array of .* 268435456 entries at most"),
    "5,000 nodes in a chain": (lambda: chain(5000), r"\(Identity\): over 1000 nodes make"),
    "a ring": (lambda: made_by(make("Neg", ["a"]), make("Neg", ["W"], "a")),
               r"\(Neg\) reads what is made of its result"),
    "a node that reads itself": (lambda: made_by(make("Identity", ["W"])),
                                 r"node 'W' \(Identity\) reads what is made of its result"),
    "weights at random": (lambda: made_by(make("RandomNormal", [], shape=[1, 12, 3])),
                          r"node 'W' \(RandomNormal\) is none of the operators that make"),
    "weights without end": (lambda: made_by(make("ConstantOfShape", ["n"]), n=np.array([2**36])),
                            r"node 'W' \(ConstantOfShape\): an array of \(68719476736,\)"),
    "a range without end": (
        lambda: made_by(make("Range", ["a", "b", "c"]), a=np.array(0), b=np.array(10**15),
                        c=np.array(1)),
        r"node 'W' \(Range\): an array of \(1000000000000000,\)"),
    "an operand is missing": (lambda: made_by(make("Transpose", [])),
                              r"node 'W' \(Transpose\) has 0 operands, expected 1"),
    "a Scan without a body": (lambda: changed(without("body")), f"{SCAN} lacks the attribute 'bo"),
    "a Scan without a number": (lambda: changed(without("num_scan_inputs")),
                                f"{SCAN} lacks the attribute 'num_scan_inputs'"),
    "more sequences than operands": (lambda: changed(scans(9)), f"{SCAN}: 2 operands, of which 9"),
    "no sequence": (lambda: changed(scans(0)), f"{SCAN}: 2 operands, of which 0"),
    "axes of three sequences": (lambda: changed(lambda n: None, scan_input_axes=[0, 1, 2]),
                                rf"{SCAN}: scan_input_axes is \[0, 1, 2\], expected 1 axes"),
    "a value of itself": (lambda: of_body([make("Identity", ["s_new"], "s_new")]),
                          rf"{SCAN}: node 's_new' \(Identity\) reads 's_new' before it is made"),
    "values of each other": (
        lambda: of_body([make("Identity", ["a"], "s_new"), make("Identity", ["s_new"], "a")]),
        rf"{SCAN}: node 's_new' \(Identity\) reads 'a' before it is made"),
    "Identity of nothing": (lambda: of_body([make("Identity", [], "s_new")]),
                            rf"{SCAN}: node 's_new' \(Identity\) has 0 operands, expected 1"),
    "an operand left out": (lambda: of_body([make("PRelu", ["x", ""], "s_new")]),
                            rf"{SCAN}: node 's_new' \(PRelu\): its operand slope is left out"),
    "a result without rows": (
        lambda: of_body([ADD, make("Identity", ["w"], "y")], {"w": np.ones((2, 3), "f")},
                        outputs=("y",)),
        f"{SCAN}: its result 'y' has no axis of rows"),
    "Cast to nothing": (lambda: of_body([make("Cast", ["x"], "s_new")]),
                        rf"{SCAN}: node 's_new' \(Cast\) lacks the attribute 'to'"),
    "a value given twice": (lambda: of_body([ADD, make("Neg", ["x"], "s_new")]),
                            rf"{SCAN}: node 's_new' \(Neg\) gives 's_new', which is there"),
    "a sequence that is not read": (lambda: of_body([make("Tanh", ["s"], "s_new")]),
                                    f"{SCAN}: its body reads none of its sequences"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_one_message_that_names_the_node(what):
    model, said = BROKEN[what]
    with pytest.raises(UsageError, match=said) as caught:
        cellgen.onnx.read(model())
    assert "\n" not in str(caught.value)


def test_shapes_of_a_broken_node_are_not_asked_for(monkeypatch):
    """Some releases of onnx end the process there: 1.16 to 1.21, beside a new protobuf."""
    asked = []
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda model: asked.append(model))
    for what in ("a Scan without a body", "a Scan without a number", "an operand is missing"):
        with pytest.raises(UsageError):
            cellgen.onnx.read(BROKEN[what][0]())
    assert asked == []


def test_a_name_without_end_is_cut():
    model = with_attribute("direction", "up")
    model.graph.node[0].name = "x" * 10**6
    with pytest.raises(UsageError, match=r"node 'x+\.\.\.' \(LSTM\): direction") as caught:
        cellgen.onnx.read(model)
    assert len(str(caught.value)) < 300


def test_bodies_without_end_are_told():
    model = ModelProto(opset_import=[helper.make_opsetid("", 17)])
    graph = model.graph
    for _ in range(2000):
        node = graph.node.add(op_type="If", input=["c"], output=["z"])
        graph = node.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g
        graph.name = "g"
    with pytest.raises(UsageError, match=r"node 'z' \(If\) stands within 32 bodies"):
        cellgen.onnx.read(model)


def test_what_a_body_does_not_read_is_left_out():
    nodes = [
        ADD,
        make("Tanh", ["unread"], "dead"),
        make("Erf", ["dead"], "deader"),
        make("Mul", ["x", "x"], "t_new"),
    ]
    model = of_body(nodes, states=("s", "t"), inputs=("unread", "x"))
    rng = np.random.default_rng(0)
    s, t = (rng.standard_normal((2, 3)).astype("f") for _ in range(2))
    unread, x = (rng.standard_normal((4, 2, 3)).astype("f") for _ in range(2))
    (layer,) = cellgen.onnx.read(model)
    found = layer.run(s, t, unread, x, interpreted=True)
    given = {"s_0": s, "t_0": t, "unread_all": unread, "x_all": x}
    for array, other in zip(found, run(model, given).values(), strict=True):
        assert difference(array, other) < 2e-6
    (one,) = layer.directions
    assert [str(v.name) for v in one.cell.definition.with_role(Role.INPUT)] == ["x"]


def test_a_state_without_axes_beside_rows_is_told():
    model = of_body([ADD])
    body = next(a.g for a in model.graph.node[0].attribute if a.name == "body")
    body.input[0].CopyFrom(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    with pytest.raises(UsageError, match=f"{SCAN}: "):
        cellgen.onnx.read(model)
