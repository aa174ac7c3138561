"""Requests and answers about datasets and uploads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from service.datasets.dataset import DATASET_ID
from service.datasets.options import TEXT, Floats, Format, Missing
from service.datasets.uploads import UPLOAD_ID
from service.objects.tensor_file import CODES
from service.schemas.members import LABELS, LINE, NAME, Created, Dtype, Label, NextPage
from service.schemas.programs import Strict
from service.schemas.tensors import Tensors
from service.schemas.times import End, Future

__all__ = [
    "ChangeDataset",
    "CreateDataset",
    "CreateUpload",
    "DatasetPage",
    "DatasetView",
    "FileOptions",
    "Preview",
    "UploadPage",
    "UploadView",
]

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=LINE), NAME]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{1,64}$")]
Labels = Annotated[dict[LabelName, Label], Field(max_length=64), LABELS]
Type = Literal[(*CODES, TEXT)]  # type: ignore[valid-type]
Purpose = Annotated[Literal["dataset"], Field(description="Kind of the thing that the file becomes.")]
ColumnName = Annotated[str, Field(min_length=1, max_length=128)]


class CreateDataset(Strict):
    """A dataset from columns in the request, or from an upload. Exactly one of `columns` and `upload` is given."""

    columns: Tensors | None = Field(None, description="Name -> tensor [rows, ...]; all have the same number of rows.")
    upload: str | None = Field(None, pattern=UPLOAD_ID, description="Id of a complete upload.")
    format: Format | None = Field(None, description="Format of the uploaded file.")
    name: Name = "dataset"
    labels: Labels = Field(default_factory=dict)
    expires_at: Future | None = Field(
        None, description="Time in the future at which it is deleted, in seconds since 1970; null keeps it."
    )
    types: dict[ColumnName, Type] = Field(  # type: ignore[valid-type]
        default_factory=dict,
        max_length=10_000,
        description="Column -> dtype, or `text` for codes of its texts. Without it the type is found from all cells.",
    )
    floats: Floats = Field("float32", description="Dtype of decimal numbers in CSV files and JSON lines.")
    missing: Missing = Field(
        "refuse", description="Missing values: refuse the file, store NaN, or drop the rows that have one."
    )
    delimiter: str = Field(",", pattern=r"^[,;|\t ]$", description="Delimiter of a CSV file.")
    header: bool = Field(True, description="Whether the first line of a CSV file names the columns.")
    stack: dict[ColumnName, Annotated[list[str], Field(min_length=1, max_length=10_000)]] = Field(
        default_factory=dict,
        max_length=1_000,
        description="New column -> the columns that become its parts, [rows, parts]; `*` stands for any characters.",
    )


class FileOptions(BaseModel):
    """Members of `CreateDataset` as parameters of the query, for a file as the body."""

    name: str | None = Field(None, max_length=128, description="Name for people.")
    format: Format | None = Field(None, description="Format of the body, if its media type does not say.")
    types: list[str] | None = Field(
        None, max_length=1000, description="`column:type`, such as `label:int64` or `kind:text`."
    )
    floats: str | None = Field(None, description="Dtype of decimal numbers: float32 (default) or float64.")
    missing: str | None = Field(None, description="Missing values: refuse (default), nan, or drop their rows.")
    delimiter: str | None = Field(None, description="Delimiter of a CSV file; a comma by default.")
    header: bool | None = Field(None, description="Whether the first line of a CSV file names the columns.")
    stack: list[str] | None = Field(
        None,
        max_length=1000,
        description="`new:a,b,c` makes one tensor of columns; `*` stands for any characters.",
    )
    expires_at: float | None = Field(
        None, description="Time in the future at which it is deleted, in seconds since 1970."
    )


class ColumnView(Strict):
    """One column."""

    name: str = Field(description="Name of the column.")
    dtype: Dtype
    shape: list[int] = Field(description="Shape of a row; empty for a number.")
    vocabulary: list[str] | None = Field(
        None, description="Texts that the codes 0, 1, ... stand for; null for a column of numbers."
    )
    statistics: dict[str, float | None] = Field(
        description="nan, infinite: number of such elements. min, max, mean: of the finite elements; null without any."
    )


class DatasetSummary(Strict):
    """A dataset without its columns."""

    id: str = Field(pattern=DATASET_ID, description="Id of the dataset.")
    name: Annotated[str, NAME]
    labels: Annotated[dict[str, str], LABELS]
    rows: int = Field(description="Number of rows.")
    size: int = Field(description="Bytes of the stored file.")
    sha256: str = Field(description="Digest of the stored file, in hexadecimal.")
    created: Created
    expires_at: End


class DatasetView(DatasetSummary):
    """A dataset."""

    columns: list[ColumnView] = Field(description="The columns, with the types and statistics of their values.")


class DatasetPage(Strict):
    """One page of datasets."""

    datasets: list[DatasetSummary] = Field(description="Datasets without their columns, the newest first.")
    next_page_token: NextPage = None


class ChangeDataset(Strict):
    """A merge patch: members to change."""

    name: Name | None = Field(None, description="A new name.")
    labels: dict[LabelName, Label | None] | None = Field(None, description="Labels to set; null removes one.")
    expires_at: Future | None = Field(
        None, description="Another time in the future, in seconds since 1970; null keeps the dataset."
    )


class Preview(Strict):
    """Some rows of a dataset."""

    first: int = Field(description="Number of the first row; 0 is the first row of the dataset.")
    rows: list[dict[str, Any]] = Field(
        description="Column -> value: numbers, nested lists, or texts. NaN and infinity are null."
    )
    total: int = Field(description="Number of rows of the dataset.")


class CreateUpload(Strict):
    """An upload in parts."""

    size: int = Field(gt=0, description="Bytes of the whole file.")
    purpose: Purpose = "dataset"
    sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="Digest of the whole file, to be verified when it is used."
    )


class UploadView(Strict):
    """An upload."""

    id: str = Field(pattern=UPLOAD_ID, description="Id of the upload.")
    size: int = Field(description="Bytes of the whole file.")
    offset: int = Field(description="Number of bytes that are stored: the next part begins there.")
    purpose: Purpose
    sha256: str | None = Field(description="Digest of the whole file that the client gave; null without one.")
    dataset: str | None = Field(description="Id of the dataset that it has become; null before that.")
    created: Created
    expires_at: float = Field(
        description="Time at which it is deleted unless more bytes arrive, in seconds since 1970."
    )


class UploadPage(Strict):
    """One page of uploads."""

    uploads: list[UploadView] = Field(description="Uploads, the newest first.")
    next_page_token: NextPage = None
