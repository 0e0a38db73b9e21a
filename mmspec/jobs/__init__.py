"""Jobs of any modality: streams of records in, shards of outputs out, resumable after an interruption at any point.

>>> from mmspec.jobs import Job, JsonLines, Lines, run
>>> report = run(Job(source=Lines(path), sink=JsonLines(), work=work, out=out, model={"weights": ...}, options={"seed": 0}))
"""

from mmspec.jobs.engine.engines import Report, run
from mmspec.jobs.engine.folder import Stopped
from mmspec.jobs.engine.job import Job
from mmspec.jobs.engine.parquet import ParquetRows, ParquetTable
from mmspec.jobs.engine.processes import Processes
from mmspec.jobs.engine.records import Facts, Lines, Reject, Source
from mmspec.jobs.engine.sinks import JsonLines, NumberedFiles, Sink
from mmspec.utils.fingerprints import weights

__all__ = [
    "Facts",
    "Job",
    "JsonLines",
    "Lines",
    "NumberedFiles",
    "ParquetRows",
    "ParquetTable",
    "Processes",
    "Reject",
    "Report",
    "Sink",
    "Source",
    "Stopped",
    "run",
    "weights",
]
