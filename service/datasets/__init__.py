"""Stored data for jobs: ingest, read and delete datasets.

A dataset is one immutable safetensors file in `service.objects`, at the key ``datasets/<sha256 of the file>``. Each
tensor is a column; all columns have the same leading dimension, the rows, in the order of the upload. A worker maps the
file with ``tensor_file.mapped(await datasets.path(dataset))``; no batch crosses HTTP. The file's metadata `backpass`
is JSON: the order of the columns and the vocabularies of text columns.

dataset        a dataset as data, and its form in the database
datasets       read, list, change and delete datasets; the files that they name
forgetting     lets workers unmap the files of deleted datasets
uploads        bytes that arrive in parts, over several requests and restarts
ingest         an uploaded file becomes a dataset, in a process of its own
handlers       the handler of these processes, with `convert`
stored_form    the file of a dataset, and the facts about it; `statistics` computes those of a column
options        how to read a file: its format, types of columns, missing values
csv_file, json_lines, parquet_file, tensor_files
               the formats; `cells` finds the types of text columns, `vocabulary` numbers texts, `stacking` joins
               columns, `scratch` holds columns under construction, `csv_quotes` and `exactness` find wrong quotes and
               integers that decimal numbers lack, `mistakes` collects mistakes by row and column
"""

from service.datasets.dataset import Column, Dataset, dataset_id
from service.datasets.datasets import Datasets, is_absent

__all__ = ["Column", "Dataset", "Datasets", "dataset_id", "is_absent"]
