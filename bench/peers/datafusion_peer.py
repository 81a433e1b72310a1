"""DataFusion: record batches in memory, in as many partitions as there are threads."""

import datafusion
import peer
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_BATCH = 8192


def load(workload, path, threads):
    table = pq.read_table(path, columns=workload.columns, read_dictionary=dictionaries(workload))
    if workload.time:
        at = table.column_names.index(workload.time)
        times = table.column(at).cast(pa.timestamp("ms")).cast(pa.int64())
        table = table.set_column(at, workload.time, times)
    batches = table.combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)
    partitions = [batches[part::threads] for part in range(threads)]
    config = datafusion.SessionConfig().with_target_partitions(threads)
    context = datafusion.SessionContext(config)
    context.register_record_batches("input", partitions)
    if workload.lookup:
        beside = pq.read_table(peer.beside(path, workload.lookup.table))
        context.register_record_batches(workload.lookup.table, [beside.combine_chunks().to_batches()])
    query = peer.sql(workload, "{0} / {1}")

    def run():
        (batch,) = [b for b in context.sql(query).collect() if b.num_rows]
        return batch.column(0)[0].as_py(), batch.column(1)[0].as_py()

    return datafusion.__version__, run


def dictionaries(workload):
    return [workload.filter[0]] if workload.filter else []


peer.serve(load)
