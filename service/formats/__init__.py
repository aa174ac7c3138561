"""Formats of tensors and programs: JSON, safetensors, graphs. No format converts a value silently.

strict_json   JSON without repeated members, NaN, infinite numbers, lone surrogates or unlimited nesting
json_tensors  one tensor as a JSON object
packed        parts of a JSON body that another process has decoded
safetensors   the tensors and the JSON part of a message in one safetensors file
graph         a program as JSON, Graphviz or Mermaid text, or the page that draws it
program_graph the nodes, edges and blocks of a program
graph_text    Graphviz and Mermaid text
"""
