"""Writes rows of a workload as Flink's program reads them: 32 bytes each, little-endian. Usage: pack.py WORKLOAD FROM TO"""

import sys

import numpy as np
import peer
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def main(name, source, target):
    workload = peer.WORKLOADS[name]
    with open(target, "wb") as out:
        for batch in pq.ParquetFile(source).iter_batches(1 << 20, columns=workload.columns):
            rows = np.zeros(batch.num_rows, dtype="<i8,<i8,<i8,<i8")
            if workload.time:
                times = batch.column(workload.time).cast(pa.timestamp("ms")).cast(pa.int64())
                rows["f0"] = times.to_numpy(zero_copy_only=False)
            rows["f1"] = batch.column(workload.key).to_numpy(zero_copy_only=False) // workload.divisor
            if workload.value:
                values = batch.column(workload.value).to_numpy(zero_copy_only=False)
                mean = workload.aggregate == "mean"
                rows["f2"] = values.astype("<f8").view("<i8") if mean else values
            rows["f3"] = 1
            if workload.filter:
                column, word = workload.filter
                kept = pc.equal(batch.column(column).cast(pa.string()), word)
                rows["f3"] = kept.to_numpy(zero_copy_only=False)
            out.write(rows.tobytes())


main(*sys.argv[1:])
