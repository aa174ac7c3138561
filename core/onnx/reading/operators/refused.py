"""Operators of strings and maps, which no program can express."""

from __future__ import annotations

from core.onnx.reading.node import Node
from core.onnx.reading.operators.classical import DOMAIN
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor


@converter("ZipMap", "DictVectorizer", "CastMap", "CategoryMapper", domain=DOMAIN)
def of_maps(node: Node) -> Tensor:
    raise node.refuse("a program has neither maps nor strings: remove this node, which only names numbers")


@converter("LabelEncoder", domain=DOMAIN)  # from opset 2 on, its labels may be numbers
@converter("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch")
def of_strings(node: Node) -> Tensor:
    raise node.refuse("a program has no strings")


@converter("SVMClassifier", domain=DOMAIN)
def of_votes(node: Node) -> Tensor:
    raise node.refuse("votes between pairs of classes are not supported")
