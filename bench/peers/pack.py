"""Writes rows of a workload as other programs read them. Usage: pack.py WORKLOAD FROM TO

Of groups 32 bytes each, little-endian (flink/…/Rows.java), and of a table that they are joined with both columns, 8 bytes
each, in a file of its own. Of joins a file for each table: time, key and value of 8 bytes,
the length of the other columns as one text in 4 bytes, and the text, little-endian (flink/…/Events.java).
"""

import struct
import sys
from pathlib import Path

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
            rows["f1"] = batch.column(workload.key).to_numpy(zero_copy_only=False)
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
    if workload.lookup:
        lookup = workload.lookup
        table = pq.read_table(peer.beside(source, lookup.table))
        pairs = np.stack([table.column(name).to_numpy() for name in (lookup.key, lookup.column)], axis=1)
        peer.beside(target, lookup.table).write_bytes(pairs.astype("<i8").tobytes())


def join(name, source, target):
    for side in peer.JOINS[name]:
        table = Path(source).with_suffix(f".{side.table}.parquet")
        with open(Path(target).with_suffix(f".{side.table}.rows"), "wb") as out:
            for batch in pq.ParquetFile(table).iter_batches(1 << 16):
                known = {"date_time", side.key, side.value}
                others = [name for name in batch.schema.names if name not in known]
                texts = [batch.column(name).cast(pa.string()) for name in others]
                text = pc.binary_join_element_wise(*texts, ",").to_pylist()
                times = batch.column("date_time").cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()
                values = batch.column(side.value).to_pylist() if side.value else [0] * batch.num_rows
                for row in zip(times, batch.column(side.key).to_pylist(), values, text):
                    encoded = row[3].encode()
                    out.write(struct.pack("<qqqi", *row[:3], len(encoded)) + encoded)


(join if sys.argv[1] in peer.JOINS else main)(*sys.argv[1:])
