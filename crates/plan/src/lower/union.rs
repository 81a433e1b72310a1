//! `UNION ALL`: the rows of several relations, in any order.
//!
//! Where each part has its event time in the same column, that is the time of all: its watermark is
//! the least of theirs. Nothing is read before somebody asks for the rows, and says whether with
//! their time: a row without event time is bad only for those who ask for it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::{self as logical, Expr, lit};

use crate::expr::own::own;
use crate::lower::relation::{Base, Feeds, Relation, Stop};
use crate::lower::step::column_index;
use crate::lower::weave::Weaver;
use crate::text::refusal::Refusal;

impl Weaver<'_> {
    /// The rows of all inputs.
    pub(crate) fn union(&mut self, union: &logical::Union) -> Result<Relation, Stop> {
        let fields = union.schema.as_arrow().fields().iter().enumerate();
        let named = fields.map(|(at, field)| field.as_ref().clone().with_name(format!("c{at}")));
        let mut named: Vec<Field> = named.collect();
        // Rows need a column to be counted by.
        let counted = named.is_empty().then(|| Field::new("c0", DataType::Boolean, false));
        named.extend(counted.clone());
        let schema: SchemaRef = Arc::new(Schema::new(named));
        let mut parts = vec![];
        let emit = self.emit.take();
        for input in &union.inputs {
            self.emit.clone_from(&emit);
            let relation = self.relation(input)?;
            let mut relation = self.settled(relation)?;
            let column = counted.iter().map(|field| Column::new_unqualified(field.name()));
            relation.outputs.extend(column.map(|column| (column, lit(true))));
            parts.push(relation);
        }
        let is_time = |at: &usize| {
            let mut parts = parts.iter();
            parts.all(|part: &Relation| part.times.contains(&part.outputs[*at].1))
        };
        let time = (0..schema.fields().len()).find(is_time);
        let scan = DFSchema::try_from(schema.as_ref().clone())
            .map_err(|error| Refusal::new(&[], error.to_string()))?;
        let columns = schema.fields().iter().map(|field| own(field.name()));
        Ok(Relation {
            scan,
            filters: vec![],
            outputs: union.schema.columns().into_iter().zip(columns).collect(),
            times: time.map(|at| own(schema.field(at).name())).into_iter().collect(),
            window: None,
            several: None,
            lateness_ns: None,
            rank: None,
            names: vec![],
            base: Base::United { parts, schema },
        })
    }

    /// What gives out the rows of all parts, as columns of `schema`, of which `time` is one.
    pub(crate) fn united(
        &mut self,
        parts: &[Relation],
        schema: &SchemaRef,
        time: Option<&Expr>,
    ) -> Result<Feeds, Stop> {
        let mut from = vec![];
        let column = time.and_then(|time| column_index(time, schema));
        for (at, part) in parts.iter().enumerate() {
            self.section.text("union", format!("part {} of {}", at + 1, parts.len()));
            let exprs = part.exprs();
            let time = column.and_then(|column| exprs.get(column));
            let edges = self.end(part, &exprs, schema.clone(), time)?;
            from.extend(edges.into_iter().map(|edge| (edge.from, edge.step)));
        }
        Ok(from)
    }
}
