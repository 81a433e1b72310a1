//! The eight tables of TPC-H, as the benchmark's own generator makes them, by the crate `tpchgen`.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatchReader;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use super::table::BATCH_ROWS;

/// The tables.
pub(super) const TABLES: [&str; 8] =
    ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"];

/// Days since 1970 of the first and of the last order, and of the last day that a column has.
const FIRST_DAY: i64 = 8_035;
const LAST_DAY: i64 = 10_591;

/// The rows of a table at a scale, approximately for `lineitem`.
pub(super) fn rows(table: &str, scale: f64) -> u64 {
    let of_one = match table {
        "customer" => 150_000.0,
        "lineitem" => 6_000_000.0,
        "orders" => 1_500_000.0,
        "part" => 200_000.0,
        "partsupp" => 800_000.0,
        "supplier" => 10_000.0,
        "nation" => return 25,
        _ => return 5,
    };
    (of_one * scale) as u64
}

/// The least and the greatest value of a column of whole numbers or days, and its distinct values.
pub(super) fn range(column: &str, scale: f64) -> Option<([i64; 2], u64)> {
    let name = column.split_once('_').map_or(column, |(_, name)| name);
    let keys = |table: &str| {
        let keys = rows(table, scale);
        Some(([1, keys as i64], keys))
    };
    match name {
        // The first 8 of each 32 consecutive numbers are keys.
        "orderkey" => keys("orders").map(|([_, keys], count)| ([1, 4 * keys], count)),
        "custkey" => keys("customer"),
        "partkey" => keys("part"),
        "suppkey" => keys("supplier"),
        "nationkey" => Some(([0, 24], 25)),
        "regionkey" => Some(([0, 4], 5)),
        "linenumber" => Some(([1, 7], 7)),
        "size" => Some(([1, 50], 50)),
        "availqty" => Some(([1, 9_999], 9_999)),
        "orderdate" | "shipdate" | "commitdate" | "receiptdate" => {
            Some(([FIRST_DAY, LAST_DAY], (LAST_DAY - FIRST_DAY + 1) as u64))
        }
        _ => None,
    }
}

/// The columns.
pub(super) fn schema(table: &str) -> SchemaRef {
    let schema = match table {
        "customer" => CustomerArrow::schema_ref(),
        "lineitem" => LineItemArrow::schema_ref(),
        "nation" => NationArrow::schema_ref(),
        "orders" => OrderArrow::schema_ref(),
        "part" => PartArrow::schema_ref(),
        "partsupp" => PartSuppArrow::schema_ref(),
        "region" => RegionArrow::schema_ref(),
        _ => SupplierArrow::schema_ref(),
    };
    plain(&schema)
}

/// The same columns with `Utf8` in place of `Utf8View`, as readers of files have them.
fn plain(schema: &Schema) -> SchemaRef {
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8View => field.as_ref().clone().with_data_type(DataType::Utf8),
        _ => field.as_ref().clone(),
    };
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

/// The rows of part number `part`, from 0 on, of `parts`.
pub(super) fn batches(
    table: &str,
    scale: f64,
    part: u32,
    parts: u32,
) -> Result<Vec<RecordBatch>, ArrowError> {
    let (part, parts) = (part as i32 + 1, parts as i32);
    macro_rules! made {
        ($generator:ident, $arrow:ident) => {{
            let rows = $generator::new(scale, part, parts);
            collected($arrow::new(rows).with_batch_size(BATCH_ROWS))
        }};
    }
    match table {
        "customer" => made!(CustomerGenerator, CustomerArrow),
        "lineitem" => made!(LineItemGenerator, LineItemArrow),
        "nation" => made!(NationGenerator, NationArrow),
        "orders" => made!(OrderGenerator, OrderArrow),
        "part" => made!(PartGenerator, PartArrow),
        "partsupp" => made!(PartSuppGenerator, PartSuppArrow),
        "region" => made!(RegionGenerator, RegionArrow),
        _ => made!(SupplierGenerator, SupplierArrow),
    }
}

fn collected(reader: impl RecordBatchReader) -> Result<Vec<RecordBatch>, ArrowError> {
    let schema = plain(&reader.schema());
    let batch = |batch: Result<RecordBatch, ArrowError>| {
        let batch = batch?;
        let columns = batch.columns().iter().zip(schema.fields());
        let columns = columns.map(|(column, field)| cast(column, field.data_type()));
        RecordBatch::try_new(Arc::clone(&schema), columns.collect::<Result<_, _>>()?)
    };
    reader.map(batch).collect()
}
