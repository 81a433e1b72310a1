//! A pinned version whose parts fit together: the manifest is that of a stranger.

use std::fmt::Write;

use arrow::datatypes::Schema;
use dataflow::error::ConnectorError;
use pool::access::Pinned;
use pool::manifest::{Definition, Manifest, PARTITIONS_MAX, STRIP_ROWS_MAX};

use super::columns::StoredColumns;
use super::errors::{damaged, refused};
use super::lists::{NodeCache, followed};
use crate::options::{refuse, sql_type};

/// A pinned version, and its columns.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) pinned: Pinned,
    pub(super) columns: StoredColumns,
    /// The nodes of the lists that tell where its strips lie, if it is kept in lists.
    pub(super) nodes: Option<usize>,
}

impl Version {
    /// Checks what a pool says of a version, and follows its lists if it has some.
    ///
    /// # Errors
    /// When its parts do not fit together, and when a node of a list cannot be read.
    pub(super) fn checked(pinned: Pinned, nodes: &NodeCache) -> Result<Self, ConnectorError> {
        let (pinned, nodes) = followed(pinned, nodes).map_err(refused)?;
        let manifest = &*pinned.manifest;
        let columns = StoredColumns::of(&manifest.definition, &manifest.table)?;
        match misfit(manifest) {
            None => Ok(Self { pinned, columns, nodes }),
            Some(what) => Err(damaged(&manifest.table, what)),
        }
    }

    pub(super) fn manifest(&self) -> &Manifest {
        &self.pinned.manifest
    }
}

/// The first inconsistency of a manifest, if it has one.
fn misfit(manifest: &Manifest) -> Option<&'static str> {
    let Manifest { definition, strips, partitions, .. } = manifest;
    let columns = definition.columns.len();
    let bits: u32 = definition.buckets.iter().map(|by| u32::from(by.bits)).sum();
    if bits > PARTITIONS_MAX.ilog2() {
        return Some("it has too many buckets");
    }
    if definition.buckets.iter().any(|by| usize::from(by.column) >= columns) {
        return Some("its buckets are of a column that it does not have");
    }
    if strips.iter().any(|strip| strip.blocks.len() != columns || strip.rows > STRIP_ROWS_MAX) {
        return Some("it has strips that are not of its columns");
    }
    let ascends = partitions.windows(2).all(|pair| pair[0] <= pair[1]);
    let ends = partitions.last().is_some_and(|end| *end as usize == strips.len());
    let counted = partitions.len() == definition.partitions() as usize + 1;
    (!ascends || !ends || !counted || partitions.first() != Some(&0))
        .then_some("its partitions do not have its strips")
}

/// Refuses to load what is declared into a table that is there if it is another.
///
/// # Errors
/// When the columns, or the buckets if they are declared, differ.
pub(super) fn check_same(
    there: &Definition,
    declared: &Definition,
    table: &str,
    declares_buckets: bool,
) -> Result<(), ConnectorError> {
    let (has, wants) = (StoredColumns::of(there, table)?, StoredColumns::of(declared, table)?);
    let key = |schema: &Schema| {
        let fields = schema.fields().iter();
        fields.map(|f| (f.name().clone(), f.data_type().clone())).collect::<Vec<_>>()
    };
    if key(&has.schema) != key(&wants.schema) {
        let message = format!("the pool's '{table}' has other columns: {}", listed(&has.schema));
        let hint = "leave the columns out: the pool tells them";
        return Err(refuse("table", message, Some(hint.into())));
    }
    if declares_buckets && there.buckets != declared.buckets {
        let mut message = format!("the pool's '{table}' is distributed otherwise");
        for (at, by) in there.buckets.iter().enumerate() {
            let name = has.schema.field(usize::from(by.column)).name();
            let begins = if at == 0 { ": by" } else { "," };
            let _ = write!(message, "{begins} HASH({name}) INTO {} BUCKETS", 1_u32 << by.bits);
        }
        let hint = "leave DISTRIBUTED BY out: the pool tells it";
        return Err(refuse("table", message, Some(hint.into())));
    }
    Ok(())
}

/// Names and types of columns, for messages.
pub(super) fn listed(schema: &Schema) -> String {
    let fields = schema.fields().iter();
    let texts = fields.map(|field| format!("{} {}", field.name(), sql_type(field.data_type())));
    texts.collect::<Vec<_>>().join(", ")
}
